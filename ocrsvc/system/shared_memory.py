"""Shared memory: arrays that child processes inherit by fork, and memory files (memfd) that are passed to them.

Neither has a name in the file system, so the kernel frees it when the last process that holds it ends.
"""

import ctypes
import fcntl
import mmap
import os
from typing import Final, TypeVar

# Seals that make a memory file immutable.
READ_ONLY: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
# Seal for memory that a child writes: reading memory that a compromised child has truncated would crash this process.
KEEPS_LENGTH: Final = fcntl.F_SEAL_SHRINK
_T = TypeVar("_T", bound=ctypes.Structure)


def shared_array(kind: type[_T], count: int) -> ctypes.Array[_T]:
    """Create `count` zeroed records before any fork; a page of them takes memory only when it is first touched.

    Aligned 8-byte fields are read and written atomically; a reader may see longer fields half-written. There is no
    lock, because a killed process would never release it.
    """
    return (kind * count).from_buffer(mmap.mmap(-1, count * ctypes.sizeof(kind)))


def open_memory(name: str, data: bytes = b"", seals: int = 0) -> int:
    """Create a memory file with this content and these seals; returns its file descriptor. Raises OSError."""
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
