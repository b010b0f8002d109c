"""Parquet and Arrow files of images, read in one child process with a memory limit, whatever sizes they claim."""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import orjson

from ocrsvc.batch.sources.find_files import look_at
from ocrsvc.batch.sources.source_files import Found
from ocrsvc.errors import BadOption, BodyTooLarge, BrokenArchive, SourceGone
from ocrsvc.system.child_process import Program
from ocrsvc.system.thread_plan import set_library_environment

MEMORY_BYTES: Final = 400_000_000
"""A row of 64 MiB takes up to 260 MB while it is unpacked, Python and pyarrow 60 MB."""
CHUNK_BYTES: Final = 64 * 1024
"""The most that one message holds: sockets that keep messages apart take 200 kB at most."""
_PROGRAM: Final = "ocrsvc.batch.sources.table_program"
_ANSWER_S: Final = 300.0
# Other allocators of pyarrow's reserve more address space than the limit.
_ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
_ERRORS: Final = {kind.__name__: kind for kind in (BadOption, BodyTooLarge, BrokenArchive, OSError, SourceGone)}
_OUTSIDE: Final = (
    "It names a file outside the table's folder, which is read only where --column names the column with the paths."
)


class Tables:
    """The child process, started when it is first asked; for any thread. `close` it."""

    def __init__(self) -> None:
        self._program: Program | None = None
        self._lock = threading.Lock()

    def ask(self, table: Sequence[str | None], row: int, most_bytes: int | None = None) -> bytes:
        """What `table_program` answers. Raises OcrsvcError and OSError as reading the table does."""
        request = orjson.dumps({"table": table, "row": row, "most_bytes": most_bytes})
        with self._lock:
            # It ends with the thread that started it: one that has ended before it was asked is no table's fault.
            for _ in range(1 if self._program is None else 2):
                try:
                    answer, data = self._ask(request)
                except (ConnectionError, TimeoutError):
                    self._end()
                    continue
                if "error" in answer:
                    kind, *said = answer["error"]
                    raise _ERRORS.get(kind, BrokenArchive)(*said)
                return data
        limit = f"{MEMORY_BYTES // 1_000_000} MB"
        raise BrokenArchive(f"Reading it takes more memory than {limit}, or 5 minutes, or crashes.", "Repair it.")

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _ask(self, request: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer. Raises ConnectionError where the process has ended, and TimeoutError."""
        if self._program is None:
            environ = os.environ | _ENVIRONMENT
            set_library_environment(environ)
            self._program = Program(_PROGRAM, (os.getpid(), MEMORY_BYTES), environ=environ)
            self._program.wire.settimeout(_ANSWER_S)
        wire = self._program.wire
        wire.send(request)
        answer = orjson.loads(_received(wire.recv(CHUNK_BYTES)))
        data = bytearray()
        while len(data) < answer.get("size", 0):
            data += _received(wire.recv(CHUNK_BYTES))
        return answer, bytes(data)

    def _end(self) -> None:
        if self._program is not None:
            self._program.end()
            self._program = None


class TableArchive:
    """A table; see Archive. Its members are called by their rows, from 0."""

    def __init__(self, kind: str, address: str, column: str | None, tables: Tables) -> None:
        if find_spec("pyarrow") is None:
            raise SourceGone("Parquet and Arrow files need pyarrow.", "Install the extra: ocrsvc[parquet].")
        self._tables, self._column = tables, column
        # A file that is replaced is another table.
        self._table = (kind, address, look_at(address).version)

    def members(self, archive: Found) -> Iterator[Found]:
        """As Archive.members.

        The column is read where it has paths, where its first image is a document, whose pages are to be counted, and
        where only its end says how many rows there are.
        """
        row = 0
        while found := orjson.loads(self._tables.ask((*self._table, self._column), row)):
            for size, head, path, problem in found:
                place = f"{row} {self._column or ''}"
                yield archive.member(f"#{row}", place, size, head.encode("latin-1"), problem, path)
                row += 1

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load; the place is the row, and the column if one was named."""
        row, _, column = place.partition(" ")
        return self._tables.ask((*self._table, column or None), int(row), most_bytes)

    def close(self) -> None:
        """As Archive.close: the process closes what it has not used for long."""


def linked_address(table: str, path: str) -> str:
    """The address of a file that a table names: seen from its folder, or a whole path or URL."""
    is_whole = "://" in path or path.startswith("/")
    return path if is_whole else f"{table.rpartition('/')[0]}/{path}"


def problem_of_linked(table: str, address: str, *, may_lead_away: bool) -> str:
    """Why a file that a table names is not read; "" where nothing is against it."""
    if "\0" in address:
        return "The path that it names has a NUL in it."
    return "" if may_lead_away or _is_below(table.rpartition("/")[0], address) else _OUTSIDE


def _is_below(folder: str, address: str) -> bool:
    """Whether a file is below a folder; on this machine where its links lead decides."""
    scheme, _, rest = address.rpartition("://")
    above, _, below = folder.rpartition("://")
    if scheme != above:
        return False
    if not scheme:
        return Path(rest).resolve().is_relative_to(Path(f"{below}/").resolve())
    return posixpath.normpath(rest).startswith(f"{posixpath.normpath(below)}/")


def _received(message: bytes) -> bytes:
    """Raises ConnectionError where there is no more."""
    if not message:
        raise ConnectionError
    return message
