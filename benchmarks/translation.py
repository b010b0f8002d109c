"""What does it cost to translate a page of 200 lines from and to each wire format?

    python benchmarks/translation.py [--lines 200] [--calls 10] [--rounds 100]

In process, without HTTP and without an engine: the WSGI application over a reader that has its answer ready. Measured
is processor time: of the whole call, and of the call without what any request costs (GET /healthz), which is the
translation. The image sent is a JPEG of about 135 kB; pictures are not asked for, because drawing is no translation.
The best of many short rounds counts: the machine's other work only adds. Exit code 1 if a translation costs more than
the goal.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import cast

from bench.exchanges import Application, Environ, Exchange, call, environ_of, exchanges
from bench.machine import print_machine
from bench.pages import scan
from bench.results import write_result

from ocrsvc.app import create_app
from ocrsvc.reader import Reader
from ocrsvc.records import EngineInfo, Line, Page, Reading, Timing
from ocrsvc.settings import Settings

GOAL_MS = 0.5
TEXTS = (
    "正品促销，全场八折起，详情请咨询店内工作人员",
    "The quick brown fox jumps over the lazy dog",
    "No. 2026-1121 ￥1,280.50",
)


class ReadyReader:
    """A reader whose answer is always the same page."""

    ready = True

    def __init__(self, lines: int) -> None:
        page = Page(2480, 3508, 0, tuple(map(_line, range(lines))))
        info = EngineInfo("ready", "none", "1", "cpu", "none", "none")
        self._reading = Reading(page, info, Timing(0.001, 0.0, 0.1, 0.101))

    def read(self, *_asked: object) -> Reading:
        """The page."""
        return self._reading

    def read_many(self, datas: list[bytes], *_asked: object) -> list[Reading]:
        """The page, once an image."""
        return [self._reading for _ in datas]

    def check_room(self, _priority: object) -> None:
        """There always is."""

    def describe(self) -> EngineInfo:
        """What the reading says, too."""
        return self._reading.engine


def _line(number: int) -> Line:
    left, top = 200.125 + number % 7, 60.25 + 17.03 * number
    right, bottom, slant = left + 900.5, top + 14.875, 1.3
    box = ((left, top), (right, top + slant), (right - slant, bottom + slant), (left - slant, bottom))
    return Line(f"{TEXTS[number % len(TEXTS)]} {number}", 0.9 + number % 100 / 1001, box)


def main() -> int:
    """Measure every format; the exit code."""
    asked = _arguments()
    print_machine()
    application = create_app(Settings(), cast(Reader, ReadyReader(asked.lines))).wsgi_app
    bare_ms = best_ms(application, Exchange("bare", "", "/healthz", "", b""), asked.calls, asked.rounds, method="GET")
    print(f"{asked.lines} lines, {asked.calls} calls, best of {asked.rounds} rounds; a bare call {bare_ms:.3f} ms\n")
    print("| format | whole call, ms | translation, ms | goal, ms |\n|---|---|---|---|")
    rows = {}
    for exchange in exchanges(scan(0)):
        whole_ms = best_ms(application, exchange, asked.calls, asked.rounds)
        rows[exchange.name] = {"whole_ms": round(whole_ms, 3), "translation_ms": round(whole_ms - bare_ms, 3)}
        print(f"| {exchange.name} | {whole_ms:.3f} | {whole_ms - bare_ms:.3f} | {GOAL_MS} |", flush=True)
    write_result("translation", {"lines": asked.lines, "bare_ms": round(bare_ms, 3), "formats": rows}, asked.out)
    late = [name for name, row in rows.items() if row["translation_ms"] > GOAL_MS]
    print(f"over the goal: {', '.join(late) or 'none'}")
    return 1 if late else 0


def best_ms(application: Application, exchange: Exchange, calls: int, rounds: int, method: str = "POST") -> float:
    """Processor milliseconds of one call, in the best round. Stops on a wrong answer."""
    status, answer = call(application, _environ(exchange, method))
    assert status == 200, f"{exchange.name}: {status} {answer[:300]!r}"
    return min(_round_ms(application, exchange, calls, method) for _ in range(rounds))


def _round_ms(application: Application, exchange: Exchange, calls: int, method: str) -> float:
    environs = [_environ(exchange, method) for _ in range(calls)]
    began_s = time.process_time()
    for environ in environs:
        call(application, environ)
    return (time.process_time() - began_s) / calls * 1000


def _environ(exchange: Exchange, method: str) -> Environ:
    return environ_of(exchange.path, exchange.content_type, exchange.body, method)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, help="where the figures go; by default benchmarks/results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
