"""The columns of Parquet output: the same for every run of one format; what was not asked for is null."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ocrsvc.batch.outputs.output_formats import Rows

WITHOUT_LINE_SOURCE: Final = 1
"""The format of runs that began before rows of lines and words said where the line comes from."""

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
_CELL: Final = _struct(
    row=pa.int32(),
    column=pa.int32(),
    row_span=pa.int32(),
    column_span=pa.int32(),
    box=_BOX,
    text=pa.string(),
    lines=_NUMBERS,
)
_TABLE: Final = _struct(
    box=_BOX,
    rows=pa.int32(),
    columns=pa.int32(),
    cells=pa.list_(_CELL),
    html=pa.string(),
    markdown=pa.string(),
)
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

_PLACE: Final = [
    ("text", pa.string()),
    ("confidence", pa.float64()),
    ("box", _BOX),
    ("left", pa.float64()),
    ("top", pa.float64()),
    ("right", pa.float64()),
    ("bottom", pa.float64()),
    ("line_source", pa.string()),
]

LINE_COLUMNS: Final = pa.schema([*list(PAGE_COLUMNS)[:5], ("line", pa.int32()), *_PLACE, ("error", _ERROR)])
"""One row for each line: `line` counts from 0 on its page; the frame around its box is left, top, right and bottom.

Its `source` is the file's, as everywhere; where the line comes from is `line_source`.
"""

WORD_COLUMNS: Final = pa.schema(
    [*list(PAGE_COLUMNS)[:5], ("line", pa.int32()), ("word", pa.int32()), *_PLACE, ("error", _ERROR)]
)
"""One row for each word: `word` counts from 0 in its line, whose source is `line_source`."""

_COLUMNS: Final = {"page": PAGE_COLUMNS, "line": LINE_COLUMNS, "word": WORD_COLUMNS}


def columns_of(rows: Rows, run_format: int) -> pa.Schema:
    """The columns of such rows in all parts of a run of this format, as of RunDescription."""
    columns = _COLUMNS[rows]
    if run_format > WITHOUT_LINE_SOURCE or "line_source" not in columns.names:
        return columns
    return columns.remove(columns.get_field_index("line_source"))
