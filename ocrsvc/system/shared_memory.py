"""Memory that processes share: records that children inherit by fork, and files in memory that are handed to them.

Neither has a name, so it is gone with the last process that holds it, however that one ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import Final, TypeVar

READ_ONLY: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Seals of a file in memory that stays as it is."""

_T = TypeVar("_T", bound=ctypes.Structure)


def shared_array(kind: type[_T], count: int) -> ctypes.Array[_T]:
    """`count` records, all zero; memory is taken only for those that are touched. Make it before any fork.

    An aligned 8-byte field is read and written in one piece; longer ones may be seen half-written. Nothing locks: a
    lock that a killed process held would stay locked.
    """
    return (kind * count).from_buffer(mmap.mmap(-1, count * ctypes.sizeof(kind)))


def open_memory(name: str, data: bytes = b"", seals: int = 0) -> int:
    """A file in memory, with these bytes and then these seals. Raises OSError, and leaves nothing behind."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(file)
        raise
    return file
