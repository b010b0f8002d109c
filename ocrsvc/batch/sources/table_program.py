"""The process that reads tables, held to a memory limit: it lists their rows and gives the images in them.

A request on standard input is a JSON object: `open` (kind, address, version, column), and `next` for the rows from
that one, or `place` and `most_bytes` for a row. An answer is a JSON object, whose `size` says how many bytes follow.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Final

import orjson
import pyarrow as pa
from pyarrow import ipc, parquet, types

from ocrsvc.batch.sources.find_files import open_file
from ocrsvc.batch.sources.source_files import HEAD_BYTES, too_large
from ocrsvc.batch.sources.tables import CHUNK_BYTES
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

Row = tuple[str, int, str | None, str, str]
"""Place, size, head, path and problem of a member."""


class Table:
    """A table with the column that holds images, or paths of them.

    Rows are read one at a time: what one unpacks to is known only afterwards, as a dictionary may say each of its
    values a thousand times. What was read last is kept, so that callers need not ask quite in order.
    """

    def __init__(self, kind: str, address: str, column: str | None) -> None:
        self._file = open_file(address)
        self._is_parquet = kind == "parquet"
        if self._is_parquet:
            # A column's pages one after another, and not whole chunks, which may have gigabytes.
            self._parquet = parquet.ParquetFile(self._file, pre_buffer=False, buffer_size=_BUFFER_BYTES)
            schema, self._rows = self._parquet.schema_arrow, self._parquet.metadata.num_rows
            _check_rows(self._rows, self._file.seek(0, os.SEEK_END))
        else:
            self._is_stream = self._file.read(6) != b"ARROW1"
            schema = self._open_arrow(None).schema
        self._name, self._field, self._has_paths = _find_column(schema, column)
        self._number = schema.get_field_index(self._name)
        self._values: Iterator[Any] | None = None
        self._kept: deque[Any] = deque()
        self._first = self._next = 0

    def rows(self) -> Iterator[Row]:
        """What is listed of each row."""
        if self._has_paths:
            for value in self._read(0):
                path = value.as_py()
                yield "", 0, None, path or "", "" if path else "The row has no path."
        elif not self._is_parquet or may_have_pages(self._first_head()):
            for row, value in enumerate(self._read(0)):
                buffer = value.as_buffer()
                head = b"" if buffer is None else buffer[:HEAD_BYTES].to_pybytes()
                yield str(row), 0 if buffer is None else buffer.size, head.decode("latin-1"), "", ""
        else:
            mean_bytes = self._column_bytes() // max(1, self._rows)
            yield from ((str(row), mean_bytes, None, "", "") for row in range(self._rows))

    def load(self, row: int, most_bytes: int) -> bytes:
        """The image in a row. Raises BrokenArchive, BodyTooLarge and what pyarrow raises."""
        group, start = self._group_of(row)
        if self._values is None or row < self._first or start > self._next:
            self._values, self._first, self._next = self._read(group), start, start
            self._kept.clear()
        while self._next <= row:
            value = next(self._values, None)
            if value is None:
                raise BrokenArchive(f"The table has no row {row}.", "Make it again.")
            self._kept.append(value)
            self._next += 1
            while len(self._kept) > 1 and sum(map(_bytes_of, self._kept)) > _WINDOW_BYTES:
                self._kept.popleft()
                self._first += 1
        buffer = self._kept[row - self._first].as_buffer()
        if buffer is None:
            raise BrokenArchive("The row has no image.", "Leave the row out.")
        if buffer.size > most_bytes:
            raise too_large(buffer.size, most_bytes)
        return buffer.to_pybytes()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the file."""
        self._values = None
        self._file.close()

    def _group_of(self, row: int) -> tuple[int, int]:
        """The row group that has a row, and its first row; an Arrow file is read from its beginning."""
        group = first = 0
        while self._is_parquet and group + 1 < self._parquet.num_row_groups:
            count = self._parquet.metadata.row_group(group).num_rows
            if first + count > row:
                break
            group, first = group + 1, first + count
        return group, first

    def _read(self, begin: int) -> Iterator[Any]:
        """The values of the column, from a row group on."""
        for array in self._read_parquet(begin) if self._is_parquet else self._read_arrow():
            yield from array.field(self._field) if self._field else array

    def _read_parquet(self, begin: int) -> Iterator[Any]:
        path = f"{self._name}.{self._field}" if self._field else self._name
        for group in range(begin, self._parquet.num_row_groups):
            at_once = _PATHS_AT_ONCE if self._has_paths else 1
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

    def _first_head(self) -> bytes:
        """The first bytes of the first image."""
        value = next(self._read(0), None)
        return bytes(value.as_buffer()[:HEAD_BYTES]) if value is not None and value.is_valid else b""

    def _column_bytes(self) -> int:
        path = f"{self._name}.{self._field}" if self._field else self._name
        groups = map(self._parquet.metadata.row_group, range(self._parquet.num_row_groups))
        chunks = (group.column(number) for group in groups for number in range(group.num_columns))
        return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == path)


class _Server:
    """Tables that are open, the last used last, and the listings that are under way."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._open: OrderedDict[tuple[Any, ...], Table] = OrderedDict()
        self._listings: dict[tuple[Any, ...], Iterator[Row]] = {}

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """An answer, and the data that follow it. Whatever fails, the table is closed."""
        key = tuple(request["open"])
        try:
            table = self._table(key)
            if "place" in request:
                data = table.load(int(request["place"]), request["most_bytes"])
            else:
                data = orjson.dumps(self._next_rows(key, table, is_first=request["next"] == 0))
            return {"size": len(data)}, data
        except MemoryError:
            limit = f"{self._memory_bytes // 1_000_000} MB"
            failure = BrokenArchive(f"Reading it takes more memory than {limit}.", "Write fewer bytes in each row.")
            return self._failed(key, failure)
        except OcrsvcError as error:
            return self._failed(key, error)
        except (pa.ArrowException, OSError, UnicodeDecodeError, IndexError) as error:
            # pyarrow says so what is wrong with the content; a file that cannot be read has a number.
            if isinstance(error, OSError) and error.errno is not None:
                return self._failed(key, None) and ({"os_error": [error.errno, error.strerror]}, b"")
            detail = f"The table is cut off or damaged: {str(error)[:200]}."
            return self._failed(key, BrokenArchive(detail, "Make it again."))

    def _table(self, key: tuple[Any, ...]) -> Table:
        if key not in self._open:
            kind, address, _, column = key
            self._open[key] = Table(kind, address, column)
            if len(self._open) > _MOST_OPEN:
                self._failed(next(iter(self._open)), None)
        self._open.move_to_end(key)
        return self._open[key]

    def _next_rows(self, key: tuple[Any, ...], table: Table, *, is_first: bool) -> list[Row]:
        """Rows until there are many; none at the end. A failure comes after the rows before it."""
        if is_first:
            self._listings[key] = table.rows()
        found: list[Row] = []
        try:
            for row in self._listings.get(key, ()):
                found.append(row)
                if len(found) == _MOST_ROWS:
                    break
        except (pa.ArrowException, OcrsvcError, OSError, MemoryError, UnicodeDecodeError, IndexError) as error:
            if not found:
                raise
            self._listings[key] = _failing(error)
        return found

    def _failed(self, key: tuple[Any, ...], error: OcrsvcError | None) -> tuple[dict[str, Any], bytes]:
        """Close a table, and say why."""
        self._listings.pop(key, None)
        table = self._open.pop(key, None)
        if table is not None:
            table.close()
        return {"error": [type(error).__name__, error.detail, error.remedy] if error else []}, b""


def _failing(error: Exception) -> Iterator[Row]:
    raise error
    yield


def _bytes_of(value: Any) -> int:
    buffer = value.as_buffer()
    return 0 if buffer is None else int(buffer.size)


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
            if _is_text(kind) if has_paths else _is_binary(kind):
                return name, field, has_paths
    columns = ", ".join(f"{field.name} ({field.type})"[:80] for field in list(schema)[:20])
    what = "column with images" if wanted is None else f"column {wanted} with images"
    raise BrokenArchive(f"It has no {what}; its columns are {columns}.", "Name one with --column.")


def _is_binary(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def main() -> None:
    """Answer until the parent closes the connection."""
    parent, memory_bytes = map(int, sys.argv[1:])
    end_with_parent(parent)
    limit_resources(memory_bytes, 0, _OPEN_FILES)
    server = _Server(memory_bytes)
    with socket.socket(fileno=0) as wire:
        while request := wire.recv(CHUNK_BYTES):
            answer, data = server.answer(orjson.loads(request))
            wire.send(orjson.dumps(answer))
            for at in range(0, len(data), CHUNK_BYTES):
                wire.send(data[at : at + CHUNK_BYTES])


if __name__ == "__main__":
    main()
