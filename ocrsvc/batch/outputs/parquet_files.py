"""Parquet files with a row per page, line or word of an output part; all files of a kind have the same columns."""

from collections.abc import Iterator
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from ocrsvc.batch.destination import Destination, WrittenFile
from ocrsvc.batch.pages import FileResults

# Size of JSON records per row group; as Python objects they take about ten times as much memory.
_GROUP_BYTES: Final = 4 << 20
_BOX: Final = pa.list_(pa.list_(pa.float64()))
_NUMBERS: Final = pa.list_(pa.int32())


def _struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


def _text(**more: pa.DataType) -> pa.StructType:
    """The Parquet type of a line, word or character; `more` are its additional fields."""
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
"""One row per page, with the values of the page's JSON record."""
_OF_PAGE: Final = list(PAGE_COLUMNS)[:5]
_PLACE: Final = [
    ("text", pa.string()),
    ("confidence", pa.float64()),
    ("box", _BOX),
    *((side, pa.float64()) for side in ("left", "top", "right", "bottom")),
    ("line_source", pa.string()),
    ("error", _ERROR),
]
LINE_COLUMNS: Final = pa.schema([*_OF_PAGE, ("line", pa.int32()), *_PLACE])
"""One row per line: `line` counts from 0 on its page; left, top, right and bottom are its box's bounding rectangle.

`source` is the file's name, as in the other tables; `line_source` is the `source` of the line in its JSON.
"""
WORD_COLUMNS: Final = pa.schema([*_OF_PAGE, ("line", pa.int32()), ("word", pa.int32()), *_PLACE])
"""One row per word: `word` counts from 0 in its line."""
_COLUMNS: Final = {"page": PAGE_COLUMNS, "line": LINE_COLUMNS, "word": WORD_COLUMNS}


def write_parquet(
    folder: str, rows: str, destination: Destination, part: int, files: Iterator[FileResults], *, replace: bool
) -> WrittenFile:
    """Write a file with a row per "page", "line" or "word", as `rows` says; see WritePart."""
    name, columns = f"{folder}{rows}s-{part:05d}.parquet", _COLUMNS[rows]
    with (
        destination.writing(name, replace=replace) as output,
        pq.ParquetWriter(output, columns, compression="zstd", compression_level=3) as writer,
    ):
        for group in _groups_of(files):
            found = [row for record in group for row in rows_of(orjson.loads(record), rows)]
            writer.write_table(pa.Table.from_pylist(found, columns))
    return output.written()


def _groups_of(files: Iterator[FileResults]) -> Iterator[list[bytes]]:
    """Yield the JSON records of pages, divided into row groups of the Parquet file."""
    group: list[bytes] = []
    size = 0
    for results in files:
        for page in results.pages:
            group.append(results.record(page))
            size += len(group[-1])
            if size >= _GROUP_BYTES:
                yield group
                group, size = [], 0
    if group:
        yield group


def rows_of(page: dict[str, Any], rows: str) -> Iterator[dict[str, Any]]:
    """One row per page, line or word (`rows`) of a page's record; without lines or words, one row with null values."""
    if rows == "page":
        yield page
        return
    for at, line in enumerate(page["lines"] or [None]):
        own = page | {"line": None if line is None else at, "line_source": line and line.get("source")}
        if rows == "line":
            yield own | _place_of(line)
            continue
        for number, word in enumerate((line and line.get("words")) or [None]):
            yield own | {"word": None if word is None else number} | _place_of(word)


def _place_of(text: dict[str, Any] | None) -> dict[str, Any]:
    """Text, confidence, box and bounding rectangle of a line or word."""
    if text is None:
        return {"text": None}
    across, down = zip(*text["box"], strict=True)
    frame = {"left": min(across), "top": min(down), "right": max(across), "bottom": max(down)}
    return {"text": text["text"], "confidence": text["confidence"], "box": text["box"], **frame}
