"""The shapes of the native API's answers, as JSON Schema for its OpenAPI description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from ocrsvc.model_repository.description import Tier
from ocrsvc.model_serving.model_status import STATES
from ocrsvc.records import MASK_KINDS, LineSource, RegionType
from ocrsvc.telemetry.ledger import STAGES

Node = dict[str, Any]

ID: Final[Node] = {"type": "string", "maxLength": 128, "description": "Id of the request, also in its header."}
SECONDS: Final[Node] = {"type": "number", "minimum": 0}
COUNT: Final[Node] = {"type": "integer", "minimum": 1}
NUMBER: Final[Node] = {
    "type": "integer",
    "minimum": 1,
    "description": "Of the page, from 1: in a lone document, else counted through the request.",
}
TEXT: Final[Node] = {"type": "string"}


def ref(name: str) -> Node:
    """A schema of `schemas` by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(properties: Mapping[str, Node], optional: Sequence[str] = ()) -> Node:
    """An object with these members and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def list_of(items: Node, size: int | None = None) -> Node:
    """An array, of `size` items where that is given."""
    return {"type": "array", "items": items} | ({} if size is None else {"minItems": size, "maxItems": size})


def schemas() -> Node:
    """Every schema by its name."""
    engine = dict.fromkeys(("name", "model", "version", "device", "precision", "provider"), TEXT)
    libraries = {"type": "object", "additionalProperties": TEXT}
    return {
        "Answer": record(
            {
                "id": ID,
                "engine": ref("Engine"),
                "pages": list_of({"oneOf": [ref("Page"), ref("FailedPage")]}),
                "pages_total": COUNT | {"description": "Pages that the files have, read or not."},
                "timing": ref("Timing"),
            }
        ),
        "Page": _page(),
        "FailedPage": record({"page": NUMBER, "error": ref("Problem"), "source": _source()}, optional=("source",)),
        "Line": _line(),
        "Region": _region(),
        "MaskedPart": _masked_part(),
        "Barcode": _barcode(),
        "Table": _table(),
        "Cell": _cell(),
        "Word": _word(),
        "Character": record(_boxed_text()),
        "Engine": record(engine),
        "Timing": _timing(),
        "Problem": _problem(),
        "ModelList": _model_list(),
        "ModelVersion": _model_version(),
        "Version": record(
            {
                "name": {"const": "ocrsvc"},
                "version": TEXT,
                "engine": {"oneOf": [ref("Engine"), {"type": "null"}]},
                "libraries": libraries,
            }
        ),
    }


def _model_list() -> Node:
    default = {"type": ["string", "null"], "description": "The model that reads what names none, if one can be named."}
    versions = list_of(ref("ModelVersion")) | {"description": "Ascending by name and version."}
    return record({"default": default, "models": versions})


def _model_version() -> Node:
    nullable = {"type": ["string", "null"]}
    state = {"enum": list(STATES), "description": "Requests may name what is AVAILABLE."}
    return record(
        {
            "name": TEXT,
            "version": COUNT,
            "state": state,
            "labels": list_of(TEXT),
            "engine": nullable | {"description": "None of a version that is damaged."},
            "title": TEXT,
            "tier": {"enum": [*get_args(Tier), None]},
            "languages": list_of(TEXT),
            "licence": TEXT,
        }
    )


def _timing() -> Node:
    pages = dict.fromkeys(("decode_s", "queue_s", "engine_s", "total_s"), SECONDS)
    stages = record({f"{stage}_s": SECONDS for stage in STAGES}) | {
        "description": "Of the whole request, one after the other: received, images decoded, waiting, lines found, "
        "lines read, answered. Only with timing=stages."
    }
    whole = SECONDS | {"description": "The sum of the stages: the request up to this answer; with timing=stages."}
    return record({**pages, "request_s": whole, "stages": stages}, optional=("request_s", "stages"))


def _page() -> Node:
    return record(
        {
            "page": NUMBER,
            "width": COUNT | {"description": "Pixels of the image as displayed, the frame of all boxes."},
            "height": COUNT,
            "angle": {"enum": [0, 90, 180, 270], "description": "Clockwise turn with which the page was read."},
            "text": {"type": "string", "description": "The lines, joined by newlines."},
            "lines": list_of(ref("Line")) | {"description": "In reading order; left out with lines=false."},
            "regions": list_of(ref("Region")) | {"description": "In reading order; only with layout=true."},
            "tables": list_of(ref("Table")) | {"description": "From top to bottom; only with tables=true."},
            "masked": list_of(ref("MaskedPart"))
            | {"description": "In the order of the text; only where masking was asked for."},
            "barcodes": list_of(ref("Barcode"))
            | {"description": "From top to bottom; only with barcodes=true or only."},
            "source": _source(),
        },
        optional=("lines", "regions", "tables", "masked", "barcodes", "source"),
    )


def _source() -> Node:
    return record({"file": COUNT, "page": COUNT}) | {
        "description": "Of several files, if one has several pages: place of the file in the request, and of the page "
        "in the file."
    }


def _box() -> Node:
    return list_of(list_of({"type": "number"}, 2), 4) | {
        "description": "Corners [x, y], clockwise from where reading starts; origin top left, y downwards."
    }


def _region() -> Node:
    return record(
        {
            "type": {"enum": list(get_args(RegionType))},
            "confidence": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "description": "0 for text in which the layout model saw no region.",
            },
            "box": _box(),
            "lines": list_of({"type": "integer", "minimum": 0})
            | {"description": "Which of the page's lines are in it, from 0."},
        }
    )


def _barcode() -> Node:
    kind = TEXT | {"description": "Its format, such as QRCode, EAN13, Code128 or DataMatrix."}
    return record({"type": kind, "text": TEXT, "box": _box()})


def _masked_part() -> Node:
    index = {"type": "integer", "minimum": 0}
    return record(
        {
            "kind": {"enum": list(MASK_KINDS)},
            "line": index | {"description": "Which of the page's lines it is in, from 0."},
            "begin": index | {"description": "The first of its characters in the line's text, from 0."},
            "end": COUNT | {"description": "The character after its last."},
            "box": _box(),
        }
    )


def _table() -> Node:
    return record(
        {
            "box": _box(),
            "rows": COUNT,
            "columns": COUNT,
            "cells": list_of(ref("Cell")) | {"description": "Row by row; together they cover the grid once."},
            "html": {"type": "string", "description": "The table as an HTML element."},
            "markdown": {"type": "string", "description": "As GitHub Flavored Markdown; its first row is the heading."},
        }
    )


def _cell() -> Node:
    index = {"type": "integer", "minimum": 0}
    return record(
        {
            "row": index,
            "column": index,
            "row_span": COUNT,
            "column_span": COUNT,
            "box": _box(),
            "text": TEXT,
            "lines": list_of(index) | {"description": "Which of the page's lines stand in it, from 0."},
        }
    )


def _line() -> Node:
    words = list_of(ref("Word")) | {"description": "In the order of the text; where they are asked for and known."}
    source = {"enum": list(get_args(LineSource)), "description": "Where it comes from; unless text_layer is ignore."}
    return record(_boxed_text() | {"words": words, "source": source}, optional=("words", "source"))


def _word() -> Node:
    characters = list_of(ref("Character")) | {"description": "In the order of the text; where they are asked for."}
    return record(_boxed_text() | {"characters": characters}, optional=("characters",))


def _boxed_text() -> Node:
    return {
        "text": TEXT,
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "box": _box(),
    }


def _problem() -> Node:
    return record(
        {
            "type": {"type": "string", "format": "uri-reference"},
            "title": TEXT,
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": TEXT,
            "code": {"type": "string", "description": "Short and stable, for programs."},
            "retryable": {"type": "boolean", "description": "May the same request succeed later?"},
            "id": ID,
            "remedy": {"type": "string", "description": "What can be done about it."},
        },
        optional=("remedy",),
    )
