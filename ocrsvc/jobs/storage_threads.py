"""Threads that work on the store until they are stopped, whatever it raises: of the reader and of callbacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ocrsvc.jobs.job_database import LOGGER, StorageFull, storing
from ocrsvc.telemetry.loggable import loggable_error

POLL_S: Final = 1.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_LOG_INTERVAL_S: Final = 60.0


class StorageThreads:
    """So many threads that call `step` each second, at once where it returned True or `wakes` is set.

    After what it raises they wait longer each time, and it is logged now and then.
    """

    def __init__(
        self, name: str, step: Callable[[], bool], count: int = 1, wakes: threading.Event | None = None
    ) -> None:
        self.stopped, self._step, self._wakes, self._quiet_until_s = threading.Event(), step, wakes, 0.0
        self.threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(count)]

    def start(self) -> None:
        """Begin."""
        for thread in self.threads:
            thread.start()

    def stop(self, timeout_s: float) -> None:
        """Leave what is under way to others."""
        self.stopped.set()
        if self._wakes is not None:
            self._wakes.set()
        until_s = time.monotonic() + timeout_s
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        pause_s = 0.0
        while not self.stopped.is_set():
            try:
                with storing():
                    has_more = self._step()
                pause_s = 0.0
            except Exception as error:  # noqa: BLE001  a thread that ended would leave all that comes later undone
                pause_s = min(max(_FIRST_PAUSE_S, 2 * pause_s), _LONGEST_PAUSE_S)
                self._report(error)
                self.stopped.wait(pause_s)
                continue
            if not has_more:
                (self._wakes or self.stopped).wait(POLL_S)

    def _report(self, error: Exception) -> None:
        now_s, shown = time.monotonic(), loggable_error(error)
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_INTERVAL_S
            cause = None if isinstance(error, StorageFull) else shown
            LOGGER.error("%s cannot go on; tried again later: %s", self.threads[0].name, shown, exc_info=cause)
