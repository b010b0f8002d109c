"""How a run stands: counts that displays, Prometheus and the end of a command show."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ocrsvc.batch.objects import without_secrets
from ocrsvc.batch.pages import PageGroup, PageResult

WINDOW_S: Final = 30.0
"""Over which pages/s and lines/s are taken."""
LEFT_WINDOW_S: Final = 300.0
"""Over which the time left is worked out: sources have runs of easy and of hard pages."""
MOST_WORKERS: Final = 1000
"""Workers that are counted apart; later ones are counted together."""
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
        total, left: Pages of this shard, and those that have no result yet.
        done, lines: Pages that this command has read, and lines on them.
        failed: Pages that have failed, by error code.
        attempts, retried: Tries of pages, and those that failed and were followed by another.
        in_flight: Pages that are being read, or wait for a thread.
        source_bytes: Of files, each page its share of its file.
        parts: That this command has written.
        committed: When results were last made durable, Unix time; 0 before.
        pages_per_s, lines_per_s: In the last WINDOW_S seconds.
        left_s: Until the shard is finished, at the rate of the last LEFT_WINDOW_S seconds; None without a rate.
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
    """Counts what the thread of a run tells; `snapshot` is for any thread, and for signal handlers.

    It has no lock: one thread writes, each time a whole new value. A handler that interrupts it may print, and for that
    the display of a terminal asks for a snapshot. `clock` gives monotonic seconds.
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
        """The run begins: pages of its shard, and those without a result."""
        self._now = replace(self._now, total=total, left=left)
        self._began_s = self._clock()
        self._samples.clear()
        self._sample()

    def begun(self, group: PageGroup) -> None:
        """The pages of a group are about to be read."""
        share_bytes = group.file.size * len(group.pages) / max(1, group.file.total)
        now = self._now
        self._now = replace(
            now, in_flight=now.in_flight + len(group.pages), source_bytes=now.source_bytes + share_bytes
        )

    def ended(self, group: PageGroup) -> None:
        """Nothing more comes of a group that was begun."""
        self._now = replace(self._now, in_flight=self._now.in_flight - len(group.pages))

    def page(self, result: PageResult) -> None:
        """A page was read or has failed, and counts."""
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
        """A page was not read, and will be tried again."""
        now = self._now
        self._now = replace(now, attempts=now.attempts + 1, retried=now.retried + 1)
        self._count_worker(result, is_tried_again=True)

    def part(self) -> None:
        """A part is in the output."""
        self._now = replace(self._now, parts=self._now.parts + 1)

    def committed(self, when: float, left: int) -> None:
        """What was read is durable since `when`, Unix time; `left` pages of the shard have no result."""
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

    def _count_worker(self, result: PageResult, *, is_tried_again: bool = False) -> None:
        name = without_secrets(result.worker)
        if name not in self._workers and len(self._workers) >= MOST_WORKERS:
            name = OTHERS
        had = self._workers.get(name, WorkerCounts())
        self._workers[name] = WorkerCounts(
            had.pages + (not is_tried_again),
            had.failed + (bool(result.error) and not is_tried_again),
            had.lines + result.lines,
            had.seconds + result.seconds,
        )

    def _sample(self) -> None:
        """Remember this moment, once a second, for as long as the longer window."""
        now_s, now = self._clock(), self._now
        if self._samples and now_s - self._samples[-1][0] < _SAMPLE_S:
            return
        self._samples.append((now_s, now.done + sum(now.failed.values()), now.lines, now.left))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - LEFT_WINDOW_S:
            self._samples.popleft()
        self._oldest = self._samples[0]
        before = (sample for sample in reversed(self._samples) if sample[0] <= now_s - WINDOW_S)
        self._recent = next(before, self._oldest)


def count_of(number: int, name: str) -> str:
    """Such as "1 page" and "12,345 pages"."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def rate_of(per_s: float) -> str:
    """A rate with its significant digits."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2f}"


def share_of(part: float, whole: float) -> str:
    """Per cent, rounded down, so that 100 % means all."""
    return f"{int(100 * part / whole) if whole else 100} %"


def duration_of(seconds: float) -> str:
    """Such as "42 s", "3 min 5 s", "1 h 15 min", "2 d 4 h"."""
    whole = round(seconds)
    for unit, next_unit, size, next_size in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit} {rest} {next_unit}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def seconds_of(value: float) -> str:
    """Seconds of one page, in milliseconds where they are few."""
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.1f} s" if value < 99.5 else duration_of(value)


def bytes_of(size: float) -> str:
    """Such as "12.3 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def failures_of(failed: Mapping[str, int], most: int = 3) -> str:
    """Such as "5 failed (broken_image 3, unsupported_image 2)"; the most frequent reasons."""
    total = sum(failed.values())
    if not total:
        return "0 failed"
    first = sorted(failed.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{reason} {count:,}" for reason, count in first[:most])
    return f"{total:,} failed ({shown}{', …' if len(first) > most else ''})"
