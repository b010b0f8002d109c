"""Decides whether and why a worker is replaced, and calculates its limits from the memory of a warm worker."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.gpu import GpuMemoryReader
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.telemetry.worker_table import Reason, WorkerEntry

# Shares of the machine's memory; the rest is for the arbiter, the page cache and other processes.
_SOFT_SHARE: Final = 0.8
_HARD_SHARE: Final = 0.9
# Shares of the GPU's memory, less what other processes hold.
_GPU_SOFT_SHARE: Final = 0.85
_GPU_HARD_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Bounds:
    """Memory limits: at the soft one a successor is loaded, at the hard one the worker stops accepting. 0: no limit."""

    soft_bytes: int = 0
    hard_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """One kind of memory at one check, and its largest step between two checks so far."""

    now_bytes: int = 0
    max_step_bytes: int = 0

    def then(self, now_bytes: int, *, is_step: bool = True) -> Usage:
        """The usage at the next check; loading and closing models is no step, nor is the first check."""
        step_bytes = now_bytes - self.now_bytes if self.now_bytes and is_step else 0
        return Usage(now_bytes, max(self.max_step_bytes, step_bytes))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a worker: requests served, seconds since it was ready, and memory. 0 is no limit."""

    max_requests: int = 0
    max_age_s: float = 0.0
    rss: Bounds = field(default_factory=Bounds)
    gpu: Bounds = field(default_factory=Bounds)


def reason_to_replace(limits: Limits, requests: int, age_s: float, rss: Usage, gpu: Usage) -> Reason:
    """The most pressing reason to replace a worker by its measurements; NONE to keep it."""
    rules = (
        (Reason.GPU_HARD, limits.gpu.hard_bytes, gpu.now_bytes),
        (Reason.RSS_HARD, limits.rss.hard_bytes, rss.now_bytes),
        (Reason.GPU_SOFT, limits.gpu.soft_bytes, gpu.now_bytes),
        (Reason.RSS_SOFT, limits.rss.soft_bytes, rss.now_bytes),
        # Another step like the largest one would reach the hard limit.
        (Reason.GPU_GROWTH, limits.gpu.hard_bytes, gpu.now_bytes + gpu.max_step_bytes),
        (Reason.RSS_GROWTH, limits.rss.hard_bytes, rss.now_bytes + rss.max_step_bytes),
        (Reason.MAX_REQUESTS, limits.max_requests, requests),
        (Reason.MAX_AGE, limits.max_age_s, age_s),
    )
    return next((reason for reason, limit, value in rules if 0 < limit <= value), Reason.NONE)


def request_replacement(entry: WorkerEntry, reason: Reason) -> None:
    """Record why a worker should be replaced; only a more urgent reason overrides an earlier one."""
    if reason.pressure > Reason(entry.reason).pressure:
        entry.wanted_s = entry.wanted_s or time.monotonic()
        entry.reason = reason


def calibrate(
    soft: int | None,
    hard: int | None,
    *,
    footprint_bytes: int,
    memory_bytes: int,
    workers: int,
    reserved_bytes: int = 0,
) -> Bounds:
    """Limits of one worker's resident memory; each worker may hold `reserved_bytes` beyond them.

    All workers at their limit and one successor fill 80 % (soft) or 90 % (hard) of the memory. Limits set by the
    operator (`soft`, `hard`) are kept; 0 is no limit.
    """
    reserved_bytes *= workers
    limits = ((soft, _SOFT_SHARE * memory_bytes - reserved_bytes), (hard, _HARD_SHARE * memory_bytes - reserved_bytes))
    return _bounds(limits, footprint_bytes, footprint_bytes, workers)


def calibrate_gpu(
    soft: int | None, hard: int | None, *, footprint_bytes: int, gpu_memory_bytes: int, workers: int
) -> Bounds:
    """Limits of one worker's GPU memory: 85 % (soft) and 95 % (hard) of the GPU are filled.

    Room for a successor is reserved if each worker keeps half of the headroom that it has without a successor. Else the
    workers alone fill the GPU: a replaced worker then drains first, but workers are not replaced all the time.
    """
    alone_bytes = _GPU_SOFT_SHARE * gpu_memory_bytes / workers
    with_successor_bytes = alone_bytes - footprint_bytes / workers
    has_room = 2 * (with_successor_bytes - footprint_bytes) >= alone_bytes - footprint_bytes
    limits = ((soft, _GPU_SOFT_SHARE * gpu_memory_bytes), (hard, _GPU_HARD_SHARE * gpu_memory_bytes))
    return _bounds(limits, footprint_bytes, footprint_bytes if has_room else 0, workers)


def _bounds(
    limits: Iterable[tuple[int | None, float]], footprint_bytes: int, successor_bytes: int, workers: int
) -> Bounds:
    """The limits as set, or each worker's part of the memory to fill; 0 if the footprint exceeds the limit."""
    chosen = (round((fill - successor_bytes) / workers) if given is None else given for given, fill in limits)
    return Bounds(*(limit if limit > footprint_bytes else 0 for limit in chosen))


def rss_bounds(worker: Any, settings: Settings, reserved_bytes: int = 0) -> Bounds:
    """Limits of a warm worker's resident memory; `reserved_bytes` are left for models that each worker loads later."""
    memory_bytes, footprint_bytes = read_memory_bytes(), worker.entry.rss_bytes
    given = {name: bytes_of(getattr(settings, name), memory_bytes) for name in ("rss_soft_bytes", "rss_hard_bytes")}
    bounds = calibrate(
        *given.values(),
        footprint_bytes=footprint_bytes,
        memory_bytes=memory_bytes,
        workers=worker.cfg.workers,
        reserved_bytes=reserved_bytes,
    )
    _log_disabled_limits(worker, given, bounds, footprint_bytes)
    return bounds


def gpu_bounds(worker: Any, settings: Settings, gauge: GpuMemoryReader | None, gpus: int) -> Bounds:
    """Limits of a warm worker's memory on its GPU; also writes its current use into the worker table."""
    entry, siblings = worker.entry, worker.siblings()
    names = ("gpu_soft_bytes", "gpu_hard_bytes")
    reading = gauge.read(siblings) if gauge is not None else None
    if reading is None:
        for name in names:
            if getattr(settings, name):
                worker.log.error("%s is set, but this worker cannot read a GPU.", variable_of(name))
        return Bounds()
    entry.gpu_bytes, entry.gpu_free_bytes = reading.own_bytes, reading.free_bytes
    given = {name: bytes_of(getattr(settings, name), reading.total_bytes) for name in names}
    workers = math.ceil(worker.cfg.workers / max(1, gpus))
    ours_bytes = reading.total_bytes - max(0, reading.used_bytes - reading.own_bytes - siblings.gpu_bytes)
    bounds = calibrate_gpu(
        *given.values(), footprint_bytes=reading.own_bytes, gpu_memory_bytes=ours_bytes, workers=workers
    )
    _log_disabled_limits(worker, given, bounds, reading.own_bytes)
    if bounds.soft_bytes == 0 and given["gpu_soft_bytes"] is None:
        worker.log.error(
            "The GPU has %s bytes for %s workers of %s bytes each: without room to grow, workers are not replaced "
            "before the GPU is full. Set fewer OCRSVC_WORKERS.",
            *(ours_bytes, workers, reading.own_bytes),
        )
    return bounds


def _log_disabled_limits(worker: Any, given: Mapping[str, int | None], bounds: Bounds, footprint_bytes: int) -> None:
    """Log each limit of the operator that is below the footprint, and therefore off."""
    for (name, limit), used in zip(given.items(), (bounds.soft_bytes, bounds.hard_bytes), strict=True):
        if limit and not used:
            worker.log.error(
                "%s is %s, but a warm worker holds %s bytes: replacing it would not help, so this limit is off.",
                *(variable_of(name), limit, footprint_bytes),
            )
