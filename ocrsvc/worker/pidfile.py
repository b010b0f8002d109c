"""The pid file of the arbiter, written again for as long as it cannot be written.

Without a pid file the service serves all the same, so a folder that is gone or full is a line in the log, and no end.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gunicorn import pidfile

from ocrsvc.worker.replacement_policy import backoff_s

_MODE: Final = 0o644


def remove_stale(name: str) -> None:
    """Remove a file that names no living process; at the start, which gunicorn ends at a number that can be none."""
    with suppress(OSError):
        if PidFile(name, os.getpid()).validate() is None:
            Path(name).unlink()


class PidFile(pidfile.Pidfile):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's pid file, which exists already when this is made at the start.

    Args:
        name: Its path.
        pid: The arbiter's.
        clock: Monotonic seconds.
    """

    fname: str

    def __init__(self, name: str, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name)
        self.pid: int = pid
        self._clock = clock
        self._due_s = math.inf
        self._failures = 0

    def validate(self) -> int | None:
        """The living process that the file names; None for any other text.

        Raises:
            OSError: It cannot be read.
        """
        try:
            pid: int | None = super().validate()
        except (OverflowError, ValueError):
            return None
        # A negative number would be a group of processes.
        return pid if pid and pid > 0 else None

    def check_again(self) -> None:
        """Have `keep` see to it that the file is there."""
        self._due_s = 0.0

    def keep(self, log: logging.Logger) -> None:
        """Write the file, if it is time; what goes wrong is logged, and tried again later."""
        if self._clock() < self._due_s:
            return
        try:
            self.create(self.pid)
        except (OSError, RuntimeError) as error:
            self._failures += 1
            wait_s = backoff_s(self._failures)
            self._due_s = self._clock() + wait_s
            log.error(
                "The pid file cannot be written: %s. The next try is in %.0f s; the service goes on.", error, wait_s
            )
        else:
            self._due_s, self._failures = math.inf, 0

    def create(self, pid: int) -> None:
        """Write it, whole or not at all.

        Raises:
            OSError: It cannot be written.
            RuntimeError: It is another living process's.
        """
        other = self.validate()
        if other == pid:
            return
        if other:
            raise RuntimeError(f"process {other} lives, and {self.fname} is its pid file")
        fresh = Path(f"{self.fname}.{pid}")
        try:
            fresh.write_text(f"{pid}\n", encoding="ascii")
            fresh.chmod(_MODE)
            fresh.replace(self.fname)
        except OSError:
            with suppress(OSError):
                fresh.unlink()
            raise
