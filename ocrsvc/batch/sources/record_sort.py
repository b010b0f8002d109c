"""Sorts more records than memory holds: sorted runs in temporary files, merged."""

from __future__ import annotations

import heapq
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

MOST_BYTES: Final = 48 * 1024 * 1024
"""What is held in memory before it is written as a run."""
# What CPython needs for a bytes object and its place in a list.
_RECORD_BYTES: Final = 41
_SIZE: Final = struct.Struct("<I")


class RecordFile:
    """Records in a temporary file that nobody else sees, and that is gone with this."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="ocrsvc-plan-")  # noqa: SIM115  closed at exit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, record: bytes) -> None:
        """Add a record. Raises OSError."""
        self._file.write(_SIZE.pack(len(record)))
        self._file.write(record)

    def read(self) -> Iterator[bytes]:
        """All records, in the order in which they were written. Raises OSError."""
        self._file.seek(0)
        while head := self._file.read(_SIZE.size):
            yield self._file.read(_SIZE.unpack(head)[0])


def sort_records(records: Iterable[bytes], most_bytes: int = MOST_BYTES) -> Iterator[bytes]:
    """The records in the order of their bytes; what fits into `most_bytes` of memory makes no file. Raises OSError."""
    run: list[bytes] = []
    size = 0
    with ExitStack() as opened:
        files: list[RecordFile] = []
        for record in records:
            run.append(record)
            size += len(record) + _RECORD_BYTES
            if size > most_bytes:
                files.append(opened.enter_context(RecordFile()))
                _write_run(run, files[-1])
                run, size = [], 0
        run.sort()
        if files:
            yield from heapq.merge(*(file.read() for file in files), run)
        else:
            yield from run


def _write_run(run: list[bytes], file: RecordFile) -> None:
    run.sort()
    for record in run:
        file.write(record)
