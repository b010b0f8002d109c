"""Load on a real service while workers are replaced; every answer is checked against its image.

    python benchmarks/soak.py                     100,000 requests, memory recycles a worker every few seconds
    python benchmarks/soak.py --by max-requests   the same with OCRSVC_MAX_REQUESTS
    python benchmarks/soak.py --by nothing        the control: nothing is recycled
    python benchmarks/soak.py --gpu               Tr's double leaks on a simulated GPU, read through a double of NVML
    python benchmarks/soak.py --gpu --by nothing  the control that ends out of memory: it leaks, and nothing is recycled

The fake engine waits 50 ms per image and leaks memory; its text is the CRC-32 of the pixels, so an answer to another
image is detected. Each of 20 clients keeps its connection, closes it after every answer, or alternates; meanwhile the
arbiter gets SIGHUP, SIGTTIN and SIGTTOU. First the same service runs undisturbed. The last line of stdout is the result
as JSON; exit code 1 if any request failed. With --gpu the doubles are compiled from tests/doubles, which needs `cc`;
the expected text is computed from libtr.c's description.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
DOUBLES = ROOT / "tests" / "doubles"
sys.path.insert(0, str(DOUBLES))

from simulated_gpu import SimulatedGpu  # noqa: E402  the path must be known first
from tr_home import build_home  # noqa: E402  as above

SOCKET_LIMIT_S = 60.0
START_S = 60.0
SETTLE_S = 60.0
WORKERS = 2
KINDS = ("kept", "closed", "mixed")


# Lets a worker of the simulated GPU live for about 500 images, like one with the fake engine.
GPU_BYTES = 2 * 10**9
GPU_SESSION_BYTES = 100 * 10**6
GPU_LEAK_BYTES = 800_000
LEAK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Picture:
    """An image to send, and its unique text."""

    body: bytes
    text: str


@dataclass
class Tally:
    """Results of one client."""

    failures: Counter[str] = field(default_factory=Counter)
    answered_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)


def make_pictures(*, tr: bool, count: int = 40) -> list[Picture]:
    """Random images of different sizes; the texts are computed here from the pixels, not by the service."""
    random = np.random.default_rng(7)
    pictures = []
    for number in range(count):
        height, width = 24 + number, 40 + 2 * number
        # Tr reads gray pixels only.
        pixels = random.integers(0, 256, (height, width) if tr else (height, width, 3), np.uint8)
        digest = f"{zlib.adler32(pixels.tobytes()[::17])}" if tr else f"{zlib.crc32(pixels.tobytes()):08x}"
        text = f"{width}x{height}:{digest}\n\u4f60\u597dAA\u4e16\u754c" if tr else f"{width}x{height}\n{digest}"
        pictures.append(Picture(cv2.imencode(".png", pixels)[1].tobytes(), text))
    return pictures


class Client(threading.Thread):
    """Sends requests one after the other while any are left."""

    def __init__(self, port: int, kind: str, pictures: list[Picture], turns: Iterable[int], seed: int) -> None:
        super().__init__(name=f"client-{seed}")
        self._address = ("127.0.0.1", port)
        self._kind = kind
        self._pictures = pictures
        self._turns = turns
        self._socket: socket.socket | None = None
        self.tally = Tally()

    def run(self) -> None:
        """Send requests until the counter ends."""
        for turn in self._turns:
            picture = self._pictures[turn % len(self._pictures)]
            keep = self._kind == "kept" or (self._kind == "mixed" and turn % 3 != 0)
            began_s = time.monotonic()
            failure = self._exchange(picture, keep=keep)
            ended_s = time.monotonic()
            if failure:
                self.tally.failures[failure] += 1
            else:
                self.tally.answered_s.append(ended_s)
                self.tally.latencies_s.append(ended_s - began_s)
        self._hang_up()

    def _exchange(self, picture: Picture, *, keep: bool) -> str:
        """Send an image; returns what went wrong, or ""."""
        wire = "kept" if self._socket else "new"
        connection = "keep-alive" if keep else "close"
        head = f"POST /v1/ocr HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: {connection}\r\nContent-Type: image/png\r\n"
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, SOCKET_LIMIT_S)
            self._socket.sendall(f"{head}Content-Length: {len(picture.body)}\r\n\r\n".encode() + picture.body)
            status, headers, body = receive(self._socket)
        except OSError as error:
            self._hang_up()
            return f"{type(error).__name__} on a {wire} connection"
        if not keep or b"connection: close" in headers:
            self._hang_up()
        if status != 200:
            return f"status {status}"
        text = json.loads(body)["pages"][0]["text"]
        return "" if text == picture.text else "swapped"

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def receive(wire: socket.socket) -> tuple[int, bytes, bytes]:
    """Status, headers in lower case, and body. Raises OSError if the connection closes early."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += more(wire)
    headers, body = data[:end].lower(), data[end + 4 :]
    length = int(headers.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += more(wire)
    return int(headers.split(b" ", 2)[1]), headers, body


def more(wire: socket.socket) -> bytes:
    """The next bytes. Raises ConnectionError at the end of the stream."""
    data = wire.recv(1 << 16)
    if not data:
        raise ConnectionError("closed before the end of the answer")
    return data


@dataclass
class Service:
    """A started service: its arbiter, its port and its log file."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text("utf-8", "replace")

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def recycled(self) -> dict[str, int]:
        """Number of replaced workers by reason."""
        return dict(Counter(re.findall(r"RECYCLED worker \d+: (\w+)", self.text())))


@contextmanager
def serve(env: Mapping[str, str], folder: Path) -> Iterator[Service]:
    """Run the service with two workers; yields it when both are ready."""
    log = folder / f"{time.monotonic_ns()}.log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OCRSVC_")}
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py", "wsgi:app", "-b", "127.0.0.1:0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**clean, **env}, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    service = Service(process, 0, log)
    try:
        wait_until(lambda: service.text().count("READY in") >= WORKERS, START_S, service.text)
        match = re.search(r"Listening at: http://127\.0\.0\.1:(\d+)", service.text())
        assert match is not None
        service.port = int(match[1])
        yield service
        process.send_signal(signal.SIGTERM)
        process.wait(SETTLE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(SETTLE_S)


def wait_until(is_true: Any, limit_s: float, describe: Any) -> None:
    """Wait for a condition; raises TimeoutError with the result of `describe`."""
    end_s = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > end_s:
            raise TimeoutError(describe())
        time.sleep(0.05)


def load(port: int, requests: int, args: argparse.Namespace) -> tuple[dict[str, Any], Counter[str]]:
    """Send `requests` requests; returns figures, and failures by kind."""
    pictures, turns = make_pictures(tr=args.gpu), NumbersBelow(requests)
    clients = [Client(port, KINDS[number % len(KINDS)], pictures, turns, number) for number in range(args.clients)]
    began_s = time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    tallies = [client.tally for client in clients]
    wall_s = time.monotonic() - began_s
    answered = sorted(moment for tally in tallies for moment in tally.answered_s)
    latencies = sorted(latency for tally in tallies for latency in tally.latencies_s)
    gaps = [later - earlier for earlier, later in itertools.pairwise([began_s, *answered])]
    figures = {
        "answered": len(answered),
        "per_s": round(len(answered) / wall_s, 1),
        "longest_gap_ms": round(1000 * max(gaps), 1),
        **{f"p{share}_ms": round(1000 * latencies[len(latencies) * share // 100], 1) for share in (50, 99)},
        "max_ms": round(1000 * latencies[-1], 1),
    }
    return figures, sum((tally.failures for tally in tallies), Counter())


class NumbersBelow:
    """Thread-safe counter from 0 to a limit."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[int]:
        # next() on itertools.count is atomic in the interpreter.
        while (number := next(self._numbers)) < self._count:
            yield number


def disturb(service: Service, done: threading.Event, every_s: float) -> None:
    """Send SIGTTIN and SIGTTOU alternately, and SIGHUP every fifth time, until done."""
    for turn in itertools.count(1):
        if done.wait(every_s):
            return
        service.process.send_signal(
            signal.SIGHUP if turn % 5 == 0 else (signal.SIGTTIN if turn % 2 else signal.SIGTTOU)
        )


def soak(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the undisturbed and the disturbed load; returns the result."""
    base = {"OCRSVC_WORKERS": str(WORKERS), "OCRSVC_ENGINE_THREADS": "4", **engine(args, folder)}
    with serve(base, folder) as service:
        undisturbed, failures = load(service.port, max(args.requests // 10, 100), args)
    assert not failures, failures
    with serve({**base, **recycling(args)}, folder) as service:
        with disturbed(service, args.signal_every):
            figures, failures = load(service.port, args.requests, args)
        text = service.text
        wait_until(lambda: len(service.workers()) == WORKERS, SETTLE_S, text)
        recycled = service.recycled()
    return {
        "undisturbed": undisturbed,
        "recycling": figures,
        "failures": dict(failures),
        "recycled": recycled,
        "recycles": sum(recycled.values()),
        "drain_first": service.text().count("DRAIN FIRST"),
        "throughput_share": round(figures["per_s"] / undisturbed["per_s"], 3),
        "gap_above_undisturbed_ms": round(figures["longest_gap_ms"] - undisturbed["longest_gap_ms"], 1),
        "log_errors": len(re.findall(r"\[ERROR\]|\[CRITICAL\]|Traceback", service.text())),
    }


@contextmanager
def disturbed(service: Service, every_s: float) -> Iterator[None]:
    """Send signals to the service while the block runs; none if `every_s` is 0."""
    done = threading.Event()
    disturber = threading.Thread(target=disturb, args=(service, done, every_s))
    if every_s:
        disturber.start()
    try:
        yield
    finally:
        done.set()
        if every_s:
            disturber.join()


def engine(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Settings of the engine and of the simulated GPU."""
    if not args.gpu:
        return {"OCRSVC_ENGINE": "fake", "OCRSVC_FAKE_LATENCY_S": str(args.latency)}
    build_home(folder / "tr", gpu=True)
    return {
        "OCRSVC_ENGINE": "tr",
        "OCRSVC_TR_HOME": str(folder / "tr"),
        "OCRSVC_TR_SHARED_SESSIONS": "true",
        **SimulatedGpu(folder / "tr" / "gpu", args.gpu_bytes).environment,
        "LIBTR_DOUBLE_SHARED": "1",
        "LIBTR_DOUBLE_SLEEP_MS": str(round(1000 * args.latency)),
        "LIBTR_DOUBLE_GPU_BYTES": str(GPU_SESSION_BYTES),
    }


def recycling(args: argparse.Namespace) -> dict[str, str]:
    """Settings that cause workers to be replaced."""
    by_requests = {"OCRSVC_MAX_REQUESTS": str(args.max_requests), "OCRSVC_MAX_REQUESTS_JITTER": "50"}
    if args.gpu:
        leak = {"LIBTR_DOUBLE_GPU_LEAK_BYTES": str(args.leak or GPU_LEAK_BYTES)}
        never = {"OCRSVC_GPU_SOFT_BYTES": "0", "OCRSVC_GPU_HARD_BYTES": "0"}
        return {"memory": leak, "max-requests": {**leak, **never, **by_requests}, "nothing": {**leak, **never}}[args.by]
    leak = {"OCRSVC_FAKE_LEAK_BYTES": str(args.leak or LEAK_BYTES), "OCRSVC_RSS_SOFT_BYTES": str(args.soft)}
    return {"memory": leak, "max-requests": by_requests, "nothing": {}}[args.by]


def main() -> int:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--by", choices=("memory", "max-requests", "nothing"), default="memory")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds an image waits in the engine")
    parser.add_argument("--gpu", action="store_true", help="Tr's double on a simulated GPU, not the fake engine")
    parser.add_argument("--gpu-bytes", type=int, default=GPU_BYTES, help="memory of the simulated GPU")
    parser.add_argument(
        "--leak", type=int, help=f"bytes leaked per image; default {LEAK_BYTES}, on the GPU {GPU_LEAK_BYTES}"
    )
    parser.add_argument("--soft", type=int, default=180 * 10**6, help="bytes at which a worker is replaced")
    parser.add_argument("--max-requests", type=int, default=400)
    parser.add_argument("--signal-every", type=float, default=3.0, help="seconds between signals; 0 sends none")
    parser.add_argument("--log", type=Path, help="file to copy the service's log to")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(args, Path(folder))
        if args.log:
            newest = max(Path(folder).glob("*.log"), key=lambda file: file.stat().st_mtime_ns)
            args.log.write_bytes(newest.read_bytes())
    print(json.dumps(result))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
