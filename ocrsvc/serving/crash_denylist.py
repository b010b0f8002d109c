"""The images that crashed engines lately, in shared memory that the arbiter makes and every worker inherits by fork.

A fixed number of 64-byte records, each written in one go with its own checksum, and no lock: a worker that is killed in
the middle of a write leaves a record that counts as empty. Two workers that write the same record at once lose one of
the two, which costs a few more child processes and nothing else.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

CRASHES: Final = 2
"""Crashes after which an image is not read any more; with fewer it is suspect."""

_HEAD_BYTES: Final = 64
_RECORD: Final = struct.Struct("<8s16sdd16sI")  # sketch, digest, expires (monotonic), when (epoch), cause, crashes
_SUM: Final = struct.Struct("<I")
_RECORD_BYTES: Final = _RECORD.size + _SUM.size
_EMPTY: Final = bytes(_RECORD_BYTES)


class Fingerprint(Protocol):
    """Identifies an image: 8 bytes that are cheap to compute, and 16 that are certain."""

    @property
    def sketch(self) -> bytes:
        """8 bytes; different images seldom share them."""
        ...

    @property
    def digest(self) -> bytes:
        """16 bytes; different images do not share them."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One image that crashed engines.

    Attributes:
        hash: Of its file (a PDF's page: its pixels) and what matters of the options, as 32 hexadecimal digits.
        cause: How the engine crashed last, such as "SIGSEGV", "hang", "nonsense".
        crashes: How often it did; from CRASHES on the image is refused.
        when_s: Seconds since the epoch of the last one.
        left_s: Seconds until the entry is forgotten.
    """

    hash: str
    cause: str
    crashes: int
    when_s: float
    left_s: float

    @property
    def is_refused(self) -> bool:
        """Whether the image is answered without an engine."""
        return self.crashes >= CRASHES


class CrashDenylist:
    """The shared list. Make it before any fork; all methods may be called in any process and thread.

    Args:
        size: Most images kept; the one that expires first is replaced.
        keep_s: Seconds after which an image gets another chance.
        clock: Monotonic seconds, the same in all processes.
    """

    def __init__(self, size: int, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._memory = mmap.mmap(-1, _HEAD_BYTES + size * _RECORD_BYTES)
        self._offsets = range(_HEAD_BYTES, _HEAD_BYTES + size * _RECORD_BYTES, _RECORD_BYTES)
        # One aligned 8-byte store, so that reading it before every image costs next to nothing.
        self._last_expiry = ctypes.c_double.from_buffer(self._memory)

    def is_empty(self) -> bool:
        """Whether no image is kept; costs well under a microsecond."""
        return self._clock() >= self._last_expiry.value

    def crashes(self, image: Fingerprint) -> int:
        """Crashes on record for an image; its digest is only asked for when the sketch is found."""
        if self.is_empty():
            return 0
        return max((entry.crashes for _, entry in self._find(image)), default=0)

    def note(self, image: Fingerprint, crashes: int, cause: str) -> None:
        """Keep an image with so many crashes in all, instead of what was kept of it before."""
        now = self._clock()
        offset = next((offset for offset, _ in self._find(image)), None) or self._free_or_oldest(now)
        expires = now + self._keep_s
        body = _RECORD.pack(image.sketch, image.digest, expires, time.time(), cause.encode()[:16], crashes)
        self._memory[offset : offset + _RECORD_BYTES] = body + _SUM.pack(zlib.crc32(body))
        self._last_expiry.value = max(self._last_expiry.value, expires)

    def clear(self, image: Fingerprint) -> None:
        """Forget an image that was read without a crash."""
        for offset, _ in self._find(image):
            self._clear(offset)

    def entries(self) -> list[Entry]:
        """Everything kept now, the latest first."""
        return sorted((entry for _, entry in self._current()), key=lambda entry: -entry.when_s)

    def forget(self, digest: str | None = None) -> int:
        """Forget the image with this hash, or all of them; returns how many were kept."""
        found = [(offset, entry) for offset, entry in self._current() if digest in (None, entry.hash)]
        for offset, _ in found:
            self._clear(offset)
        return len({entry.hash for _, entry in found})

    def _clear(self, offset: int) -> None:
        self._memory[offset : offset + _RECORD_BYTES] = _EMPTY

    def _find(self, image: Fingerprint) -> Iterator[tuple[int, Entry]]:
        """The records of an image. mmap.find searches all of them at memory speed."""
        at = self._memory.find(image.sketch, _HEAD_BYTES)
        while at >= 0:
            if (at - _HEAD_BYTES) % _RECORD_BYTES == 0:
                entry = self._read(at)
                if entry is not None and entry.hash == image.digest.hex():
                    yield at, entry
            at = self._memory.find(image.sketch, at + 1)

    def _current(self) -> Iterator[tuple[int, Entry]]:
        for offset in self._offsets:
            entry = self._read(offset)
            if entry is not None:
                yield offset, entry

    def _read(self, offset: int) -> Entry | None:
        """The record at an offset; None when it is empty, expired, or another process is writing it."""
        record = self._memory[offset : offset + _RECORD_BYTES]
        body, (checksum,) = record[: _RECORD.size], _SUM.unpack(record[_RECORD.size :])
        _, digest, expires, when_s, cause, crashes = _RECORD.unpack(body)
        left_s = expires - self._clock()
        if crashes == 0 or left_s <= 0 or checksum != zlib.crc32(body):
            return None
        return Entry(digest.hex(), cause.rstrip(b"\0").decode("ascii", "replace"), crashes, when_s, left_s)

    def _free_or_oldest(self, now: float) -> int:
        """The offset of a free record, or else of the one that expires first."""

        def left_s(offset: int) -> float:
            entry = self._read(offset)
            return entry.left_s if entry is not None else -now

        return min(self._offsets, key=left_s)
