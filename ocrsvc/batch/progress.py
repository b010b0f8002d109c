"""How a run stands: what is counted, and how counts and times are written for people."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.batch.objects import without_secrets
from ocrsvc.batch.pages import COPIED, PageGroup, PageResult

WINDOW_S: Final = 30.0
"""Over which pages/s and lines/s are taken."""
LEFT_WINDOW_S: Final = 300.0
"""Over which the time left is worked out: sources have runs of easy and of hard pages."""


@dataclass(slots=True)
class RunCounts:
    """What one command has done; the thread of its run counts, and any may look. `clock` gives monotonic seconds.

    `planned` are the pages of its shard, `done_before` and `failed_before` those with a result of earlier commands,
    `source_bytes` those of files, each page its share of its file; `committed` is Unix time. `worker_pages` and
    `worker_seconds` are by worker, waits for an engine included.
    """

    clock: Callable[[], float] = time.monotonic
    planned: int = 0
    done_before: int = 0
    failed_before: int = 0
    done: int = 0
    copied: int = 0
    lines: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    retried: int = 0
    in_flight: int = 0
    source_bytes: float = 0.0
    result_bytes: int = 0
    parts: int = 0
    committed: float = 0.0
    is_complete: bool = False
    worker_pages: Counter[str] = field(default_factory=Counter)
    worker_seconds: dict[str, float] = field(default_factory=dict)
    _began_s: float = 0.0
    # Moments about a second apart, with pages and lines at each.
    _samples: deque[tuple[float, int, int]] = field(default_factory=deque)

    @property
    def all_done(self) -> int:
        """Pages of the shard that any command has read."""
        return self.done_before + self.done

    @property
    def all_failed(self) -> int:
        """Pages of the shard that have failed."""
        return self.failed_before + self.failed.total()

    @property
    def left(self) -> int:
        """Pages of the shard that have no result."""
        return self.planned - self.all_done - self.all_failed

    @property
    def elapsed_s(self) -> float:
        """Since reading began."""
        return self.clock() - self._began_s if self._samples else 0.0

    def begin(self) -> None:
        """Reading begins; what is planned and known before is set."""
        self._began_s = self.clock()
        self._samples.append((self._began_s, 0, 0))

    def begun(self, group: PageGroup) -> None:
        """The pages of a group are about to be read."""
        self.in_flight += len(group.pages)
        self.source_bytes += group.file.size * len(group.pages) / max(1, group.file.total)

    def page(self, result: PageResult, *, is_tried_again: bool = False) -> None:
        """A page was read or has failed, and counts, unless it is tried again."""
        worker = without_secrets(result.worker)
        self.worker_seconds[worker] = self.worker_seconds.get(worker, 0.0) + result.seconds
        self.attempts += 1
        if is_tried_again:
            self.retried += 1
            return
        if result.error:
            self.failed[result.error] += 1
        else:
            self.done += 1
            self.copied += result.worker == COPIED
        self.worker_pages[worker] += 1
        self.lines += result.lines
        self.result_bytes += len(result.record)

    def commit(self, now: float) -> None:
        """What was read is durable since `now`, Unix time; once a second."""
        self.committed = now
        self._samples.append((self.clock(), self.done + self.failed.total(), self.lines))
        while len(self._samples) > 2 and self._samples[1][0] <= self._samples[-1][0] - LEFT_WINDOW_S:
            self._samples.popleft()

    def rates(self, window_s: float = WINDOW_S) -> tuple[float, float]:
        """Pages and lines a second, taken over so many seconds or since reading began."""
        now_s = self.clock()
        older = (sample for sample in reversed(tuple(self._samples)) if sample[0] <= now_s - window_s)
        then_s, pages, lines = next(older, self._samples[0] if self._samples else (now_s, 0, 0))
        span_s = max(now_s - then_s, 1e-3)
        return (self.done + self.failed.total() - pages) / span_s, (self.lines - lines) / span_s

    @property
    def left_s(self) -> float | None:
        """Seconds until the shard is finished; None without a rate."""
        pages_per_s, _ = self.rates(LEFT_WINDOW_S)
        return self.left / pages_per_s if pages_per_s else None


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
    if not failed:
        return "0 failed"
    first = sorted(failed.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{reason} {count:,}" for reason, count in first[:most])
    return f"{sum(failed.values()):,} failed ({shown}{', …' if len(first) > most else ''})"
