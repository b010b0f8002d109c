"""Whether a worker is replaced, and why, decided from readings and limits; and these, from what a warm worker holds."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.gpu import GpuMemoryReader
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.telemetry.worker_table import Reason, WorkerEntry

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
    """What one check of a worker found."""

    requests: int
    age_s: float
    # From the request for a successor until it serves.
    replacement_lead_s: float = 0.0
    rss: Usage = field(default_factory=Usage)
    gpu: Usage = field(default_factory=Usage)


class MemoryTrend:
    """How one kind of memory grew in the last five seconds; used by one thread."""

    def __init__(self, footprint_bytes: int) -> None:
        self._footprint_bytes, self._max_step_bytes = footprint_bytes, 0
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, now_bytes: int) -> Usage:
        """Add a sample; times never go back."""
        if self._samples:
            self._max_step_bytes = max(self._max_step_bytes, now_bytes - self._samples[-1][1])
        self._samples.append((now_s, now_bytes))
        while now_s - self._samples[0][0] > _TREND_S:
            self._samples.popleft()
        first_s, first_bytes = self._samples[0]
        # Samples that span less than a second say nothing.
        growth_bytes_per_s = (now_bytes - first_bytes) / (now_s - first_s) if now_s - first_s >= 1.0 else 0.0
        return Usage(now_bytes, self._footprint_bytes, self._max_step_bytes, growth_bytes_per_s)

    def break_off(self) -> None:
        """Begin anew: models were loaded or closed, which is no growth."""
        self._samples.clear()


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


def request_replacement(entry: WorkerEntry, reason: Reason) -> None:
    """Record why a worker should be replaced; the first reason stands, except for a more urgent one."""
    if reason.pressure > Reason(entry.reason).pressure:
        entry.wanted_s = entry.wanted_s or time.monotonic()
        entry.reason = reason


def _is_over(usage: Usage, limit_bytes: int) -> bool:
    return 0 < limit_bytes <= usage.now_bytes


def _will_be_over(usage: Usage, bounds: Bounds, replacement_lead_s: float) -> bool:
    """Whether the hard limit will be reached by the next check, or by the time a successor could serve.

    The trend counts only when half of the headroom is used up: every worker grows quickly at first.
    """
    halfway = 2 * usage.now_bytes >= usage.footprint_bytes + bounds.hard_bytes
    trend_bytes = round(usage.growth_bytes_per_s * replacement_lead_s) if halfway else 0
    return 0 < bounds.hard_bytes <= usage.now_bytes + max(usage.max_step_bytes, trend_bytes, 0)


def calibrate(
    soft: int | None,
    hard: int | None,
    *,
    footprint_bytes: int,
    memory_bytes: int,
    workers: int,
    reserved_bytes: int = 0,
) -> Bounds:
    """The limits of one of several workers for its resident memory, of which it may hold `reserved_bytes` besides.

    All workers at their limit and one successor fill 80 % (soft) or 90 % (hard) of the memory. What the operator set
    stays; 0 is no limit.
    """
    reserved_bytes *= workers
    limits = ((soft, _SOFT_SHARE * memory_bytes - reserved_bytes), (hard, _HARD_SHARE * memory_bytes - reserved_bytes))
    return _bounds(limits, footprint_bytes, footprint_bytes, workers)


def calibrate_gpu(
    soft: int | None, hard: int | None, *, footprint_bytes: int, gpu_memory_bytes: int, workers: int
) -> Bounds:
    """The same for its GPU memory, 85 % (soft) and 95 % (hard) of which are filled; without what others hold there.

    By all workers and one successor, if that leaves each worker half of the headroom that it would have without; else
    by the workers alone: then one drains first when it is replaced, but is not replaced all the time.
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


def rss_bounds(worker: Any, settings: Settings, reserved_bytes: int = 0) -> Bounds:
    """How much resident memory a worker may hold, without models that it loads later: these may hold the rest."""
    memory_bytes, footprint_bytes = read_memory_bytes(), worker.entry.rss_bytes
    given = {name: bytes_of(getattr(settings, name), memory_bytes) for name in ("rss_soft_bytes", "rss_hard_bytes")}
    bounds = calibrate(
        *given.values(),
        footprint_bytes=footprint_bytes,
        memory_bytes=memory_bytes,
        workers=worker.cfg.workers,
        reserved_bytes=reserved_bytes,
    )
    _log_limits_left_off(worker, given, bounds, footprint_bytes)
    return bounds


def gpu_bounds(worker: Any, settings: Settings, gauge: GpuMemoryReader | None, gpus: int) -> Bounds:
    """How much memory a warm worker may hold of one of the GPUs; writes what it holds now into the worker table."""
    entry, siblings = worker.entry, worker.siblings()
    names = ("gpu_soft_bytes", "gpu_hard_bytes")
    reading = gauge.read(siblings) if gauge is not None else None
    if reading is None:
        for name in names:
            if getattr(settings, name):
                worker.log.error("%s is set, and this worker has no readings of a GPU.", variable_of(name))
        return Bounds()
    entry.gpu_bytes, entry.gpu_free_bytes = reading.own_bytes, reading.free_bytes
    given = {name: bytes_of(getattr(settings, name), reading.total_bytes) for name in names}
    workers = math.ceil(worker.cfg.workers / max(1, gpus))
    ours_bytes = reading.total_bytes - max(0, reading.used_bytes - reading.own_bytes - siblings.gpu_bytes)
    bounds = calibrate_gpu(
        *given.values(), footprint_bytes=reading.own_bytes, gpu_memory_bytes=ours_bytes, workers=workers
    )
    _log_limits_left_off(worker, given, bounds, reading.own_bytes)
    if bounds.soft_bytes == 0 and given["gpu_soft_bytes"] is None:
        worker.log.error(
            "The GPU has %s bytes for %s workers of %s each: no room to grow, so none is replaced in time. "
            "Set fewer OCRSVC_WORKERS.",
            *(ours_bytes, workers, reading.own_bytes),
        )
    return bounds


def _log_limits_left_off(worker: Any, given: Mapping[str, int | None], bounds: Bounds, footprint_bytes: int) -> None:
    """Say so when a limit that was asked for cannot be kept."""
    for (name, asked), kept in zip(given.items(), (bounds.soft_bytes, bounds.hard_bytes), strict=True):
        if asked and not kept:
            worker.log.error(
                "%s is %s, and a worker holds %s after its warm-up: replacing it would not help, so this limit is off.",
                *(variable_of(name), asked, footprint_bytes),
            )
