"""Hashes of an image and of the options that change what an engine does with it, for the crash denylist."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from hashlib import blake2b
from typing import Final

import numpy as np

from ocrsvc.records import FileTask, Task

# Every 16th row: 0.1 ms for a page whose whole hash takes 2 ms.
_STEP: Final = 16
_END_BYTES: Final = 1 << 14


class TaskHash:
    """Of the file or the pixels and their shape, and the options that change what an engine does; see CrashDenylist."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @cached_property
    def sketch(self) -> bytes:
        """8 bytes, of every 16th row, or of both ends of a file."""
        if isinstance(self._task, FileTask):
            return self._hash([self._task.data[:_END_BYTES], self._task.data[-_END_BYTES:]], 8)
        return self._hash([np.ascontiguousarray(self._task.image.pixels[::_STEP]).data], 8)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes, of everything."""
        if isinstance(self._task, FileTask):
            return self._hash([self._task.data], 16)
        return self._hash([np.ascontiguousarray(self._task.image.pixels).data], 16)

    def _hash(self, parts: Iterable[bytes | memoryview], size: int) -> bytes:
        digest = blake2b(digest_size=size, person=_short(self._rest()))
        for part in parts:
            digest.update(part)
        return digest.digest()

    def _rest(self) -> object:
        options, size = self._task.options, _size_of(self._task)
        if options is None:
            return (size,)
        return (size, options.rotate, options.detect, options.upright_boxes)


def _size_of(task: Task) -> object:
    return len(task.data) if isinstance(task, FileTask) else task.image.pixels.shape


def _short(rest: object) -> bytes:
    """Anything as the 16 bytes that blake2b takes beside its data."""
    return blake2b(repr(rest).encode(), digest_size=16).digest()
