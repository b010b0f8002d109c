"""Sorts more records than memory holds: sorted runs in temporary files, merged."""

from __future__ import annotations

import heapq
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import IO, Final

MOST_BYTES: Final = 48 * 1024 * 1024
"""What is held in memory before it is written as a run."""
# What CPython needs for a bytes object and its place in a list.
_RECORD_BYTES: Final = 41
_SIZE: Final = struct.Struct("<I")


def sort_records(records: Iterable[bytes], most_bytes: int = MOST_BYTES) -> Iterator[bytes]:
    """The records in the order of their bytes; what fits into `most_bytes` of memory makes no file. Raises OSError."""
    run: list[bytes] = []
    size = 0
    with ExitStack() as opened:
        files: list[IO[bytes]] = []
        for record in records:
            run.append(record)
            size += len(record) + _RECORD_BYTES
            if size > most_bytes:
                files.append(_write_run(run, opened))
                run, size = [], 0
        run.sort()
        if files:
            yield from heapq.merge(*map(_read_run, files), run)
        else:
            yield from run


def _write_run(run: list[bytes], opened: ExitStack) -> IO[bytes]:
    run.sort()
    # Closed by `opened`.
    file = opened.enter_context(tempfile.TemporaryFile(prefix="ocrsvc-plan-"))  # noqa: SIM115
    for record in run:
        file.write(_SIZE.pack(len(record)))
        file.write(record)
    file.seek(0)
    return file


def _read_run(file: IO[bytes]) -> Iterator[bytes]:
    while head := file.read(_SIZE.size):
        yield file.read(_SIZE.unpack(head)[0])
