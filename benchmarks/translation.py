"""Time to translate a page of 200 lines from and to each wire format.

    python benchmarks/translation.py [--lines 200] [--calls 10] [--rounds 100]

Runs the WSGI application in process, without HTTP and engine, over a reader that returns a fixed page. It measures the
processor time of four calls, whose differences are the figures: GET /healthz; the format's request with a tiny image
and no lines (minus the first: the fixed cost of any request in this format); with a JPEG of about 135 kB (receiving);
with the lines (writing). Receiving and writing are the translation. The requests ask for no pictures, because drawing
is not translation.

The fastest of many short rounds counts, because other load only adds time. Other load may slow everything, so each
round also times a yardstick, the standard library pickling 200 lines: figures of two runs are comparable if their
yardsticks agree. Exit code 1 if a translation costs more than the goal.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

from bench.exchanges import Application, Environ, Exchange, call, environ_of, exchanges
from bench.machine import print_machine
from bench.pages import scan
from bench.results import write_result

from ocrsvc.app import create_app
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import EngineInfo, Line, Page, Reading, Timing
from ocrsvc.settings.settings import Settings

GOAL_MS = 1.0
# Bytes of the tiny image, enough to be recognised as a JPEG.
TINY_BYTES = 64
BARE = Exchange("bare", "", "/healthz", "", b"")
TEXTS = (
    "正品促销，全场八折起，详情请咨询店内工作人员",
    "The quick brown fox jumps over the lazy dog",
    "No. 2026-1121 ￥1,280.50",
)


class ReadyReader:
    """A reader that always returns the same page."""

    ready = True
    has_models = False

    def __init__(self, lines: int) -> None:
        page = Page(2480, 3508, 0, tuple(map(_line, range(lines))))
        info = EngineInfo("ready", "none", "1", "cpu", "none", "none")
        self._reading = Reading(page, info, Timing(0.001, 0.0, 0.1, 0.101))

    def read(self, *_asked: object) -> Reading:
        """Return the fixed page."""
        return self._reading

    def read_many(self, datas: list[bytes], *_asked: object) -> list[Reading]:
        """Return the fixed page for each image."""
        return [self._reading for _ in datas]

    def check_capacity(self, _priority: object) -> None:
        """Never raise: there is always room."""

    def describe(self) -> EngineInfo:
        """The engine description that the reading carries as well."""
        return self._reading.engine


def _line(number: int) -> Line:
    left, top = 200.125 + number % 7, 60.25 + 17.03 * number
    right, bottom, slant = left + 900.5, top + 14.875, 1.3
    box = ((left, top), (right, top + slant), (right - slant, bottom + slant), (left - slant, bottom))
    return Line(f"{TEXTS[number % len(TEXTS)]} {number}", 0.9 + number % 100 / 1001, box)


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor milliseconds of four calls and the yardstick, each in its fastest round.

    Attributes:
        bare_ms: GET /healthz.
        empty_ms: A tiny image, no lines.
        received_ms: The large image, no lines.
        whole_ms: The large image and all lines.
    """

    bare_ms: float
    empty_ms: float
    received_ms: float
    whole_ms: float
    yardstick_ms: float

    @property
    def translation_ms(self) -> float:
        """Milliseconds to receive the image and write the lines."""
        return self.whole_ms - self.empty_ms

    @property
    def row(self) -> list[float]:
        """The figures in the order of the table."""
        any_ms, receiving_ms = self.empty_ms - self.bare_ms, self.received_ms - self.empty_ms
        writing_ms = self.whole_ms - self.received_ms
        return [self.bare_ms, any_ms, receiving_ms, writing_ms, self.translation_ms, self.yardstick_ms]


YARDSTICK = [_line(number) for number in range(200)]


def main() -> int:
    """Run the benchmark; returns the exit code."""
    args = _arguments()
    print_machine()
    full, empty = (create_app(Settings(), cast(Reader, ReadyReader(lines))).wsgi_app for lines in (args.lines, 0))
    print(f"{args.lines} lines, {args.calls} calls, best of {args.rounds} rounds; goal {GOAL_MS} ms\n")
    print("| format | bare, ms | any request | receiving | writing | translation, ms | yardstick |\n|---|" + "---|" * 6)
    rows = {}
    for small, large in zip(exchanges(scan(0)[:TINY_BYTES]), exchanges(scan(0)), strict=True):
        works = [(empty, BARE), (empty, small), (empty, large), (full, large)]
        cost = rows[large.name] = best_of(works, args.calls, args.rounds)
        print(f"| {large.name} | {' | '.join(f'{ms:.3f}' for ms in cost.row)} |", flush=True)
    formats = {name: asdict(cost) | {"translation_ms": cost.translation_ms} for name, cost in rows.items()}
    write_result("translation", {"lines": args.lines, "formats": formats}, args.out)
    late = [name for name, cost in rows.items() if cost.translation_ms > GOAL_MS]
    print(f"over the goal: {', '.join(late) or 'none'}")
    return 1 if late else 0


def best_of(works: Sequence[tuple[Application, Exchange]], calls: int, rounds: int) -> Cost:
    """Cost of one format, from its four calls. Raises AssertionError on a wrong answer."""
    for application, exchange in works:
        status, answer = call(application, _environ(exchange))
        assert status == 200, f"{exchange.name}: {status} {answer[:300]!r}"
    taken = [
        [*(_round_ms(partial(call, application), exchange, calls) for application, exchange in works), _yardstick_ms()]
        for _ in range(rounds)
    ]
    return Cost(*map(min, zip(*taken, strict=True)))


def _round_ms(work: Callable[[Environ], object], exchange: Exchange, calls: int) -> float:
    environs = [_environ(exchange) for _ in range(calls)]
    began_s = time.process_time()
    for environ in environs:
        work(environ)
    return (time.process_time() - began_s) / calls * 1000


def _yardstick_ms() -> float:
    began_s = time.process_time()
    pickle.dumps(YARDSTICK)
    return (time.process_time() - began_s) * 1000


def _environ(exchange: Exchange) -> Environ:
    return environ_of(exchange.path, exchange.content_type, exchange.body, "GET" if exchange is BARE else "POST")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, help="JSON output file; default results/translation.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
