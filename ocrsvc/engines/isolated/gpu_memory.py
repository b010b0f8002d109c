"""Reads how much GPU memory a child holds, where NVML reports it. Runs in the child."""

from __future__ import annotations

import logging
import time
from typing import Final

from ocrsvc.settings.settings import Settings
from ocrsvc.system.gpu import Siblings, open_gauge

_EVERY_S: Final = 1.0


class GpuMemory:
    """Make it before the engine is loaded; read it after.

    Args:
        settings: Of the service; where they say that the engine computes on the CPU, nothing is read.
    """

    def __init__(self, settings: Settings) -> None:
        on_cpu = "cpu" in (settings.device, settings.provider)
        log = logging.getLogger("ocrsvc.isolation.card")
        # The worker, which looks at the same card, says it when the card cannot be read.
        log.disabled = True
        self._gauge = None if on_cpu else open_gauge(log, Siblings(), nvml_only=True)
        self._again_s = 0.0
        self._found = (0, 0)

    def read(self) -> tuple[int, int]:
        """Bytes that this process holds, and the card's; zeros where NVML does not tell. As of a second ago at most."""
        if self._gauge is not None and time.monotonic() >= self._again_s:
            self._again_s = time.monotonic() + _EVERY_S
            reading = self._gauge.read(Siblings())
            is_told = reading is not None and self._gauge.is_listed
            self._found = (reading.own_bytes, reading.total_bytes) if reading is not None and is_told else (0, 0)
        return self._found
