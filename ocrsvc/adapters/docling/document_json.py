"""Writes what was read of a document as a DoclingDocument, the JSON of docling-core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Final

import orjson

from ocrsvc.formats.document import Output
from ocrsvc.formats.json_stream import JsonList
from ocrsvc.records import Box, Cell, Check, Line, Page, Table

# Newer programs read every older version; this is the oldest whose members are those below.
VERSION: Final = "1.3.0"
_BODY: Final = "#/body"
_DIGITS: Final = 2


def write_document_json(name: str, pages: Iterable[Page], output: Output, check: Check) -> None:
    """Write the document: lines as texts, tables as tables, in reading order, each with its page and place in pixels.

    Memory holds one page; `check` is asked for each, and what it raises ends it.
    """
    sizes: dict[str, object] = {}
    with JsonList() as texts, JsonList() as tables, JsonList() as order:
        for page in pages:
            check()
            sizes[str(page.number)] = _page(page)
            for block in blocks_of(page):
                name_of_kind, of_kind = ("texts", texts) if isinstance(block, Line) else ("tables", tables)
                reference = {"$ref": f"#/{name_of_kind}/{len(of_kind)}"}
                order.append(reference)
                node = {"self_ref": reference["$ref"], "parent": {"$ref": _BODY}, "children": []}
                place = {"prov": [_place(block, page.number)]}
                of_kind.append({**node, "content_layer": "body", **_item(block), **place})
        head = {
            "schema_name": "DoclingDocument",
            "version": VERSION,
            "name": PurePath(name).stem or name,
            "furniture": {**_root("#/furniture", "furniture"), "children": []},
        }
        output.write(orjson.dumps(head)[:-1])
        output.write(b',"body":' + orjson.dumps(_root(_BODY, "body"))[:-1] + b',"children":')
        order.copy_to(output)
        output.write(b'},"groups":[],"texts":')
        texts.copy_to(output)
        output.write(b',"pictures":[],"tables":')
        tables.copy_to(output)
        output.write(b',"key_value_items":[],"form_items":[],"pages":' + orjson.dumps(sizes) + b"}")


def blocks_of(page: Page) -> Iterator[Line | Table]:
    """The lines in reading order; in place of those of a table, the table where its first line stands."""
    table_of = {line: table for table in page.tables for cell in table.cells for line in cell.lines}
    seen: set[int] = set()
    for number, line in enumerate(page.lines):
        table = table_of.get(number)
        if table is None:
            yield line
        elif id(table) not in seen:
            seen.add(id(table))
            yield table


def _root(reference: str, layer: str) -> dict[str, object]:
    return {"self_ref": reference, "content_layer": layer, "name": "_root_", "label": "unspecified"}


def _item(block: Line | Table) -> dict[str, object]:
    if isinstance(block, Line):
        return {"label": "text", "orig": block.text, "text": block.text}
    cells = [_cell(cell) for cell in block.cells]
    data = {"table_cells": cells, "num_rows": block.rows, "num_cols": block.columns}
    return {"label": "table", "captions": [], "references": [], "footnotes": [], "data": data}


def _cell(cell: Cell) -> dict[str, object]:
    return {
        "bbox": _bbox(cell.box),
        "row_span": cell.row_span,
        "col_span": cell.column_span,
        "start_row_offset_idx": cell.row,
        "end_row_offset_idx": cell.row + cell.row_span,
        "start_col_offset_idx": cell.column,
        "end_col_offset_idx": cell.column + cell.column_span,
        "text": cell.text,
        "column_header": False,
        "row_header": False,
        "row_section": False,
    }


def _place(block: Line | Table, number: int) -> dict[str, object]:
    letters = len(block.text) if isinstance(block, Line) else 0
    return {"page_no": number, "bbox": _bbox(block.box), "charspan": [0, letters]}


def _bbox(box: Box) -> dict[str, object]:
    left, top, right, bottom = frame_of(box)
    return {"l": left, "t": top, "r": right, "b": bottom, "coord_origin": "TOPLEFT"}


def frame_of(box: Box) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the upright frame around a box, in pixels."""
    across, down = [round(x, _DIGITS) for x, _ in box], [round(y, _DIGITS) for _, y in box]
    return min(across), min(down), max(across), max(down)


def _page(page: Page) -> dict[str, object]:
    return {"size": {"width": page.width, "height": page.height}, "page_no": page.number}
