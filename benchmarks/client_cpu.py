"""CPU time per page of the Python client and of `ocrsvc batch --on URL`, against services that answer at once.

    python benchmarks/client_cpu.py                     300 pages of 300 kB, each way three times in turn
    python benchmarks/client_cpu.py --pages 2000

The two services are separate processes, whose time does not count. From the time of `ocrsvc batch` a run over a few
pages is subtracted, which is its start. The last line of stdout is the result as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.machine import describe, print_machine

from ocrsvc.client import AsyncClient, Client

_SERVICE = Path(__file__).with_name("bench") / "instant_service.py"
_ROOT = Path(__file__).resolve().parents[1]
_FIRST = 20


def main() -> int:
    """Run the benchmark: each client in turn."""
    args = _parser().parse_args()
    print_machine()
    print(f"settings: {json.dumps(vars(args))}")
    with _services() as urls, tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Callable[[], float]] = {
            "Client(url)": lambda: _by_thread(urls[0], args),
            "Client([url, url])": lambda: _by_thread(urls, args),
            "AsyncClient(url)": lambda: _by_loop(urls[0], args),
            "AsyncClient([url, url])": lambda: _by_loop(urls, args),
            "ocrsvc batch --on url,url": lambda: _by_batch(urls, args, Path(folder)),
        }
        found = {name: [way() for _ in range(args.rounds)] for name, way in ways.items()}
    print("| way | CPU per page |\n|---|---|")
    for name, each in found.items():
        print(f"| {name} | {min(each):.2f} to {max(each):.2f} ms, median {statistics.median(each):.2f} |")
    print(json.dumps({"machine": describe(), "settings": vars(args), "cpu_ms": found}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--kilobytes", type=int, default=300, help="per page")
    parser.add_argument("--rounds", type=int, default=3)
    return parser


@contextmanager
def _services() -> Iterator[list[str]]:
    """Start two services; yields their URLs."""
    started = [subprocess.Popen([sys.executable, str(_SERVICE)], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        yield [f"http://127.0.0.1:{each.stdout.readline().strip()}" for each in started if each.stdout]
    finally:
        for each in started:
            each.terminate()
            each.communicate()


def _by_thread(urls: str | list[str], args: argparse.Namespace) -> float:
    """CPU milliseconds per page, with one request at a time."""
    page, count = bytes(args.kilobytes * 1000), int(args.pages)
    with Client(urls) as client:
        for _ in range(_FIRST):
            client.read(page)
        began_s = time.process_time()
        for _ in range(count):
            client.read(page)
        return (time.process_time() - began_s) / count * 1000


def _by_loop(urls: str | list[str], args: argparse.Namespace) -> float:
    page, count = bytes(args.kilobytes * 1000), int(args.pages)

    async def read() -> float:
        async with AsyncClient(urls) as client:
            for _ in range(_FIRST):
                await client.read(page)
            began_s = time.process_time()
            for _ in range(count):
                await client.read(page)
            return (time.process_time() - began_s) / count * 1000

    return asyncio.run(read())


def _by_batch(urls: list[str], args: argparse.Namespace, folder: Path) -> float:
    spent_s = [_batch_cpu_s(urls, count, args.kilobytes, folder) for count in (_FIRST, _FIRST + args.pages)]
    return (spent_s[1] - spent_s[0]) / int(args.pages) * 1000


def _batch_cpu_s(urls: list[str], count: int, kilobytes: int, folder: Path) -> float:
    """CPU seconds of a batch run over `count` files."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        pages = Path(work, "pages")
        pages.mkdir()
        for number in range(count):
            # Files must differ, and none may be a document of several pages.
            (pages / f"{number:06}.jpg").write_bytes(
                b"\xff\xd8\xff" + random.Random(number).randbytes(kilobytes * 1000)
            )
        before = os.times()
        command = [sys.executable, "-m", "ocrsvc", "batch", str(pages), "--out", f"{work}/out", "--on", ",".join(urls)]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        after = os.times()
    if done.returncode:
        raise SystemExit(done.stderr)
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    sys.exit(main())
