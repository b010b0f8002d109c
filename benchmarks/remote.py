"""Checks that each page is answered once, by the remote model or by the local engine, whatever happens to the model.

    python benchmarks/remote.py [--pages 10000] [--seed 1] [--out FILE]

A service with the engine `remote` and the local engine `fake` reads pages of different sizes, 32 requests at a time.
Two doubles (bench/failing_chat.py) replace the model; their text is the size of the image. Of a thousand calls they
refuse 4, stall 5, break 20, repeat a cell endlessly 20 times, run out of tokens 20 times, send 10 damaged texts and 10
errors, and die once; half a second later they are restarted. Prints the pages by reader and by reason of the fallback,
pages answered wrongly, twice or not at all, connections to the doubles left after the end, pages per second and the
longest answer. Exit code 1 if a page is wrong, missing or repeated, or a connection is left.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.machine import print_machine
from bench.results import write_result

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from image_support import png
from support import ROOT, Server, clean_environment, reserved_port, run_server

from ocrsvc.client import Client
from ocrsvc.client.client import Outcome
from ocrsvc.client.response import Answer

AT_ONCE = 32
RESTART_S = 0.5
WIDTHS = 500
SETTINGS = {
    "OCRSVC_ENGINE": "remote",
    "OCRSVC_REMOTE_MODEL": "stand-in",
    "OCRSVC_REMOTE_LOCAL": "fake",
    "OCRSVC_REMOTE_TIMEOUT_S": "2",
    "OCRSVC_REMOTE_CONCURRENCY": str(AT_ONCE),
    "OCRSVC_CACHE_BYTES": "0",
}


def size_of(number: int) -> tuple[int, int]:
    """Width and height of a page, unique for each number."""
    return 20 + number % WIDTHS, 20 + number // WIDTHS


@contextmanager
def restarted_double(port: int, seed: int) -> Iterator[list[int]]:
    """Run a double that is restarted whenever it dies; yields the exit codes of those that died."""
    done, deaths = threading.Event(), list[int]()
    running: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "bench.failing_chat", str(port), str(seed + len(deaths))]
        # Its handler prints to stderr for each connection that a client resets.
        return subprocess.Popen(line, cwd=ROOT / "benchmarks", env=clean_environment(), stderr=subprocess.DEVNULL)

    def keep_running() -> None:
        while not done.is_set():
            running[:] = [start()]
            deaths.append(running[0].wait())
            done.wait(RESTART_S)

    thread = threading.Thread(target=keep_running)
    thread.start()
    try:
        yield deaths
    finally:
        done.set()
        running[0].kill()
        thread.join()


def reader_of(number: int, outcome: Outcome) -> str:
    """The reader of a page: "remote", the reason of the fallback, or "wrong" for an error or another page's text."""
    if not isinstance(outcome, Answer) or len(outcome.pages) != 1:
        return "wrong"
    page, (width, height) = outcome.pages[0], size_of(number)
    if page.fallback is None:
        return "remote" if page.markdown == f"# Page {width}x{height}\n\nread remotely" else "wrong"
    return page.fallback.reason if page.text.startswith(f"{width}x{height}\n") else "wrong"


def connections_to(ports: list[int]) -> int:
    """Established connections to the ports, as /proc/net/tcp lists them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return sum(row[3] == "01" and int(row[2].rpartition(":")[2], 16) in ports for row in rows)


def read_all(server: Server, pages: int) -> tuple[Counter[str], float]:
    """Read the pages; returns counts by reader, and the longest time that the service took for an answer."""
    readers, longest_s = Counter[str](), 0.0
    with Client(server.url, timeout_s=120) as client:
        pictures = (png(*size_of(number), 255) for number in range(pages))
        for number, outcome in enumerate(client.read_many(pictures, at_once=AT_ONCE)):
            readers[reader_of(number, outcome)] += 1
            if isinstance(outcome, Answer):
                longest_s = max(longest_s, outcome.timing["total_s"])
    return readers, longest_s


def main() -> int:
    """Run the benchmark; returns 0 if each page was answered once and no connection is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print_machine()
    with ExitStack() as started:
        ports = [started.enter_context(reserved_port()) for _ in range(2)]
        deaths = [started.enter_context(restarted_double(port, args.seed + 1000 * at)) for at, port in enumerate(ports)]
        urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
        server = started.enter_context(run_server(SETTINGS | {"OCRSVC_REMOTE_URL": urls}))
        began_s = time.monotonic()
        readers, longest_s = read_all(server, args.pages)
        seconds = time.monotonic() - began_s
        read = server.metric("ocrsvc_images_total")
        fallbacks = server.metric("ocrsvc_remote_fallbacks_total")
        # Connections in use are closed at once; idle ones may serve the next page.
        kept = connections_to(ports)
        server.stop()
        left = connections_to(ports)
    local = sum(readers.values()) - readers["remote"] - readers["wrong"]
    figures: dict[str, object] = {
        "pages": args.pages,
        "remote": readers["remote"],
        "local": local,
        "reasons": {name: count for name, count in sorted(readers.items()) if name not in {"remote", "wrong"}},
        "wrong": readers["wrong"],
        "read_by_the_service": int(read),
        "fallbacks_counted": int(fallbacks),
        # Without the doubles that were killed at the end.
        "deaths": sum(map(len, deaths)) - len(ports),
        "idle_connections": kept,
        "connections_left": left,
        "pages_s": round(args.pages / seconds, 1),
        "longest_s": round(longest_s, 2),
    }
    print(figures)
    write_result("remote", figures, args.out)
    is_whole = readers["remote"] + local == args.pages == int(read) and local == int(fallbacks)
    return 0 if is_whole and not left and kept <= AT_ONCE else 1


if __name__ == "__main__":
    sys.exit(main())
