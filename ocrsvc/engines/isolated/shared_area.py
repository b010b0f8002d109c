"""The memory in which a worker and a child exchange files, pixels and answers.

It is a file without a name, sealed against shrinking, so that no damage in a child can take away memory that the worker
is reading.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from math import prod
from typing import Any, Final

import numpy as np

from ocrsvc.records import Pixels
from ocrsvc.system.shared_memory import open_memory

# Before the data; the first byte is 1 once the child has begun with a request, the second once nobody waits for it.
_HEAD_BYTES: Final = 64
_ALIGN: Final = 64
_FIRST_BYTES: Final = 1 << 20
# What one huge page needed goes back to the system after it; the file stays as long as it was, and is empty there.
_KEEP_BYTES: Final = 32 << 20


class SharedArea:
    """One shared area; each side has its own.

    Args:
        fd: The file of an area that another process made; it is taken over. None makes a new one.

    Raises:
        OSError: The system has no memory or no descriptor for it; nothing is left open.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = open_memory("ocrsvc-pixels", seals=fcntl.F_SEAL_SHRINK) if fd is None else fd
        try:
            if fd is None:
                os.ftruncate(self.fd, _FIRST_BYTES)
            self._map = mmap.mmap(self.fd, 0)
        except BaseException:
            os.close(self.fd)
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

    def put(self, offset: int, data: Pixels | bytes) -> int:
        """Copy data to an offset, outside the interpreter's lock; the offset behind it. Raises OSError without room."""
        pixels = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        self.get(offset, pixels.shape)[...] = pixels
        return offset + -(-pixels.nbytes // _ALIGN) * _ALIGN

    def get(self, offset: int, shape: tuple[int, ...]) -> Pixels:
        """The bytes at an offset, as they lie there. Raises OSError without room."""
        self._reserve(_HEAD_BYTES + offset + prod(shape))
        return np.ndarray(shape, np.uint8, self._map, _HEAD_BYTES + offset)

    def holds(self, offset: Any, shape: tuple[Any, ...]) -> bool:
        """Whether bytes of this shape lie at an offset, whatever it is that a child calls so."""
        numbers = (offset, *shape)
        is_place = all(type(number) is int and number >= 0 for number in numbers)
        return is_place and _HEAD_BYTES + offset + prod(shape) <= os.fstat(self.fd).st_size

    def give_back(self) -> None:
        """Return what only a huge image needed to the system."""
        if len(self._map) > _KEEP_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, _KEEP_BYTES, len(self._map) - _KEEP_BYTES)

    def close(self) -> None:
        """Let go of it. The memory goes when the other side has done so too."""
        self._map.close()
        os.close(self.fd)

    def _reserve(self, size: int) -> None:
        """Have so many bytes mapped, whichever side made them."""
        if size <= len(self._map):
            return
        if size > os.fstat(self.fd).st_size:
            os.ftruncate(self.fd, 1 << (size - 1).bit_length())
        # Not resize(): an engine may still hold a view of the old one, which then goes with the last view.
        self._map = mmap.mmap(self.fd, 0)
