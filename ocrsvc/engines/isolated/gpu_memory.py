"""Reads how much GPU memory a child holds, where NVML reports it. Runs in the child."""

from __future__ import annotations

import logging
import time
from typing import Final

from ocrsvc.settings.settings import Settings
from ocrsvc.system.gpu import Siblings, open_gpu_memory_reader

_EVERY_S: Final = 1.0


class GpuMemory:
    """Make it before the engine is loaded; read it after.

    Args:
        settings: Of the service; where they say that the engine computes on the CPU, nothing is read.
    """

    def __init__(self, settings: Settings) -> None:
        on_cpu = "cpu" in (settings.device, settings.provider)
        log = logging.getLogger("ocrsvc.isolation.gpu")
        # The worker, which reads the same GPU, logs it when the GPU cannot be read.
        log.disabled = True
        self._reader = None if on_cpu else open_gpu_memory_reader(log, Siblings(), nvml_only=True)
        self._again_s = 0.0
        self._last_reading = (0, 0)

    def read(self) -> tuple[int, int]:
        """Bytes that this process holds, and the GPU's; zeros where NVML does not report them. A second old at most."""
        if self._reader is None or time.monotonic() < self._again_s:
            return self._last_reading
        self._again_s = time.monotonic() + _EVERY_S
        reading = self._reader.read(Siblings())
        is_listed = reading is not None and self._reader.is_listed
        self._last_reading = (reading.own_bytes, reading.total_bytes) if reading and is_listed else (0, 0)
        return self._last_reading
