"""Splits the time of one request into stages that follow each other without gaps.

While the request's thread waits for a page, the page's stages count instead, so the sum is the request's whole time.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple, get_args

Stage = Literal["receive", "decode", "wait", "detect", "recognise", "answer"]
"""receive: receive and parse the request; decode: open and decode images; wait: for a permit, the queue or a thread;
detect: find lines; recognise: read lines; answer: everything after that."""

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

MAX_SEGMENTS: Final = 256
"""Largest number of segments kept for a request's trace; the seconds of later segments are still counted."""


class Segment(NamedTuple):
    """A stage with its begin and end on the ledger's clock. A tuple for speed: each request makes a dozen."""

    stage: Stage
    begin_s: float
    end_s: float


class Ledger:
    """Records the stages of one request on a monotonic clock; used by one thread at a time.

    `segments` are the first MAX_SEGMENTS finished ones; `trace_id` is empty unless the request's trace is sampled.
    """

    def __init__(self, began_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.segments: list[Segment] = []
        self.pages = 0
        self.trace_id = ""
        self._clock = clock
        self._stage: Stage = "receive"
        self._since_s = began_s
        self._spent_s = dict.fromkeys(STAGES, 0.0)

    def enter(self, stage: Stage) -> Stage:
        """Begin a stage; return the previous one."""
        before = self._stage
        if stage != before:
            self._add(before, self._clock())
            self._stage = stage
        return before

    @contextmanager
    def during(self, stage: Stage) -> Iterator[None]:
        """Count the block's time for a stage, then return to the previous stage."""
        before = self.enter(stage)
        try:
            yield
        finally:
            self.enter(before)

    def note_page(self, phases: Sequence[Segment]) -> None:
        """Count a page that was read; time in `phases` is charged to their stages, the rest to the current stage."""
        now_s = self._clock()
        self.pages += 1
        for phase in phases:
            begin_s, end_s = max(phase.begin_s, self._since_s), min(phase.end_s, now_s)
            if begin_s < end_s:
                self._add(self._stage, begin_s)
                self._add(phase.stage, end_s)
        self._add(self._stage, now_s)

    def seconds(self) -> Mapping[str, float]:
        """The seconds spent in each stage so far; their sum is the time since the request began."""
        spent_s = {str(stage): stage_s for stage, stage_s in self._spent_s.items()}
        spent_s[self._stage] += self._clock() - self._since_s
        return spent_s

    def close(self) -> float:
        """End the last stage; return the end of the request on the ledger's clock."""
        now_s = self._clock()
        self._add(self._stage, now_s)
        return now_s

    def _add(self, stage: Stage, end_s: float) -> None:
        """Add the time since the previous segment's end, up to `end_s`, to this stage."""
        begin_s, self._since_s = self._since_s, end_s
        self._spent_s[stage] += end_s - begin_s
        if self.segments and self.segments[-1].stage == stage:
            self.segments[-1] = Segment(stage, self.segments[-1].begin_s, end_s)
        elif begin_s < end_s and len(self.segments) < MAX_SEGMENTS:
            self.segments.append(Segment(stage, begin_s, end_s))


class NoLedger(Ledger):
    """A Ledger that records nothing; thread-safe."""

    def enter(self, stage: Stage) -> Stage:
        """Do nothing: NoLedger records no times."""
        return stage

    def note_page(self, phases: Sequence[Segment]) -> None:
        """Do nothing: NoLedger records no times."""


NO_LEDGER: Final = NoLedger(0.0)


def server_timing(seconds: Mapping[str, float]) -> str:
    """The header Server-Timing (https://www.w3.org/TR/server-timing/): milliseconds of each stage and in total."""
    entries = {**seconds, "total": sum(seconds.values())}
    return ", ".join(f"{name};dur={1000 * spent_s:.3f}" for name, spent_s in entries.items())
