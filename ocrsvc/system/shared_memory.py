"""Shared memory: arrays that children inherit by fork, and memory files (memfd) that are passed to them.

Neither has a name, so the kernel frees it with the last process that holds it.
"""

import ctypes
import fcntl
import mmap
import os
from typing import Final, TypeVar

# Seals that make a memory file immutable.
READ_ONLY: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_T = TypeVar("_T", bound=ctypes.Structure)


def shared_array(kind: type[_T], count: int) -> ctypes.Array[_T]:
    """Create `count` zeroed records before any fork; only touched records take memory.

    Aligned 8-byte fields are read and written atomically; longer ones may be seen half-written. There is no lock,
    because a killed process would leave it locked.
    """
    return (kind * count).from_buffer(mmap.mmap(-1, count * ctypes.sizeof(kind)))


def open_memory(name: str, data: bytes = b"", seals: int = 0) -> int:
    """Create a memory file with this content and these seals; returns its descriptor. Raises OSError."""
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
