"""Memory limits of a worker, from the settings and from what it holds after its warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.gpu import GpuMemoryReader
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.worker.gunicorn_worker import RecyclingWorker
from ocrsvc.worker.replacement_limits import Bounds, calibrate, calibrate_gpu

if TYPE_CHECKING:
    # It needs numpy, which must not come into the arbiter.
    from ocrsvc.models.loaded_models import LoadedModels


class ModelsInProcess:
    """The models that a worker loads and closes; see gunicorn_worker.ChangingModels.

    Args:
        models: Of this worker.
        ready_bytes: What they took when it was ready.

    Attributes:
        room_bytes: What they may take more than that.
    """

    def __init__(self, models: LoadedModels, ready_bytes: int) -> None:
        self._models, self._ready_bytes = models, ready_bytes
        self.room_bytes = max(0, (models.budget_bytes or 0) - ready_bytes)

    def added_bytes(self) -> int:
        """See ChangingModels."""
        return self._models.held_bytes() - self._ready_bytes

    def is_settled(self) -> bool:
        """See ChangingModels."""
        return self._models.is_settled


def rss_bounds(worker: RecyclingWorker, settings: Settings, reserved_bytes: int = 0) -> Bounds:
    """How much resident memory this worker may hold, without models that it loads later: these may hold the rest."""
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


def gpu_bounds(worker: RecyclingWorker, settings: Settings, gauge: GpuMemoryReader | None, gpus: int) -> Bounds:
    """How much GPU memory this worker may hold; writes what it holds now into the worker table.

    Args:
        worker: With the engine loaded and warm.
        settings: The effective settings.
        gauge: Reads the GPU; None when the engine does not compute on one, or it cannot be read.
        gpus: How many the workers share.
    """
    entry, siblings = worker.entry, worker.siblings()
    reading = gauge.read(siblings) if gauge is not None else None
    if reading is None:
        for name in ("gpu_soft_bytes", "gpu_hard_bytes"):
            if getattr(settings, name):
                worker.log.error("%s is set, and this worker has no readings of a GPU.", variable_of(name))
        return Bounds()
    entry.gpu_bytes, entry.gpu_free_bytes = reading.own_bytes, reading.free_bytes
    given = {
        name: bytes_of(getattr(settings, name), reading.total_bytes) for name in ("gpu_soft_bytes", "gpu_hard_bytes")
    }
    workers = math.ceil(worker.cfg.workers / max(1, gpus))
    foreign_bytes = max(0, reading.used_bytes - reading.own_bytes - siblings.gpu_bytes)
    bounds = calibrate_gpu(
        *given.values(),
        footprint_bytes=reading.own_bytes,
        gpu_memory_bytes=reading.total_bytes - foreign_bytes,
        workers=workers,
    )
    _log_limits_left_off(worker, given, bounds, reading.own_bytes)
    if bounds.soft_bytes == 0 and given["gpu_soft_bytes"] is None:
        worker.log.error(
            "The GPU has %s bytes for %s workers of %s each: no room to grow, so none is replaced in time. "
            "Set fewer OCRSVC_WORKERS.",
            *(reading.total_bytes - foreign_bytes, workers, reading.own_bytes),
        )
    return bounds


def _log_limits_left_off(
    worker: RecyclingWorker, given: Mapping[str, int | None], bounds: Bounds, footprint_bytes: int
) -> None:
    """Say so when a limit that was asked for cannot be kept."""
    for (name, asked), kept in zip(given.items(), (bounds.soft_bytes, bounds.hard_bytes), strict=True):
        if asked and not kept:
            worker.log.error(
                "%s is %s, and a worker holds %s after its warm-up: replacing it would not help, so this limit is off.",
                *(variable_of(name), asked, footprint_bytes),
            )
