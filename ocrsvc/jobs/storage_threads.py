"""Threads of the job runner and of callbacks, which continue after any error of the store."""

import threading
import time
from collections.abc import Callable
from typing import Final

from ocrsvc.jobs.job_database import LOGGER, StorageFull, storing
from ocrsvc.telemetry.loggable import loggable_error

POLL_S: Final = 1.0
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 60.0
_LOG_INTERVAL_S: Final = 60.0


class StorageThreads:
    """Threads that call `step` each second: sooner if it returned True or `wakes` is set, later after an error."""

    def __init__(self, name: str, step: Callable[[], bool], count: int, wakes: threading.Event) -> None:
        self.stopped, self._step, self._wakes, self._quiet_until_s = threading.Event(), step, wakes, 0.0
        self.threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(count)]

    def start(self) -> None:
        """Start the threads, which call `step` until `stop`."""
        for thread in self.threads:
            thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop the threads; other workers continue their work."""
        self.stopped.set()
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
                    if not self._step():
                        self._wakes.wait(POLL_S)
                pause_s = 0.0
            except Exception as error:  # noqa: BLE001  the thread must not end
                pause_s = min(max(_FIRST_PAUSE_S, 2 * pause_s), _MAX_PAUSE_S)
                self._report(error)
                self.stopped.wait(pause_s)

    def _report(self, error: Exception) -> None:
        """Log an error, at most once per interval."""
        if time.monotonic() >= self._quiet_until_s:
            self._quiet_until_s, shown = time.monotonic() + _LOG_INTERVAL_S, loggable_error(error)
            cause = None if isinstance(error, StorageFull) else shown
            LOGGER.error("%s failed and will retry: %s", self.threads[0].name, shown, exc_info=cause)
