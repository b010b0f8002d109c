"""Fixed records in anonymous memory that a process shares with all that it forks later; gone with the last of them.

An aligned 8-byte field is read and written in one piece. What is longer can be met half-written by another process, and
nothing here locks: a lock that a killed process held would stay locked.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TypeVar

_T = TypeVar("_T", bound=ctypes.Structure)


def shared_array(kind: type[_T], count: int) -> ctypes.Array[_T]:
    """So many records, all zero; memory is taken only for those that are touched. Make it before any fork."""
    return (kind * count).from_buffer(mmap.mmap(-1, count * ctypes.sizeof(kind)))
