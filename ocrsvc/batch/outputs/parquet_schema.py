"""The columns of Parquet output: the same for every run, whatever its options; what was not asked for is null."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

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
]

LINE_COLUMNS: Final = pa.schema([*list(PAGE_COLUMNS)[:5], ("line", pa.int32()), *_PLACE, ("error", _ERROR)])
"""One row for each line: `line` counts from 0 on its page; the frame around its box is left, top, right and bottom."""

WORD_COLUMNS: Final = pa.schema(
    [*list(PAGE_COLUMNS)[:5], ("line", pa.int32()), ("word", pa.int32()), *_PLACE, ("error", _ERROR)]
)
"""One row for each word: `word` counts from 0 in its line."""
