"""Whether a worker is replaced, and why, decided from readings and limits; knows no clock and no process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.telemetry.worker_table import Reason

# Of the machine's memory; the rest is for the arbiter, the page cache and other processes.
_SOFT_SHARE: Final = 0.8
_HARD_SHARE: Final = 0.9
# Of the GPU's memory; no processes but the workers and those that were there before them need any.
_GPU_SOFT_SHARE: Final = 0.85
_GPU_HARD_SHARE: Final = 0.95
# Long enough to see a trend in a few large images, short enough to see a leak that has just begun.
_TREND_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """A worker is replaced at the soft limit, successor first; at the hard limit it stops accepting. 0 is no limit."""

    soft_bytes: int = 0
    hard_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """One kind of memory at one check: held now and after warm-up, the largest step so far, and the recent growth."""

    now_bytes: int = 0
    footprint_bytes: int = 0
    max_step_bytes: int = 0
    growth_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may reach: requests served, seconds since it was ready, and memory. 0 is no limit."""

    max_requests: int = 0
    max_age_s: float = 0.0
    rss: Bounds = field(default_factory=Bounds)
    gpu: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True)
class Readings:
    """What one check of a worker found.

    `replacement_lead_s` is the time from the request for a successor until it serves.
    """

    requests: int
    age_s: float
    replacement_lead_s: float = 0.0
    rss: Usage = field(default_factory=Usage)
    gpu: Usage = field(default_factory=Usage)


class MemoryTrend:
    """How one kind of memory grew in the last five seconds; used by one thread."""

    def __init__(self, footprint_bytes: int) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._footprint_bytes = footprint_bytes
        self._max_step_bytes = 0

    def add(self, now_s: float, now_bytes: int) -> Usage:
        """Add a sample; times never go back."""
        if self._samples:
            self._max_step_bytes = max(self._max_step_bytes, now_bytes - self._samples[-1][1])
        self._samples.append((now_s, now_bytes))
        while now_s - self._samples[0][0] > _TREND_S:
            self._samples.popleft()
        return Usage(now_bytes, self._footprint_bytes, self._max_step_bytes, self._growth_bytes_per_s())

    def break_off(self) -> None:
        """Begin anew: models were loaded or closed, which is no growth."""
        self._samples.clear()

    def _growth_bytes_per_s(self) -> float:
        """Over the samples that are kept; 0 while they span less than a second."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s - first_s >= 1.0 else 0.0


def reason_to_replace(readings: Readings, limits: Limits) -> Reason:
    """The reason to replace the worker, the most pressing one; NONE to keep it."""
    rules = (
        (Reason.GPU_HARD, _is_over(readings.gpu, limits.gpu.hard_bytes)),
        (Reason.RSS_HARD, _is_over(readings.rss, limits.rss.hard_bytes)),
        (Reason.GPU_SOFT, _is_over(readings.gpu, limits.gpu.soft_bytes)),
        (Reason.RSS_SOFT, _is_over(readings.rss, limits.rss.soft_bytes)),
        (Reason.GPU_GROWTH, _will_be_over(readings.gpu, limits.gpu, readings.replacement_lead_s)),
        (Reason.RSS_GROWTH, _will_be_over(readings.rss, limits.rss, readings.replacement_lead_s)),
        (Reason.MAX_REQUESTS, 0 < limits.max_requests <= readings.requests),
        (Reason.MAX_AGE, 0 < limits.max_age_s <= readings.age_s),
    )
    return next((reason for reason, holds in rules if holds), Reason.NONE)


def _is_over(usage: Usage, limit_bytes: int) -> bool:
    return 0 < limit_bytes <= usage.now_bytes


def _will_be_over(usage: Usage, bounds: Bounds, replacement_lead_s: float) -> bool:
    return 0 < bounds.hard_bytes <= expected_bytes(usage, bounds.hard_bytes, replacement_lead_s)


def expected_bytes(usage: Usage, limit_bytes: int, replacement_lead_s: float) -> int:
    """Memory to be expected by the next check, or by the time a successor could serve: the larger of both.

    The trend counts only when half of the headroom is used up: every worker grows quickly at first, and one that is
    replaced for that is replaced by another that does the same.
    """
    halfway = 2 * usage.now_bytes >= usage.footprint_bytes + limit_bytes
    trend_bytes = round(usage.growth_bytes_per_s * replacement_lead_s) if halfway else 0
    return usage.now_bytes + max(usage.max_step_bytes, trend_bytes, 0)


def calibrate(
    soft: int | None,
    hard: int | None,
    *,
    footprint_bytes: int,
    memory_bytes: int,
    workers: int,
    reserved_bytes: int = 0,
) -> Bounds:
    """The limits of one of several workers for its resident memory.

    All workers at their limit and one successor after its warm-up fill 80 % (soft) or 90 % (hard) of the memory. A
    limit that the worker has reached already when it starts to serve cannot be kept by replacing it, and is left off.

    Args:
        soft, hard: What the operator set, in bytes; 0 is none, None asks for a calibrated limit.
        footprint_bytes: Resident memory after warm-up.
        memory_bytes: What the machine or the container has.
        workers: How many share it, without the successor.
        reserved_bytes: What each worker may hold besides, for models.
    """
    reserved_bytes *= workers
    limits = ((soft, _SOFT_SHARE * memory_bytes - reserved_bytes), (hard, _HARD_SHARE * memory_bytes - reserved_bytes))
    return _bounds(limits, footprint_bytes, footprint_bytes, workers)


def calibrate_gpu(
    soft: int | None, hard: int | None, *, footprint_bytes: int, gpu_memory_bytes: int, workers: int
) -> Bounds:
    """The limits of one of several workers for its GPU memory, 85 % (soft) and 95 % (hard) of which are filled.

    By all workers at their limit, and one successor, if that leaves each worker at least half of the headroom that
    it would have without a successor. Else by all workers alone: then a worker drains first when it is replaced, but
    is not replaced all the time.

    The arguments are as for `calibrate`; `gpu_memory_bytes` is without what others than this service hold.
    """
    alone = _GPU_SOFT_SHARE * gpu_memory_bytes / workers
    beside = alone - footprint_bytes / workers
    spared = footprint_bytes if 2 * (beside - footprint_bytes) >= alone - footprint_bytes else 0
    limits = ((soft, _GPU_SOFT_SHARE * gpu_memory_bytes), (hard, _GPU_HARD_SHARE * gpu_memory_bytes))
    return _bounds(limits, footprint_bytes, spared, workers)


def _bounds(
    limits: Iterable[tuple[int | None, float]], footprint_bytes: int, spared_bytes: int, workers: int
) -> Bounds:
    """What the operator set, or all workers fill but for what is spared; none that the worker has reached already."""
    found = (round((fill - spared_bytes) / workers) if given is None else given for given, fill in limits)
    return Bounds(*(limit if limit > footprint_bytes else 0 for limit in found))
