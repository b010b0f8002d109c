"""The images or bodies that crashed engines or workers lately, in shared memory that workers inherit by fork.

A fixed number of records, each written in one go with its own checksum, and no lock: a worker that is killed in the
middle of a write leaves a record that counts as empty. Two workers that write the same record at once lose one of the
two, which costs a few more child processes and nothing else.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ocrsvc.system.shared_memory import shared_array

CRASHES: Final = 2
"""Crashes after which an image is not read any more; with fewer it is suspect."""

_CAUSE_BYTES: Final = 16


class _Head(ctypes.Structure):
    _fields_ = (("last_expiry_s", ctypes.c_double),)  # monotonic


class _Record(ctypes.Structure):
    _fields_ = (
        ("digest", ctypes.c_uint8 * 16),
        ("expires_s", ctypes.c_double),  # monotonic
        ("when_s", ctypes.c_double),  # since the epoch
        ("cause", ctypes.c_char * _CAUSE_BYTES),
        ("crashes", ctypes.c_uint32),
        ("checksum", ctypes.c_uint32),
    )


_RECORD_BYTES: Final = ctypes.sizeof(_Record)


@dataclass(frozen=True, slots=True)
class Entry:
    """One image that crashed engines: last at `when_s`, since the epoch, and forgotten in `left_s`.

    The hash, 32 hexadecimal digits, is of its file (a PDF's page: its pixels) and what matters of the options. The
    cause is how the engine crashed last, such as "SIGSEGV", "hang", "nonsense".
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
    """The shared list, by digests of 16 bytes. Make it before any fork; any process and thread may call.

    Of more images than `size` the one that expires first is replaced. The clock is the same in all processes.
    """

    def __init__(self, size: int, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._records = shared_array(_Record, size)
        [self._head] = shared_array(_Head, 1)

    def is_empty(self) -> bool:
        """Whether no image is kept; costs well under a microsecond, so ask before a digest is computed."""
        return bool(self._clock() >= self._head.last_expiry_s)

    def crashes(self, digest: bytes) -> int:
        """Crashes on record for an image."""
        if self.is_empty():
            return 0
        return max((entry.crashes for _, entry in self._find(digest)), default=0)

    def note(self, digest: bytes, crashes: int, cause: str) -> None:
        """Keep an image with so many crashes in all, instead of what was kept of it before."""
        number = next((number for number, _ in self._find(digest)), None)
        expires_s = self._clock() + self._keep_s
        record = _Record(tuple(digest), expires_s, time.time(), cause.encode()[:_CAUSE_BYTES], crashes)
        record.checksum = _checksum(record)
        self._records[self._free_or_oldest() if number is None else number] = record
        self._head.last_expiry_s = max(self._head.last_expiry_s, expires_s)

    def clear(self, digest: bytes) -> None:
        """Forget an image that was read without a crash."""
        for number, _ in self._find(digest):
            self._records[number] = _Record()

    def entries(self) -> list[Entry]:
        """Everything kept now, the latest first."""
        return sorted((entry for _, entry in self._current()), key=lambda entry: -entry.when_s)

    def forget(self, digest: str | None = None) -> int:
        """Forget the image with this hash, or all of them; returns how many were kept."""
        found = [(number, entry) for number, entry in self._current() if digest in (None, entry.hash)]
        for number, _ in found:
            self._records[number] = _Record()
        return len({entry.hash for _, entry in found})

    def _find(self, digest: bytes) -> Iterator[tuple[int, Entry]]:
        """The records of an image, found at memory speed."""
        memory, at = bytes(self._records), -1
        while (at := memory.find(digest, at + 1)) >= 0:
            number, rest = divmod(at, _RECORD_BYTES)
            # Another process may have written there since.
            if rest == 0 and (entry := self._read(number)) is not None and entry.hash == digest.hex():
                yield number, entry

    def _current(self) -> Iterator[tuple[int, Entry]]:
        for number in range(len(self._records)):
            entry = self._read(number)
            if entry is not None:
                yield number, entry

    def _read(self, number: int) -> Entry | None:
        """A record; None when it is empty, expired, or another process is writing it."""
        record = _Record.from_buffer_copy(self._records[number])
        left_s = record.expires_s - self._clock()
        if record.crashes == 0 or left_s <= 0 or record.checksum != _checksum(record):
            return None
        cause = record.cause.decode("ascii", "replace")
        return Entry(bytes(record.digest).hex(), cause, record.crashes, record.when_s, left_s)

    def _free_or_oldest(self) -> int:
        """The number of a free record, or else of the one that expires first."""
        kept_s = {number: entry.left_s for number, entry in self._current()}
        return min(range(len(self._records)), key=lambda number: kept_s.get(number, 0.0))


def _checksum(record: _Record) -> int:
    return zlib.crc32(bytes(record)[: _Record.checksum.offset])
