"""Parquet with a row for each page, line or word of a part; every file of every run has the same columns."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import json as pa_json

from ocrsvc.batch.destination import Destination, WrittenFile
from ocrsvc.batch.outputs.output_formats import FileResults

_GROUP_PAGES: Final = 1000
_GROUP_BYTES: Final = 16 << 20
"""Of records: with them and what Arrow makes of them, a row group takes about four times as much memory."""
_PACKING: Final = 3
_BOX: Final = pa.list_(pa.list_(pa.float64()))
_NUMBERS: Final = pa.list_(pa.int32())


def _struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


def _text(**more: pa.DataType) -> pa.StructType:
    """A piece of text, as lines, words and characters are."""
    return _struct(text=pa.string(), confidence=pa.float64(), box=_BOX, **more)


_ERROR: Final = _struct(code=pa.string(), detail=pa.string(), remedy=pa.string())
_WORD: Final = _text(characters=pa.list_(_text()))
_LINE: Final = _text(words=pa.list_(_WORD), source=pa.string())
_REGION: Final = _struct(type=pa.string(), confidence=pa.float64(), box=_BOX, lines=_NUMBERS)
_SPANS: Final = dict.fromkeys(("row", "column", "row_span", "column_span"), pa.int32())
_CELL: Final = _struct(**_SPANS, box=_BOX, text=pa.string(), lines=_NUMBERS)
_SIZE: Final = dict.fromkeys(("rows", "columns"), pa.int32())
_TABLE: Final = _struct(box=_BOX, **_SIZE, cells=pa.list_(_CELL), html=pa.string(), markdown=pa.string())
_BARCODE: Final = _struct(type=pa.string(), text=pa.string(), box=_BOX)
_MASKED: Final = _struct(kind=pa.string(), line=pa.int32(), begin=pa.int32(), end=pa.int32(), box=_BOX)
PAGE_COLUMNS: Final = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("page", pa.int32(), nullable=False),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("angle", pa.int32()),
        ("text", pa.string()),
        ("lines", pa.list_(_LINE)),
        ("regions", pa.list_(_REGION)),
        ("tables", pa.list_(_TABLE)),
        ("barcodes", pa.list_(_BARCODE)),
        ("masked", pa.list_(_MASKED)),
        ("error", _ERROR),
    ]
)
"""One row for each page, as the record of a page has it."""
_OF_PAGE: Final = list(PAGE_COLUMNS)[:5]
_FRAME: Final = ("left", "top", "right", "bottom")
_PLACE: Final = [
    ("text", pa.string()),
    ("confidence", pa.float64()),
    ("box", _BOX),
    *((name, pa.float64()) for name in _FRAME),
    ("line_source", pa.string()),
    ("error", _ERROR),
]
LINE_COLUMNS: Final = pa.schema([*_OF_PAGE, ("line", pa.int32()), *_PLACE])
"""One row for each line: `line` counts from 0 on its page; left, top, right and bottom are the frame around its box.

`source` is the file's, as everywhere; where the line comes from is `line_source`.
"""
WORD_COLUMNS: Final = pa.schema([*_OF_PAGE, ("line", pa.int32()), ("word", pa.int32()), *_PLACE])
"""One row for each word: `word` counts from 0 in its line."""
_COLUMNS: Final = {"page": PAGE_COLUMNS, "line": LINE_COLUMNS, "word": WORD_COLUMNS}


class ParquetFiles:
    """Files named pages-00000.parquet, or lines- or words-, and so on; `folder` is "" or ends in a slash."""

    def __init__(self, folder: str, rows: str) -> None:
        self._folder, self._rows, self._columns = folder, rows, _COLUMNS[rows]

    def write(
        self, destination: Destination, part: int, files: Iterator[FileResults], *, replace: bool
    ) -> list[WrittenFile]:
        """As OutputWriter.write."""
        name = f"{self._folder}{self._rows}s-{part:05d}.parquet"
        with (
            destination.writing(name, replace=replace) as output,
            pq.ParquetWriter(
                output, self._columns, compression="zstd", compression_level=_PACKING, write_statistics=True
            ) as writer,
        ):
            for group in _groups_of(files):
                writer.write_table(rows_of(group, self._rows, self._columns))
        return [output.written()]


def _groups_of(files: Iterator[FileResults]) -> Iterator[list[bytes]]:
    """The records of one row group after the other."""
    group: list[bytes] = []
    size = 0
    for results in files:
        for page in results.pages:
            group.append(results.record(page))
            size += len(group[-1])
            if len(group) == _GROUP_PAGES or size >= _GROUP_BYTES:
                yield group
                group, size = [], 0
    if group:
        yield group


def rows_of(records: Sequence[bytes], rows: str, columns: pa.Schema) -> pa.Table:
    """The rows of these pages with these columns, in one chunk.

    A page that has failed, or that has no lines or words, has one row, whose line and word are null.
    """
    pages = _read(records)
    if rows == "page":
        return pages
    table = _expanded(pages.select([*(field.name for field in _OF_PAGE), "error", "lines"]), "lines", "line")
    table = table.append_column("line_source", pc.struct_field(table["lines"], "source"))
    if rows == "word":
        table = table.append_column("words", pc.struct_field(table["lines"], "words")).drop_columns(["lines"])
        table = _expanded(table, "words", "word")
    return _with_places(table, "lines" if rows == "line" else "words", columns)


def _read(records: Sequence[bytes]) -> pa.Table:
    """The records as they are. Arrow's own reader of JSON does it, ten times as fast as Python's objects."""
    data = b"\n".join(records)
    # A block as large as the data: a record must not be longer than one.
    table = pa_json.read_json(
        io.BytesIO(data),
        pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pa_json.ParseOptions(explicit_schema=PAGE_COLUMNS, unexpected_field_behavior="ignore"),
    )
    return table.select(PAGE_COLUMNS.names).cast(PAGE_COLUMNS).combine_chunks()


def _expanded(table: pa.Table, column: str, number: str) -> pa.Table:
    """A row for each element of a column of lists, with its number in the list; one where there is none."""
    lists = table[column].combine_chunks()
    counts = pc.fill_null(pc.list_value_length(lists), 0)
    taken, numbers = _places(counts.to_pylist())
    elements = pc.list_flatten(lists)
    expanded = table.drop_columns([column]).take(taken)
    at = pc.cumulative_sum(pc.cast(pc.is_valid(numbers), pa.int64()))
    places = pc.if_else(pc.is_valid(numbers), pc.subtract(at, 1), pa.scalar(None, pa.int64()))
    return expanded.append_column(number, numbers).append_column(column, elements.take(places))


def _places(counts: Sequence[int]) -> tuple[pa.Array, pa.Array]:
    """For each row that comes out: the row that it comes from, and its number in that one's list, or null."""
    taken = [row for row, count in enumerate(counts) for _ in range(count or 1)]
    numbers = [number if count else None for count in counts for number in range(count or 1)]
    return pa.array(taken, pa.int64()), pa.array(numbers, pa.int32())


def _with_places(table: pa.Table, column: str, schema: pa.Schema) -> pa.Table:
    """The text, confidence and box of each row's element, and the frame around the box, as columns."""
    texts = table[column].combine_chunks()
    columns: dict[str, Any] = {name: table[name] for name in table.column_names if name != column}
    columns |= {name: pc.struct_field(texts, name) for name in ("text", "confidence", "box")}
    columns |= _frame_of(columns["box"])
    return pa.table({name: columns[name] for name in schema.names}, schema)


def _frame_of(boxes: pa.Array) -> dict[str, pa.Array]:
    corners = [pc.list_element(boxes, corner) for corner in range(4)]
    across, down = ([pc.list_element(corner, axis) for corner in corners] for axis in range(2))
    return {
        "left": pc.min_element_wise(*across),
        "top": pc.min_element_wise(*down),
        "right": pc.max_element_wise(*across),
        "bottom": pc.max_element_wise(*down),
    }
