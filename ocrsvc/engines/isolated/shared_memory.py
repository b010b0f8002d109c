"""Shared memory without a name, for the files, pixels and answers that a worker and a child exchange.

A memfd has no entry in any file system: it is gone with the last process that holds it, however that one ends. It is
sealed against shrinking, so that no damage in a child can take away memory that the worker is reading.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

import numpy as np

from ocrsvc.records import Pixels

HEAD_BYTES: Final = 64
"""Before the data; the first byte is 1 once the child has begun with a request, the second once nobody waits for it."""

_ALIGN: Final = 64
_FIRST_BYTES: Final = 1 << 20
# What one huge page needed goes back to the system after it; the file stays as long as it was, and is empty there.
_KEEP_BYTES: Final = 32 << 20


def aligned(count: int) -> int:
    """The next multiple of a cache line."""
    return -(-count // _ALIGN) * _ALIGN


class SharedMemory:
    """One shared area; each side has its own.

    Args:
        fd: The file of an area that another process made; it is taken over. None makes a new one.

    Raises:
        OSError: The system has no memory or no descriptor for it; nothing is left open.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("ocrsvc-pixels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.fd = fd
        try:
            self._map = _mapped(fd)
        except BaseException:
            os.close(fd)
            raise

    @property
    def has_begun(self) -> bool:
        """Whether the child has begun with the request."""
        return self._map[0] == 1

    @has_begun.setter
    def has_begun(self, begun: bool) -> None:
        self._map[0] = int(begun)

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waits for the answer any more; the worker sets it, the child checks it between lines."""
        return self._map[1] == 1

    @is_given_up.setter
    def is_given_up(self, given_up: bool) -> None:
        self._map[1] = int(given_up)

    def reserve(self, count: int) -> None:
        """Have room for so many bytes of data, whichever side made it."""
        needed = HEAD_BYTES + count
        if needed <= len(self._map):
            return
        if needed > (size := os.fstat(self.fd).st_size):
            size = 1 << (needed - 1).bit_length()
            os.ftruncate(self.fd, size)
        # Not resize(): an engine may still hold a view of the old one, which then goes with the last view.
        self._map = mmap.mmap(self.fd, size)

    def put_pixels(self, offset: int, pixels: Pixels) -> None:
        """Copy pixels to an offset of the data; outside the interpreter's lock."""
        self.pixels(offset, pixels.shape)[...] = pixels

    def pixels(self, offset: int, shape: tuple[int, ...]) -> Pixels:
        """The pixels at an offset, as they lie there."""
        return np.ndarray(shape, np.uint8, self._map, HEAD_BYTES + offset)

    def put_bytes(self, offset: int, data: bytes) -> None:
        """Write at an offset of the data."""
        self.reserve(offset + len(data))
        self._map[HEAD_BYTES + offset : HEAD_BYTES + offset + len(data)] = data

    def holds(self, offset: int, count: int) -> bool:
        """Whether so many bytes lie at an offset of the data; they can be read then."""
        if offset < 0 or count < 0:
            return False
        end = offset + count
        if end > len(self._map) - HEAD_BYTES and end > os.fstat(self.fd).st_size - HEAD_BYTES:
            return False
        self.reserve(end)
        return True

    def get_bytes(self, offset: int, count: int) -> bytes:
        """Bytes at an offset of the data, which it `holds`."""
        return self._map[HEAD_BYTES + offset : HEAD_BYTES + offset + count]

    def give_back(self) -> None:
        """Return what only a huge image needed to the system."""
        if len(self._map) > _KEEP_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, _KEEP_BYTES, len(self._map) - _KEEP_BYTES)

    def close(self) -> None:
        """Let go of it. The memory goes when the other side has done so too."""
        self._map.close()
        os.close(self.fd)


def _mapped(fd: int) -> mmap.mmap:
    """The whole area; one that is new gets its first size and can never be made smaller."""
    size = os.fstat(fd).st_size
    if not size:
        size = _FIRST_BYTES
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return mmap.mmap(fd, size)
