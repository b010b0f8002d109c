"""A list of images or bodies that recently crashed engines or workers, in shared memory that workers inherit by fork.

It has a fixed number of records, each with a checksum, and no lock: a record that a killed worker left half-written
counts as empty. If two workers write the same record at once, one write is lost; then the image crashes a few more
child processes before it is refused.
"""

import ctypes
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ocrsvc.system.shared_memory import shared_array

CRASHES: Final = 2  # crashes after which an image is refused; with fewer crashes it is only a suspect
_CAUSE_BYTES: Final = 16


class _Head(ctypes.Structure):
    _fields_ = (("last_expiry_s", ctypes.c_double),)  # monotonic seconds


class _Record(ctypes.Structure):
    _fields_ = (
        ("digest", ctypes.c_uint8 * 16),
        ("expires_s", ctypes.c_double),  # monotonic seconds
        ("when_s", ctypes.c_double),  # seconds since the epoch
        ("cause", ctypes.c_char * _CAUSE_BYTES),
        ("crashes", ctypes.c_uint32),
        ("checksum", ctypes.c_uint32),
    )


_RECORD_BYTES: Final = ctypes.sizeof(_Record)


@dataclass(frozen=True, slots=True)
class Entry:
    """One image that crashed engines.

    The latest crash was at `when_s` (since the epoch); the entry expires in `left_s`. The hash, 32 hexadecimal digits,
    covers the file (for a PDF page, its pixels) and the options that affect reading. `cause` is "SIGSEGV", "hang", ….
    """

    hash: str
    cause: str
    crashes: int
    when_s: float
    left_s: float

    @property
    def is_refused(self) -> bool:
        """Whether the image has crashed engines often enough to be refused from now on."""
        return self.crashes >= CRASHES


class CrashDenylist:
    """The shared list, keyed by digests of 16 bytes. Create it before forking; any process and thread may call it.

    When all `size` records are taken, the one that expires first is replaced. The clock is the same in all processes.
    """

    def __init__(self, size: int, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._records = shared_array(_Record, size)
        [self._head] = shared_array(_Head, 1)

    def is_empty(self) -> bool:
        """Whether the list is empty. Takes less than a microsecond, so call it before you compute a digest."""
        return bool(self._clock() >= self._head.last_expiry_s)

    def crashes(self, digest: bytes) -> int:
        """Number of crashes recorded for an image or body."""
        if self.is_empty():
            return 0
        return max((entry.crashes for _, entry in self._find(digest)), default=0)

    def note(self, digest: bytes, crashes: int, cause: str) -> None:
        """Record the total number of crashes of an image, replacing its earlier record."""
        number = next((number for number, _ in self._find(digest)), None)
        expires_s = self._clock() + self._keep_s
        record = _Record(tuple(digest), expires_s, time.time(), cause.encode()[:_CAUSE_BYTES], crashes)
        record.checksum = _checksum(record)
        self._records[self._free_or_oldest() if number is None else number] = record
        self._head.last_expiry_s = max(self._head.last_expiry_s, expires_s)

    def clear(self, digest: bytes) -> None:
        """Delete the record of an image, because it was read without a crash."""
        for number, _ in self._find(digest):
            self._records[number] = _Record()

    def entries(self) -> list[Entry]:
        """All current entries, most recent crash first."""
        return sorted((entry for _, entry in self._current()), key=lambda entry: -entry.when_s)

    def forget(self, digest: str | None = None) -> int:
        """Delete the entry with this hash, or all entries; returns how many were deleted."""
        removed = [(number, entry) for number, entry in self._current() if digest in (None, entry.hash)]
        for number, _ in removed:
            self._records[number] = _Record()
        return len({entry.hash for _, entry in removed})

    def _find(self, digest: bytes) -> Iterator[tuple[int, Entry]]:
        """Find an image's records by searching the raw memory, which is faster than unpacking each record."""
        memory, at = bytes(self._records), -1
        while (at := memory.find(digest, at + 1)) >= 0:
            number, rest = divmod(at, _RECORD_BYTES)
            # Another process may have changed the record after the memory was copied.
            if rest == 0 and (entry := self._read(number)) is not None and entry.hash == digest.hex():
                yield number, entry

    def _current(self) -> Iterator[tuple[int, Entry]]:
        for number in range(len(self._records)):
            entry = self._read(number)
            if entry is not None:
                yield number, entry

    def _read(self, number: int) -> Entry | None:
        """Read a record; None if it is empty, expired or half-written."""
        record = _Record.from_buffer_copy(self._records[number])
        left_s = record.expires_s - self._clock()
        if record.crashes == 0 or left_s <= 0 or record.checksum != _checksum(record):
            return None
        cause = record.cause.decode("ascii", "replace")
        return Entry(bytes(record.digest).hex(), cause, record.crashes, record.when_s, left_s)

    def _free_or_oldest(self) -> int:
        """Index of a free record or, if none is free, of the record that expires first."""
        kept_s = {number: entry.left_s for number, entry in self._current()}
        return min(range(len(self._records)), key=lambda number: kept_s.get(number, 0.0))


def _checksum(record: _Record) -> int:
    return zlib.crc32(bytes(record)[: _Record.checksum.offset])
