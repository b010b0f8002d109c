"""Prints the progress of a command that takes its time."""

from __future__ import annotations

import sys
from typing import Final

_BAR: Final = 24


def show_progress(done: int, count: int, doing: str = "") -> None:
    """A bar on a terminal, a line elsewhere."""
    filled = _BAR * done // max(1, count)
    end = "\r" if sys.stderr.isatty() and done < count else "\n"
    sys.stderr.write(f"[{'#' * filled}{'.' * (_BAR - filled)}] {done}/{count} {doing:60}{end}")
    sys.stderr.flush()
