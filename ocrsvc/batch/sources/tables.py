"""Parquet files of images, read in a child process with a memory limit.

The child runs this file. It receives JSON objects: `table` (address, version, column), `row`, and `max_bytes`, the
limit of the row's image, or null to list rows from `row` on. It answers with a JSON object: `error`, a class name
with arguments, or `size`, the number of bytes that follow.
"""

import os
import re
import socket
import sys
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Final

import orjson

from ocrsvc.batch.objects import look_at, open_file
from ocrsvc.batch.sources.source_files import HEAD_BYTES, Found, too_large
from ocrsvc.errors import BadOption, BodyTooLarge, BrokenArchive, OcrsvcError, SourceGone
from ocrsvc.system.child_process import Program
from ocrsvc.system.sandbox import end_with_parent, limit_resources

# Memory limit of the child: unpacking a row of 64 MiB takes up to 260 MB, Python and pyarrow 60 MB.
_MEMORY_BYTES: Final = 400_000_000
# Largest message; sockets that preserve message boundaries take at most 200 kB.
_CHUNK_BYTES: Final = 64 * 1024
_ANSWER_S: Final = 300.0
# pyarrow's other allocators reserve more address space than the memory limit allows.
_ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
_ERRORS: Final = {kind.__name__: kind for kind in (BadOption, BodyTooLarge, BrokenArchive, OSError, SourceGone)}
_MAX_OPEN: Final = 4
_MAX_ROWS: Final = 1000
_PATHS_AT_ONCE: Final = 16
_WINDOW_BYTES: Final = 24 * 1024 * 1024
# A table may always have this many rows. More are refused if the file has fewer bytes than rows.
_FREE_ROWS: Final = 1_000_000
_IMAGES: Final = ("image", "img", "bytes", "content")
_PATHS: Final = ("path", "image_path", "file_name", "file", "image")
# PDF and TIFF signatures, as in `imaging.document`, which would take the child half a second to import.
_DOCUMENT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,16}%PDF-|II[*+]\0|MM\0[*+]")
_BINARY: Final = ("binary", "large_binary", "binary_view")
_TEXT: Final = ("string", "large_string", "string_view")


class Tables:
    """The child process that reads tables, started by the first request. Thread-safe; the owner must `close` it."""

    def __init__(self) -> None:
        self._program: Program | None = None
        self._lock = threading.Lock()

    def ask(self, table: Sequence[str | None], row: int, max_bytes: int | None = None) -> bytes:
        """The image in a row; without `max_bytes`, a JSON list of rows from `row` on. Raises OcrsvcError, OSError."""
        request = orjson.dumps({"table": table, "row": row, "max_bytes": max_bytes})
        with self._lock:
            # Retry once with a new child: the old one may have ended together with the thread that started it.
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
        raise BrokenArchive(f"Reading it takes more than {_MEMORY_BYTES // 1_000_000} MB or 5 minutes, or crashes.")

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, request: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a request, and receive its answer. Raises ConnectionError if the child has ended, and TimeoutError."""
        if self._program is None:
            from ocrsvc.system.thread_plan import set_library_environment

            environ = os.environ | _ENVIRONMENT
            set_library_environment(environ)
            self._program = Program(__name__, (os.getpid(),), environ=environ)
            self._program.wire.settimeout(_ANSWER_S)
        self._program.wire.send(request)
        pieces = [self._program.wire.recv(_CHUNK_BYTES)]
        answer = orjson.loads(pieces[0] or b"{}")
        missing = answer.get("size", 0)
        while missing and pieces[-1]:
            pieces.append(self._program.wire.recv(_CHUNK_BYTES))
            missing -= len(pieces[-1])
        if not pieces[-1]:
            raise ConnectionError
        return answer, b"".join(pieces[1:])

    def _end(self) -> None:
        if self._program is not None:
            self._program.end()
            self._program = None


class TableArchive:
    """A table; see Archive. Its members are named by row numbers, from 0."""

    def __init__(self, address: str, column: str | None, tables: Tables) -> None:
        if find_spec("pyarrow") is None:
            raise SourceGone("Parquet files need pyarrow.", "Install the extra: pip install '.[parquet]'.")
        self._tables, self._column = tables, column
        # The version tells the child when the file was replaced and must be opened again.
        self._table = (address, look_at(address).version)

    def members(self, archive: Found) -> Iterator[Found]:
        """List the rows. Reads the column only if it has paths, or documents, whose pages must be counted."""
        row = 0
        while found := orjson.loads(self._tables.ask((*self._table, self._column), row)):
            for size, head, path, problem in found:
                place = f"{row} {self._column or ''}"
                yield archive.member(f"#{row}", place, size, head.encode("latin-1"), problem, path)
                row += 1

    def load(self, place: str, max_bytes: int) -> bytes:
        row, _, column = place.partition(" ")
        return self._tables.ask((*self._table, column or None), int(row), max_bytes)

    def close(self) -> None:
        """Do nothing: the child keeps the last few tables open, and closes the others."""


class _Table:
    """In the child: a table, with its column of images or of paths to images.

    Rows are read one at a time, because many rows may decode to copies of one large value. The last rows are kept,
    because callers request them slightly out of order.
    """

    def __init__(self, address: str, column: str | None) -> None:
        from pyarrow import parquet

        file = open_file(address)
        self._size = file.seek(0, os.SEEK_END)
        # Read the column page by page, not in whole column chunks, which may have gigabytes.
        self._parquet = parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        about = self._parquet.metadata
        # Limit the rows by the file's size: a file of 40 kB may state 20 million empty rows.
        if not 0 <= about.num_rows <= max(_FREE_ROWS, self._size):
            raise BrokenArchive(f"It says that it has {about.num_rows} rows in {self._size} bytes.")
        groups = map(about.row_group, range(about.num_row_groups))
        self._starts = list(accumulate((group.num_rows for group in groups), initial=0))
        self._name, self._field, self._has_paths = _find_column(self._parquet.schema_arrow, column)
        self._values: Iterator[Any] = iter(())
        self._kept: deque[Any] = deque()
        self._kept_bytes, self._next = 0, -1

    def rows(self, begin: int) -> list[tuple[int, str, str, str]]:
        """Up to _MAX_ROWS rows from `begin` on, as (size, first bytes, path, problem); empty after the last row."""
        if self._is_listed_unread:
            total = self._starts[-1]
            return [(self._size // total, "", "", "")] * min(_MAX_ROWS, total - begin)
        found: list[tuple[int, str, str, str]] = []
        try:
            while len(found) < _MAX_ROWS and (value := self._value(begin + len(found))) is not None:
                data = value.as_buffer() if value.is_valid else b""
                if self._has_paths:
                    path = bytes(data).decode()
                    found.append((0, "", path, "" if path else "The row has no path."))
                else:
                    found.append((len(data), bytes(data[:HEAD_BYTES]).decode("latin-1"), "", ""))
        except Exception:
            # Return the rows before the error. With -1, the next request reads again, and so raises the error.
            self._next = -1
            if not found:
                raise
        return found

    def image(self, row: int, max_bytes: int) -> bytes:
        """The image in a row. Raises BrokenArchive, BodyTooLarge and what pyarrow raises."""
        value = self._value(row)
        if value is None or not value.is_valid:
            raise BrokenArchive("The row has no image.", "Leave the row out.")
        buffer = value.as_buffer()
        if buffer.size > max_bytes:
            raise too_large(buffer.size, max_bytes)
        return buffer.to_pybytes()  # type: ignore[no-any-return]

    @cached_property
    def _is_listed_unread(self) -> bool:
        """Whether `rows` need not read the images. It must if the first image is a PDF or TIFF, to count its pages."""
        if self._has_paths:
            return False
        first = self._value(0) if self._starts[-1] else None
        return first is None or not first.is_valid or not _DOCUMENT.match(bytes(first.as_buffer()[:HEAD_BYTES]))

    def _value(self, row: int) -> Any:
        """The column's value in a row; None after the last row."""
        group = max(0, bisect_right(self._starts, row) - 1)
        if row < self._next - len(self._kept) or self._starts[group] > self._next or self._next < 0:
            self._values, self._next = self._read(group), self._starts[group]
            self._kept, self._kept_bytes = deque(), 0
        while self._next <= row:
            if (value := next(self._values, None)) is None:
                return None
            self._kept.append(value)
            self._next += 1
            self._kept_bytes += _bytes_of(value)
            while len(self._kept) > 1 and (self._kept_bytes > _WINDOW_BYTES or len(self._kept) > _MAX_ROWS):
                self._kept_bytes -= _bytes_of(self._kept.popleft())
        return self._kept[row - self._next]

    def _read(self, group: int) -> Iterator[Any]:
        """Yield the column's values from row group `group` to the end of the file."""
        at_once, path = _PATHS_AT_ONCE if self._has_paths else 1, ".".join(filter(None, (self._name, self._field)))
        for number in range(group, len(self._starts) - 1):
            for batch in self._parquet.iter_batches(at_once, row_groups=[number], columns=[path], use_threads=False):
                values = batch.column(0)
                yield from values.field(self._field) if self._field else values


def _bytes_of(value: Any) -> int:
    return int(value.as_buffer().size) if value.is_valid else 0


def _find_column(schema: Any, wanted: str | None) -> tuple[str, str, bool]:
    """Find the column of images: name, field if it is a struct, and whether it has paths. Raises BrokenArchive."""
    by_likelihood = sorted(schema.names, key=lambda name: _IMAGES.index(name) if name in _IMAGES else len(_IMAGES))
    for has_paths in (False, True):
        for name in by_likelihood if wanted is None else [wanted]:
            if schema.get_field_index(name) < 0 or (has_paths and wanted is None and name not in _PATHS):
                continue
            kind, field = schema.field(name).type, ""
            if str(kind).startswith("struct"):
                field = "path" if has_paths else "bytes"
                if kind.get_field_index(field) < 0:
                    continue
                kind = kind.field(field).type
            if str(kind) in (_TEXT if has_paths else _BINARY):
                return name, field, has_paths
    columns = ", ".join(f"{field.name} ({field.type})"[:80] for field in list(schema)[:20])
    what = "column with images" if wanted is None else f"column {wanted} with images"
    raise BrokenArchive(f"It has no {what}; its columns are {columns}.", "Name one with --column.")


@lru_cache(maxsize=_MAX_OPEN)
def _open_table(address: str, _version: str, column: str | None) -> _Table:
    return _Table(address, column)


def _answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Answer a request with a JSON object and the data that follow it. An error clears the cache of open tables."""
    row, max_bytes = request["row"], request["max_bytes"]
    try:
        table = _open_table(*request["table"])
        data = orjson.dumps(table.rows(row)) if max_bytes is None else table.image(row, max_bytes)
        return {"size": len(data)}, data
    except Exception as error:  # noqa: BLE001  the parent says what becomes of it
        failure = error
    _open_table.cache_clear()
    return {"error": _error_of(failure)}, b""


def _error_of(error: Exception) -> list[Any]:
    if isinstance(error, OSError) and error.errno is not None:
        return ["OSError", error.errno, error.strerror]
    if isinstance(error, MemoryError):
        error = BrokenArchive(f"Reading it takes more memory than {_MEMORY_BYTES // 1_000_000} MB.")
    elif not isinstance(error, OcrsvcError):
        # All other exceptions come from pyarrow; their text says what is wrong with the file.
        error = BrokenArchive(f"The table is cut off or damaged: {str(error)[:200]}.")
    return [type(error).__name__, error.detail, error.remedy]


def main() -> None:
    """Answer requests until the parent closes the connection."""
    end_with_parent(int(sys.argv[1]))
    limit_resources(_MEMORY_BYTES, 0, 256)
    with socket.socket(fileno=0) as wire:
        while request := wire.recv(_CHUNK_BYTES):
            answer, data = _answer(orjson.loads(request))
            wire.send(orjson.dumps(answer))
            for at in range(0, len(data), _CHUNK_BYTES):
                wire.send(data[at : at + _CHUNK_BYTES])


if __name__ == "__main__":
    main()
