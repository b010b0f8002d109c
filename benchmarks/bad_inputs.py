"""Does the running service answer every malformed input as its manifest allows, and stay whole?

    python benchmarks/bad_inputs.py --shared ../shared [--url http://127.0.0.1:8080 [--pid ARBITER]]

Every row of bad/manifest.jsonl is posted to /v1/ocr, each followed by a good page. A violation is: a status that the
row does not allow, any 5xx, an answer later than five seconds (or than the row's own limit), more memory than the
row's own limit, a good page that is not answered 200 afterwards, a worker lost. Without --url the service is started
here with the settings of the environment, and ended afterwards. Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlsplit

ROOT = Path(__file__).resolve().parents[1]
GOOD = "ok_text.png"
ANSWER_LIMIT_S = 5.0
START_LIMIT_S = 120.0
CLIENT_LIMIT_S = 60.0
MB = 1 << 20
BOUNDARY = b"ocrsvc-bad-inputs"


@dataclass(frozen=True, slots=True)
class Row:
    """One way to send one line of the manifest."""

    name: str
    body: bytes
    content_type: str
    expect: tuple[int, ...]
    tokens: tuple[str, ...]
    limit_s: float
    limit_mb: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: status 0 stands for a connection that broke."""

    status: int
    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row, sent: its answer, the memory that it cost at its worst, and what is wrong with all that."""

    row: Row
    answer: Answer
    growth_mb: float
    complaints: tuple[str, ...]

    @property
    def tokens_read(self) -> int:
        """How many of the words on the page came back."""
        return sum(token in self.answer.text for token in self.row.tokens)


class Processes:
    """The service's arbiter and workers, as /proc shows them; empty without a pid."""

    def __init__(self, arbiter: int | None) -> None:
        self._arbiter = arbiter

    def workers(self) -> list[int]:
        """Process ids of the arbiter's children, in order."""
        if self._arbiter is None:
            return []
        return sorted(map(int, Path(f"/proc/{self._arbiter}/task/{self._arbiter}/children").read_text().split()))

    def rss_mb(self) -> float:
        """Resident memory of all of them now."""
        return self._sum_mb("VmRSS")

    def peak_mb(self) -> float:
        """Highest resident memory since `forget_peak`."""
        return self._sum_mb("VmHWM")

    def forget_peak(self) -> None:
        """Begin a new peak; see clear_refs in proc(5)."""
        for pid in self._all():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def _all(self) -> list[int]:
        return [] if self._arbiter is None else [self._arbiter, *self.workers()]

    def _sum_mb(self, field: str) -> float:
        total_kb = 0
        for pid in self._all():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                total_kb += int(found[1]) if found else 0
        return total_kb / 1024


def form_with_file(data: bytes, filename: str, content_type: str) -> tuple[bytes, str]:
    """A multipart form with the field `file`, its file name byte for byte as given: also NUL and CR LF."""
    head = b'Content-Disposition: form-data; name="file"; filename="' + filename.encode() + b'"\r\n'
    head += b"Content-Type: " + content_type.encode() + b"\r\n\r\n"
    body = b"--" + BOUNDARY + b"\r\n" + head + data + b"\r\n--" + BOUNDARY + b"--\r\n"
    return body, f"multipart/form-data; boundary={BOUNDARY.decode()}"


def bodies_of(line: dict[str, Any], data: bytes) -> Iterator[tuple[str, bytes, str]]:
    """Name, body and content type of each way in which a manifest line is sent."""
    if line["class"] == "base64":
        text = data.decode()
        yield "form", b"image=" + quote_plus(text).encode(), "application/x-www-form-urlencoded"
        yield "json", json.dumps({"image": text}).encode(), "application/json"
        return
    filename = line.get("send_filename", line["file"])
    yield (
        f"as {filename[:24]!r}" if "send_filename" in line else "",
        *form_with_file(data, filename, line["content_type"]),
    )


def read_manifest(folder: Path) -> Iterator[Row]:
    """Every row of the manifest, in every way in which it is sent."""
    for text in (folder / "manifest.jsonl").read_text("utf-8").splitlines():
        line = json.loads(text)
        limit = line.get("limit", "")
        seconds = re.search(r"within (\d+) s", limit)
        megabytes = re.search(r"less than (\d+) MB", limit)
        for way, body, content_type in bodies_of(line, (folder / line["file"]).read_bytes()):
            yield Row(
                name=f"{line['file']} {way}".strip(),
                body=body,
                content_type=content_type,
                expect=tuple(line["expect"]),
                tokens=tuple((line["text"] or "").split()),
                limit_s=min(ANSWER_LIMIT_S, float(seconds[1])) if seconds else ANSWER_LIMIT_S,
                limit_mb=float(megabytes[1]) if megabytes else float("inf"),
            )


def post(url: str, body: bytes, content_type: str) -> Answer:
    """Post to /v1/ocr over a connection of its own."""
    began_s = time.perf_counter()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=CLIENT_LIMIT_S)
    try:
        connection.request("POST", "/v1/ocr", body, {"Content-Type": content_type})
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        return Answer(response.status, time.perf_counter() - began_s, text)
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, time.perf_counter() - began_s, repr(error))
    finally:
        connection.close()


def complain(row: Row, answer: Answer, after: Answer, growth_mb: float) -> Iterator[str]:
    """What is wrong with a row's answer, and with the good page after it."""
    if answer.status not in row.expect:
        yield f"status {answer.status} is not in {list(row.expect)}: {answer.text[:120]}"
    if answer.status >= 500:
        yield "a 5xx"
    if answer.seconds > row.limit_s:
        yield f"{answer.seconds:.1f} s is later than {row.limit_s:.0f} s"
    if growth_mb > row.limit_mb:
        yield f"{growth_mb:.0f} MB is more than {row.limit_mb:.0f} MB"
    if after.status != 200:
        yield f"the good page after it got {after.status}"


def send(url: str, row: Row, good: tuple[bytes, str], processes: Processes) -> Outcome:
    """Post one row, then the good page."""
    processes.forget_peak()
    before_mb = processes.rss_mb()
    answer = post(url, row.body, row.content_type)
    growth_mb = max(0.0, processes.peak_mb() - before_mb)
    return Outcome(row, answer, growth_mb, tuple(complain(row, answer, post(url, *good), growth_mb)))


def is_ready(url: str) -> bool:
    """Does /readyz answer 200?"""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until_ready(url: str, server: subprocess.Popen[bytes] | None) -> None:
    """Return when the service is ready; exits when it has ended or takes too long."""
    until_s = time.monotonic() + START_LIMIT_S
    while not is_ready(url):
        if time.monotonic() > until_s or (server is not None and server.poll() is not None):
            sys.exit(f"The service at {url} did not become ready.")
        time.sleep(0.25)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def started(log: Path) -> Iterator[tuple[str, int]]:
    """The real service on a free port of the loopback: its URL and its arbiter's pid."""
    port = free_port()
    env = os.environ | {"OCRSVC_BIND": f"127.0.0.1:{port}", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py", "wsgi:app"]
    with log.open("wb") as out:
        server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", server)
        yield f"http://127.0.0.1:{port}", server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
        server.kill()
        server.wait()


def machine() -> str:
    """The processor and how many of its cores this process may use."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.machine()}, {len(os.sched_getaffinity(0))} cores, {platform.platform()}"


def print_report(outcomes: Sequence[Outcome]) -> None:
    """The figures of a run, and a table of what went wrong."""
    worst = max(outcomes, key=lambda outcome: outcome.answer.seconds)
    hungriest = max(outcomes, key=lambda outcome: outcome.growth_mb)
    legible = [outcome for outcome in outcomes if outcome.row.tokens and outcome.answer.status == 200]
    statuses = [outcome.answer.status for outcome in outcomes]
    print(f"rows: {len(outcomes)}; answers: { ({status: statuses.count(status) for status in sorted(set(statuses))}) }")
    print(f"slowest: {worst.answer.seconds:.2f} s, {worst.row.name}")
    print(f"most memory: {hungriest.growth_mb:.0f} MB more, {hungriest.row.name}")
    read, all_tokens = sum(o.tokens_read for o in legible), sum(len(o.row.tokens) for o in legible)
    print(f"text: {read} of {all_tokens} tokens read on {len(legible)} legible pages answered 200")
    for outcome in legible:
        if outcome.tokens_read < len(outcome.row.tokens):
            print(f"  {outcome.tokens_read} of {len(outcome.row.tokens)}: {outcome.row.name}")
    for outcome in outcomes:
        for complaint in outcome.complaints:
            print(f"VIOLATION {outcome.row.name}: {complaint}")


def check(url: str, arbiter: int | None, folder: Path) -> bool:
    """Send everything; True when nothing was violated."""
    processes = Processes(arbiter)
    good = form_with_file((folder / GOOD).read_bytes(), GOOD, "image/png")
    for _ in range(3):
        if (warm := post(url, *good)).status != 200:
            sys.exit(f"The good page got {warm.status}: {warm.text[:300]}")
    workers, before_mb = processes.workers(), processes.rss_mb()
    outcomes = [send(url, row, good, processes) for row in read_manifest(folder)]
    print_report(outcomes)
    kept = processes.workers() == workers
    peak_mb = max(outcome.growth_mb for outcome in outcomes)
    print(f"RSS of arbiter and workers: {before_mb:.0f} MB before, {processes.rss_mb():.0f} MB after")
    print(f"RSS at its peak: {peak_mb:.0f} MB more than right before that row")
    print(f"workers: {workers} before, {processes.workers()} after" if workers else "workers: not watched (no --pid)")
    return kept and not any(outcome.complaints for outcome in outcomes)


def main() -> int:
    """Run once; 0 when nothing was violated, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="the folder that holds bad/")
    parser.add_argument("--url", help="a running service; without it, one is started")
    parser.add_argument("--pid", type=int, help="the arbiter of that service, to watch its memory and workers")
    asked = parser.parse_args()
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith("OCRSVC_")}
    print(f"machine: {machine()}\nsettings: {settings or 'the defaults'}; one client, a new connection per request")
    if asked.url:
        return 0 if check(asked.url, asked.pid, asked.shared / "bad") else 1
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "service.log"
        try:
            with started(log) as (url, arbiter):
                whole = check(url, arbiter, asked.shared / "bad")
        except SystemExit:
            print(log.read_text("utf-8", "replace")[-3000:])
            raise
        return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
