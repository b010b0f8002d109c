"""The process that reads tables, held to a memory limit: it lists their rows and gives the images in them.

A request on standard input is a JSON object: `table` (kind, address, version, column), `row`, and `most_bytes` for the
image in that row, or null for what is known of the rows from that one on, none at the end. An answer is a JSON object:
`error`, a class with its arguments, or `size`, which says how many bytes follow.
"""

from __future__ import annotations

import os
import socket
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final

import orjson
import pyarrow as pa
from pyarrow import ipc, parquet, types

from ocrsvc.batch.sources.find_files import open_file
from ocrsvc.batch.sources.source_files import HEAD_BYTES, too_large
from ocrsvc.batch.sources.tables import CHUNK_BYTES, MEMORY_BYTES
from ocrsvc.errors import BrokenArchive, OcrsvcError
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.system.sandbox.restrict import end_with_parent, limit_resources

_MOST_OPEN: Final = 4
_OPEN_FILES: Final = 256
_MOST_ROWS: Final = 1000
_PATHS_AT_ONCE: Final = 16
_BUFFER_BYTES: Final = 1024 * 1024
_WINDOW_BYTES: Final = 24 * 1024 * 1024
_FREE_ROWS: Final = 1_000_000
"""That may be empty, or the same."""
_IMAGES: Final = ("image", "img", "bytes", "content")
_PATHS: Final = ("path", "image_path", "file_name", "file", "image")
_BINARY: Final = ("binary", "large_binary", "binary_view")
_TEXT: Final = ("string", "large_string", "string_view")
_FAILURES: Final = (pa.ArrowException, OcrsvcError, OSError, MemoryError, UnicodeDecodeError, IndexError)

Row = tuple[int, str, str, str]
"""Size, head, path and problem of a member."""


class Table:
    """A table with the column that holds images, or paths of them.

    Rows are read one at a time: what one unpacks to is known only afterwards, as a dictionary may say each of its
    values a thousand times. What was read last is kept, so that callers need not ask quite in order.
    """

    def __init__(self, kind: str, address: str, column: str | None) -> None:
        self._file = open_file(address)
        self._is_parquet = kind == "parquet"
        self._starts = [0]
        if self._is_parquet:
            # A column's pages one after another, and not whole chunks, which may have gigabytes.
            self._parquet = parquet.ParquetFile(self._file, pre_buffer=False, buffer_size=_BUFFER_BYTES)
            schema, about = self._parquet.schema_arrow, self._parquet.metadata
            self._size = self._file.seek(0, os.SEEK_END)
            _check_rows(about.num_rows, self._size)
            groups = map(about.row_group, range(about.num_row_groups))
            self._starts = list(accumulate((group.num_rows for group in groups), initial=0))
        else:
            self._is_stream = self._file.read(6) != b"ARROW1"
            schema = self._open_arrow(None).schema
        self._name, self._field, self._has_paths = _find_column(schema, column)
        self._number = schema.get_field_index(self._name)
        self._values: Iterator[Any] = iter(())
        self._kept: deque[Any] = deque()
        self._kept_bytes, self._next = 0, -1

    def rows(self, begin: int) -> list[Row]:
        """What is known of the rows from this one on until there are many; none at the end."""
        if self._is_listed_unread:
            total = self._starts[-1]
            return [(self._size // total, "", "", "")] * min(_MOST_ROWS, total - begin)
        found: list[Row] = []
        try:
            while len(found) < _MOST_ROWS and (value := self._value(begin + len(found))) is not None:
                found.append(self._row_of(value))
        except _FAILURES:
            # It comes again when the rows from there are asked for.
            self._next = -1
            if not found:
                raise
        return found

    def image(self, row: int, most_bytes: int) -> bytes:
        """The image in a row. Raises BrokenArchive, BodyTooLarge and what pyarrow raises."""
        value = self._value(row)
        if value is None or not value.is_valid:
            raise BrokenArchive("The row has no image.", "Leave the row out.")
        buffer = value.as_buffer()
        if buffer.size > most_bytes:
            raise too_large(buffer.size, most_bytes)
        return buffer.to_pybytes()  # type: ignore[no-any-return]

    def _row_of(self, value: Any) -> Row:
        if self._has_paths:
            path = value.as_py()
            return 0, "", path or "", "" if path else "The row has no path."
        buffer = value.as_buffer() if value.is_valid else pa.py_buffer(b"")
        return buffer.size, buffer[:HEAD_BYTES].to_pybytes().decode("latin-1"), "", ""

    @cached_property
    def _is_listed_unread(self) -> bool:
        """Whether the rows are listed by the table's own numbers: it has images, and the first is no document."""
        if not self._is_parquet or self._has_paths or not self._starts[-1]:
            return self._is_parquet and not self._has_paths
        first = self._value(0)
        return not (first.is_valid and may_have_pages(first.as_buffer()[:HEAD_BYTES].to_pybytes()))

    def _value(self, row: int) -> Any:
        """The value in a row; None behind the last."""
        group = max(0, bisect_right(self._starts, row) - 1)
        if row < self._next - len(self._kept) or self._starts[group] > self._next or self._next < 0:
            self._values, self._next = self._read(group), self._starts[group]
            self._kept.clear()
            self._kept_bytes = 0
        while self._next <= row:
            value = next(self._values, None)
            if value is None:
                return None
            self._kept.append(value)
            self._next += 1
            self._kept_bytes += _bytes_of(value)
            while len(self._kept) > 1 and (self._kept_bytes > _WINDOW_BYTES or len(self._kept) > _MOST_ROWS):
                self._kept_bytes -= _bytes_of(self._kept.popleft())
        return self._kept[row - self._next]

    def _read(self, begin: int) -> Iterator[Any]:
        """The values of the column, from a row group on; of an Arrow file, all."""
        for array in self._read_parquet(begin) if self._is_parquet else self._read_arrow():
            yield from array.field(self._field) if self._field else array

    def _read_parquet(self, begin: int) -> Iterator[Any]:
        at_once, path = _PATHS_AT_ONCE if self._has_paths else 1, ".".join(filter(None, (self._name, self._field)))
        for group in range(begin, len(self._starts) - 1):
            for batch in self._parquet.iter_batches(at_once, row_groups=[group], columns=[path], use_threads=False):
                yield batch.column(0)

    def _read_arrow(self) -> Iterator[Any]:
        opened = self._open_arrow([self._number])
        numbers = range(0 if self._is_stream else opened.num_record_batches)
        for batch in opened if self._is_stream else map(opened.get_batch, numbers):
            values = batch.column(0)
            # Arrow does not look whether offsets are inside it, and would read any memory or crash.
            values.validate(full=True)
            yield values

    def _open_arrow(self, columns: list[int] | None) -> Any:
        self._file.seek(0)
        options = ipc.IpcReadOptions(use_threads=False, included_fields=columns)
        return (ipc.open_stream if self._is_stream else ipc.open_file)(self._file, options=options)


@lru_cache(maxsize=_MOST_OPEN)
def _open_table(kind: str, address: str, _version: str, column: str | None) -> Table:
    return Table(kind, address, column)


def _answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """An answer, and the data that follow it. Where something fails, tables are opened anew."""
    row, most_bytes = request["row"], request["most_bytes"]
    try:
        table = _open_table(*request["table"])
        data = orjson.dumps(table.rows(row)) if most_bytes is None else table.image(row, most_bytes)
        return {"size": len(data)}, data
    except _FAILURES as error:
        failure = error
    _open_table.cache_clear()
    return {"error": _error_of(failure)}, b""


def _error_of(error: Exception) -> list[Any]:
    """Class and arguments of the error that the parent raises."""
    if isinstance(error, OSError) and error.errno is not None:
        return ["OSError", error.errno, error.strerror]
    if isinstance(error, MemoryError):
        limit = f"{MEMORY_BYTES // 1_000_000} MB"
        error = BrokenArchive(f"Reading it takes more memory than {limit}.", "Write fewer bytes in each row.")
    elif not isinstance(error, OcrsvcError):
        # pyarrow says so what is wrong with the content.
        error = BrokenArchive(f"The table is cut off or damaged: {str(error)[:200]}.", "Make it again.")
    return [type(error).__name__, error.detail, error.remedy]


def _bytes_of(value: Any) -> int:
    return int(value.as_buffer().size) if value.is_valid else 0


def _check_rows(rows: int, size_bytes: int) -> None:
    """Raises BrokenArchive for more rows than bytes: 40 kB may hold 20 million rows without anything in them."""
    if rows < 0 or rows > max(_FREE_ROWS, size_bytes):
        raise BrokenArchive(f"It says that it has {rows} rows in {size_bytes} bytes.", "Leave empty rows out.")


def _find_column(schema: Any, wanted: str | None) -> tuple[str, str, bool]:
    """Name of the column with images, its field if it is a struct, and whether it has paths. Raises BrokenArchive."""
    by_likelihood = sorted(schema.names, key=lambda name: _IMAGES.index(name) if name in _IMAGES else len(_IMAGES))
    for has_paths in (False, True):
        for name in by_likelihood if wanted is None else [wanted]:
            if schema.get_field_index(name) < 0 or (has_paths and wanted is None and name not in _PATHS):
                continue
            kind, field = schema.field(name).type, ""
            if types.is_struct(kind):
                field = "path" if has_paths else "bytes"
                if kind.get_field_index(field) < 0:
                    continue
                kind = kind.field(field).type
            if str(kind) in (_TEXT if has_paths else _BINARY):
                return name, field, has_paths
    columns = ", ".join(f"{field.name} ({field.type})"[:80] for field in list(schema)[:20])
    what = "column with images" if wanted is None else f"column {wanted} with images"
    raise BrokenArchive(f"It has no {what}; its columns are {columns}.", "Name one with --column.")


def main() -> None:
    """Answer until the parent closes the connection."""
    parent, memory_bytes = map(int, sys.argv[1:])
    end_with_parent(parent)
    limit_resources(memory_bytes, 0, _OPEN_FILES)
    with socket.socket(fileno=0) as wire:
        while request := wire.recv(CHUNK_BYTES):
            answer, data = _answer(orjson.loads(request))
            wire.send(orjson.dumps(answer))
            for at in range(0, len(data), CHUNK_BYTES):
                wire.send(data[at : at + CHUNK_BYTES])


if __name__ == "__main__":
    main()
