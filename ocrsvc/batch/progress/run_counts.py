"""Counts what happens in a run, for whoever shows it: a terminal, lines of text, Prometheus."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ocrsvc.batch.ledger.ledger_log import FinishedPart
from ocrsvc.batch.objects.url import without_secrets
from ocrsvc.batch.tasks import PageGroup, PageResult

WINDOW_S: Final = 30.0
"""Over which pages/s and lines/s are taken."""
LEFT_WINDOW_S: Final = 300.0
"""Over which the time left is worked out: sources have runs of easy and of hard pages."""
MOST_WORKERS: Final = 1000
"""Workers that are counted apart; those that come later are counted together."""
OTHERS: Final = "others"
_SAMPLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """What one worker has read, and the seconds that it took, waits for an engine included."""

    pages: int = 0
    failed: int = 0
    lines: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run at a moment.

    Attributes:
        total: Pages of this owner's shard.
        left: Of them neither done nor failed, whoever read the others.
        done, lines: Pages that this owner has read, and lines on them.
        failed: Pages that have failed, by error code.
        attempts: Tries of pages; more than pages where some were tried again.
        retried: Tries that failed and were followed by another.
        in_flight: Pages of the groups that are being read, or wait for a thread.
        source_bytes: Of files, each page its share of its file.
        result_bytes: Of the results' records.
        parts: That this owner has written.
        committed: When results were last made durable, Unix time; 0 before.
        elapsed_s: Since this owner began.
        pages_per_s, lines_per_s: In the last WINDOW_S seconds, this owner's.
        left_s: Until the shard is finished, at the rate of all owners in the last LEFT_WINDOW_S seconds; None where
            there is no rate yet.
        workers: By name.
    """

    total: int = 0
    left: int = 0
    done: int = 0
    lines: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    attempts: int = 0
    retried: int = 0
    in_flight: int = 0
    source_bytes: float = 0.0
    result_bytes: int = 0
    parts: int = 0
    committed: float = 0.0
    elapsed_s: float = 0.0
    pages_per_s: float = 0.0
    lines_per_s: float = 0.0
    left_s: float | None = None
    workers: Mapping[str, WorkerCounts] = field(default_factory=dict)


class RunCounts:
    """The Progress of a run that counts; `snapshot` is for any thread, and for signal handlers.

    Without a lock: one thread writes, each time a whole new value. A handler that interrupts it may print, and for that
    the display of a terminal asks for a snapshot.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s = clock()
        self._now = RunSnapshot()
        self._workers: dict[str, WorkerCounts] = {}
        # Time, own pages, own lines, pages left of all.
        self._samples: deque[tuple[float, int, int, int]] = deque()
        self._oldest = self._recent = (self._began_s, 0, 0, 0)

    def planned(self, total: int, left: int) -> None:
        """As Progress.planned."""
        self._now = replace(self._now, total=total, left=left)
        self._began_s = self._clock()
        # Whoever showed it before has seen no pages.
        self._samples.clear()
        self._sample()

    def begun(self, group: PageGroup) -> None:
        """As Progress.begun."""
        share_bytes = group.file.size * len(group.pages) / max(1, group.file.total)
        now = self._now
        self._now = replace(
            now, in_flight=now.in_flight + len(group.pages), source_bytes=now.source_bytes + share_bytes
        )

    def ended(self, group: PageGroup) -> None:
        """As Progress.ended."""
        self._now = replace(self._now, in_flight=self._now.in_flight - len(group.pages))

    def page(self, result: PageResult, attempts: int) -> None:
        """As Progress.page."""
        del attempts
        now, is_read = self._now, not result.error
        failed = now.failed if is_read else {**now.failed, result.error: now.failed.get(result.error, 0) + 1}
        self._now = replace(
            now,
            left=max(0, now.left - 1),
            done=now.done + is_read,
            failed=failed,
            lines=now.lines + result.lines,
            attempts=now.attempts + 1,
            result_bytes=now.result_bytes + len(result.record),
        )
        self._count_worker(result)
        self._sample()

    def retried(self, result: PageResult) -> None:
        """As Progress.retried."""
        now = self._now
        self._now = replace(now, attempts=now.attempts + 1, retried=now.retried + 1)
        self._count_worker(result, pages=0, failed=0)

    def part(self, part: FinishedPart) -> None:
        """As Progress.part."""
        del part
        self._now = replace(self._now, parts=self._now.parts + 1)

    def committed(self, when: float, left: int) -> None:
        """As Progress.committed."""
        self._now = replace(self._now, committed=when, left=left)
        self._sample()

    def snapshot(self) -> RunSnapshot:
        """How it stands."""
        now, now_s = self._now, self._clock()
        oldest_s, _, _, left = self._oldest
        recent_s, pages, lines, _ = self._recent
        span_s, finished = now_s - recent_s, left - now.left
        read = now.done + sum(now.failed.values()) - pages
        return replace(
            now,
            elapsed_s=now_s - self._began_s,
            workers=dict(self._workers),
            pages_per_s=read / span_s if span_s > 0 else 0.0,
            lines_per_s=(now.lines - lines) / span_s if span_s > 0 else 0.0,
            left_s=now.left * (now_s - oldest_s) / finished if finished > 0 else None,
        )

    def _count_worker(self, result: PageResult, pages: int = 1, failed: int | None = None) -> None:
        name = without_secrets(result.worker)
        if name not in self._workers and len(self._workers) >= MOST_WORKERS:
            name = OTHERS
        had = self._workers.get(name, WorkerCounts())
        self._workers[name] = WorkerCounts(
            had.pages + pages,
            had.failed + (bool(result.error) if failed is None else failed),
            had.lines + result.lines,
            had.seconds + result.seconds,
        )

    def _sample(self) -> None:
        """Remember this moment, once a second, for as long as the longer window."""
        now_s = self._clock()
        if self._samples and now_s - self._samples[-1][0] < _SAMPLE_S:
            return
        now = self._now
        self._samples.append((now_s, now.done + sum(now.failed.values()), now.lines, now.left))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - LEFT_WINDOW_S:
            self._samples.popleft()
        self._oldest = self._samples[0]
        before = (sample for sample in reversed(self._samples) if sample[0] <= now_s - WINDOW_S)
        self._recent = next(before, self._oldest)
