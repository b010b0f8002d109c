"""The pid file of the arbiter: whatever is in it stops nothing, and it is written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from gunicorn import pidfile

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
    """

    fname: str

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(name)
        self.pid: int = pid

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
