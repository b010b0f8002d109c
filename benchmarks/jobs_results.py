"""Memory and liveness while the results of long jobs are fetched, by one client and by many at once.

    python benchmarks/jobs_results.py [--pages 3000] [--at-once 16] [--text-bytes 20000] [--only NAME] [--out FILE]

A service with one worker and the engine `fake`, with as much text per page as a dense page has, reads a PDF as a job.
The result is fetched once and then by several clients at once, in each way that returns the whole document: Umi-OCR's
results and files, docling's task in four formats, Azure's result. Prints for each way the statuses, the size of an
answer, the seconds, the growth of the worker's memory, and the slowest answer of /healthz, which is requested twenty
times per second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from bench.machine import print_machine
from bench.results import write_result

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from jobs_support import JobService, job_service, numbered_pdf

MB = 1e6
ASKED_S = 0.05
PATIENCE_S = 900.0
LINE = "The quick brown fox jumps over the lazy dog while 12 others wait. "
Answer = tuple[int, int]
"""Status and size in bytes of an answer."""


@contextmanager
def polling_health(url: str, slowest: list[float]) -> Iterator[None]:
    """Request /healthz continuously while the block runs, and append the seconds of each answer."""
    done = threading.Event()

    def ask() -> None:
        with requests.Session() as session:
            while not done.wait(ASKED_S):
                began_s = time.monotonic()
                session.get(f"{url}/healthz", timeout=120)
                slowest.append(time.monotonic() - began_s)

    poller = threading.Thread(target=ask)
    poller.start()
    try:
        yield
    finally:
        done.set()
        poller.join()


def memory_of(pid: int, name: str) -> int:
    """Bytes in this line of a process's /proc status."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(name))


def measure(service: JobService, fetch: Callable[[], Answer], at_once: int) -> dict[str, Any]:
    """Costs of fetching a result by `at_once` clients at once."""
    (pid,) = service.server.workers()
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    before = memory_of(pid, "VmRSS")
    slowest: list[float] = []
    began_s = time.monotonic()
    with polling_health(service.server.url, slowest), ThreadPoolExecutor(at_once) as pool:
        answers = [future.result() for future in [pool.submit(fetch) for _ in range(at_once)]]
    return {
        "at_once": at_once,
        "statuses": dict(Counter(status for status, _ in answers)),
        "answer_mb": round(max(size for _, size in answers) / MB, 1),
        "s": round(time.monotonic() - began_s, 1),
        "memory_rise_mb": round((memory_of(pid, "VmHWM") - before) / MB),
        "healthz_slowest_ms": round(1000 * max(slowest, default=0.0)),
    }


def answer_of(response: requests.Response) -> Answer:
    """Read an answer without keeping it; returns its status and size."""
    with response:
        return response.status_code, sum(len(piece) for piece in response.iter_content(1 << 20))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError
        time.sleep(0.2)


class Ways:
    """The ways to fetch results: each submits the document, and yields names and fetch functions.

    Args:
        url: URL of the service.
        pdf: The document.
    """

    def __init__(self, url: str, pdf: bytes) -> None:
        self._url, self._pdf = url, pdf

    def umi(self) -> Iterator[tuple[str, Callable[[], Answer]]]:
        """Fetch Umi-OCR's results as text and with boxes, and its files."""
        sent = requests.post(f"{self._url}/api/doc/upload", files={"file": ("a.pdf", self._pdf)}, timeout=120).json()
        job_id = sent["data"]

        def ask(path: str, **members: object) -> requests.Response:
            sent = {"id": job_id, **members}
            return requests.post(f"{self._url}/api/doc/{path}", json=sent, stream=True, timeout=PATIENCE_S)

        def file(kind: str) -> Answer:
            answer = ask("download", file_types=[kind])
            made = json.loads(answer.content)
            if answer.status_code != 200 or made["code"] != 100:
                return answer.status_code, len(answer.content)
            return answer_of(requests.get(made["data"], stream=True, timeout=PATIENCE_S))

        wait_until(lambda: ask("result").json()["is_done"])
        for form in ("dict", "text"):
            yield f"Umi-OCR, {form}", lambda: answer_of(ask("result", is_data=True, is_unread=False, format=form))  # noqa: B023  called at once
        for kind in ("jsonl", "csv", "pdfOneLayer", "pdfLayered"):
            yield f"Umi-OCR, {kind}", lambda: file(kind)  # noqa: B023  called at once

    def docling(self) -> Iterator[tuple[str, Callable[[], Answer]]]:
        """Fetch docling's task in four formats."""
        fields = {"to_formats": ["md", "json", "html", "doctags"]}
        path = f"{self._url}/v1/convert/file/async"
        sent = requests.post(path, files={"files": ("a.pdf", self._pdf)}, data=fields, timeout=120).json()
        status, result = (f"{self._url}/v1/{path}/{sent['task_id']}" for path in ("status/poll", "result"))
        wait_until(lambda: requests.get(status, timeout=60).json()["task_status"] in {"success", "failure"})
        yield "docling, four formats", lambda: answer_of(requests.get(result, stream=True, timeout=PATIENCE_S))

    def azure(self) -> Iterator[tuple[str, Callable[[], Answer]]]:
        """Fetch Azure's result."""
        path = f"{self._url}/documentintelligence/documentModels/prebuilt-read:analyze?api-version=2024-11-30"
        kind = {"Content-Type": "application/pdf"}
        where = requests.post(path, data=self._pdf, headers=kind, timeout=120).headers["Operation-Location"]
        # The result may be large: check for its end by reading only its beginning.
        wait_until(lambda: is_read(where))
        yield "Azure", lambda: answer_of(requests.get(where, stream=True, timeout=PATIENCE_S))


def is_read(where: str) -> bool:
    """Whether Azure's result is finished, according to its first bytes."""
    with requests.get(where, stream=True, timeout=PATIENCE_S) as answer:
        begin = next(answer.iter_content(64))
    return answer.status_code != 200 or b"succeeded" in begin or b"failed" in begin


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=3000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--text-bytes", type=int, default=20000)
    parser.add_argument("--only", choices=("umi", "docling", "azure"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print_machine()
    text = (LINE * (args.text_bytes // len(LINE) + 1))[: args.text_bytes].strip()
    env = {"OCRSVC_FAKE_TEXT": text, "OCRSVC_JOBS_BYTES": "8GB", "OCRSVC_JOB_PAGES": str(args.pages)}
    pdf, figures = numbered_pdf(args.pages), []
    with tempfile.TemporaryDirectory() as folder, job_service(Path(folder), env) as service:
        ways = Ways(service.server.url, pdf)
        for name in [args.only] if args.only else ["umi", "docling", "azure"]:
            for title, fetch in getattr(ways, name)():
                for at_once in (1, args.at_once):
                    found = {"way": title, **measure(service, fetch, at_once)}
                    print(json.dumps(found), flush=True)
                    figures.append(found)
    write_result("jobs_results", {"ways": figures}, args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
