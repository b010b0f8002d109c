"""The OpenAPI 3.1 description of the native API.

Options and errors come from where they are declared; paths and shapes are written here and held against the running
service by tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from ocrsvc import __version__, errors
from ocrsvc.formats.output_formats import OUTPUT_FORMATS
from ocrsvc.http.error_responses import PROBLEM_TYPE
from ocrsvc.http.options import OPTIONS, Option
from ocrsvc.http.request import ID_HEADER, PRIORITY_HEADER, TIMEOUT_HEADER
from ocrsvc.records import RegionType
from ocrsvc.serving.work_queue import PRIORITIES

Node = dict[str, Any]

READING_ERRORS: Final[tuple[type[errors.OcrsvcError], ...]] = (
    errors.CallerError,
    errors.NothingSent,
    errors.BadBase64,
    errors.BadOption,
    errors.BodyTimeout,
    errors.BodyTooLarge,
    errors.ImageTooLarge,
    errors.UnsupportedImage,
    errors.BrokenImage,
    errors.EncryptedDocument,
    errors.TooManyPages,
    errors.ImageCrashesEngine,
    errors.RequestStopsWorker,
    errors.TooManyAtOnce,
    errors.ClientGone,
    errors.OcrsvcError,
    errors.EngineFailed,
    errors.QueueFull,
    errors.NotReady,
    errors.ResourcesExhausted,
    errors.DeadlineExceeded,
)
"""What POST /v1/ocr may answer instead of a reading; OcrsvcError stands for the unexpected."""

_BASE64: Final[Node] = {
    "type": "string",
    "description": "Base64 of an image file; a data URI, the URL-safe alphabet and missing padding are understood.",
}
_BASE64_OR_MORE: Final[Node] = {"oneOf": [_BASE64, {"type": "array", "minItems": 1, "items": _BASE64}]}
_BINARY: Final[Node] = {"contentMediaType": "application/octet-stream", "description": "An image file."}
_ID: Final[Node] = {"type": "string", "maxLength": 128, "description": "Id of the request, also in its header."}
_SECONDS: Final[Node] = {"type": "number", "minimum": 0}
_SIDE: Final[Node] = {"type": "integer", "minimum": 1}
_NUMBER: Final[Node] = {
    "type": "integer",
    "minimum": 1,
    "description": "Of the page, from 1: in a lone document, else counted through the request.",
}
_WORDS: Final[Node] = {"type": "string"}


def openapi() -> Node:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ocrsvc",
            "version": __version__,
            "summary": "Reads the text on page images.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "headers": {"RequestId": {"description": "Id of the request.", "schema": _ID}},
        },
    }


def _paths() -> Node:
    return {
        "/v1/ocr": {"post": _ocr()},
        "/healthz": {"get": _get("healthz", "The process is alive.", _state("ok"))},
        "/readyz": {
            "get": _get("readyz", "An engine is warm in this worker.", _state("ready"), [errors.NotReady]),
        },
        "/version": {"get": _get("version", "What answers here.", _ref("Version"))},
        "/openapi.json": {"get": _get("openapi", "This description.", {"type": "object"})},
    }


def _ocr() -> Node:
    return {
        "operationId": "ocr",
        "summary": "Read one or more page images or documents.",
        "parameters": [_parameter(name, option) for name, option in OPTIONS.items()] + _header_parameters(),
        "requestBody": {
            "required": True,
            "description": "The options may also be fields of the form or members of the JSON object.",
            "content": _bodies(),
        },
        "responses": {"200": _read_response()} | _problem_responses(READING_ERRORS),
    }


def _parameter(name: str, option: Option) -> Node:
    return {"name": name, "in": "query", "description": option.help, "schema": _option_schema(option)}


def _option_schema(option: Option) -> Node:
    default = {"true": True, "false": False}.get(option.default or "", option.default)
    return dict(option.schema) | ({} if default is None else {"default": default})


def _header_parameters() -> list[Node]:
    timeout = {"type": "number", "exclusiveMinimum": 0}
    return [
        {
            "name": TIMEOUT_HEADER,
            "in": "header",
            "description": "Seconds that the answer is worth waiting for; it can only shorten the service's deadline.",
            "schema": timeout,
        },
        {
            "name": PRIORITY_HEADER,
            "in": "header",
            "description": "Whose turn it is when many wait; the option priority wins.",
            "schema": {"type": "string", "enum": list(PRIORITIES), "default": "interactive"},
        },
        {
            "name": ID_HEADER,
            "in": "header",
            "description": "Your own id for this request: up to 128 visible ASCII characters, else it gets a new one.",
            "schema": _WORDS,
        },
    ]


def _bodies() -> Node:
    options = {name: _option_schema(option) for name, option in OPTIONS.items()}
    images = {"image": _BASE64_OR_MORE, "images": _BASE64_OR_MORE}
    files = {"file": {"oneOf": [_BINARY, {"type": "array", "minItems": 1, "items": _BINARY}]}}
    return {
        "multipart/form-data": {
            "schema": _asking(files | images, options),
            "encoding": {"file": {"contentType": "image/*"}},
        },
        "application/json": {"schema": _asking(images, options)},
        "application/x-www-form-urlencoded": {"schema": _asking(images, options)},
        "image/*": {"schema": _BINARY},
        "application/pdf": {"schema": _BINARY},
        "application/octet-stream": {"schema": _BINARY},
    }


def _asking(images: Node, options: Node) -> Node:
    """An object with one image at least, and options."""
    return {
        "type": "object",
        "properties": images | options,
        "anyOf": [{"required": [name]} for name in images],
        "additionalProperties": False,
    }


def _read_response() -> Node:
    return {
        "description": "The pages, in the order of the images.",
        "headers": _headers(),
        "content": {"application/json": {"schema": _ref("Answer")}}
        | {
            form.media_type: {"schema": {"type": "string", "description": f"With format={name}: {form.help}."}}
            for name, form in OUTPUT_FORMATS.items()
        },
    }


def _get(operation: str, summary: str, schema: Node, failures: Sequence[type[errors.OcrsvcError]] = ()) -> Node:
    answer = {
        "description": summary,
        "headers": _headers(),
        "content": {"application/json": {"schema": schema}},
    }
    return {
        "operationId": operation,
        "summary": summary,
        "responses": {"200": answer} | _problem_responses([*failures, errors.OcrsvcError]),
    }


def _problem_responses(failures: Sequence[type[errors.OcrsvcError]]) -> Node:
    """One response for each status, naming its codes."""
    statuses = sorted({failure.status for failure in failures})
    return {str(status): _problem_response([f for f in failures if f.status == status]) for status in statuses}


def _problem_response(failures: Sequence[type[errors.OcrsvcError]]) -> Node:
    retry = {"Retry-After": {"description": "Seconds after which a retry is worth it.", "schema": _SIDE}}
    headers = _headers() | (retry if any(issubclass(failure, errors.Refused) for failure in failures) else {})
    return {
        "description": "; ".join(f"{failure.code}: {failure.title}" for failure in failures),
        "headers": headers,
        "content": {PROBLEM_TYPE: {"schema": _ref("Problem")}},
    }


def _headers() -> Node:
    return {ID_HEADER: {"$ref": "#/components/headers/RequestId"}}


def _ref(name: str) -> Node:
    return {"$ref": f"#/components/schemas/{name}"}


def _state(word: str) -> Node:
    return _record({"status": {"const": word}})


def _record(properties: Mapping[str, Node], optional: Sequence[str] = ()) -> Node:
    """An object with these members and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _list_of(items: Node, size: int | None = None) -> Node:
    return {"type": "array", "items": items} | ({} if size is None else {"minItems": size, "maxItems": size})


def _schemas() -> Node:
    engine = dict.fromkeys(("name", "model", "version", "device", "precision", "provider"), _WORDS)
    libraries = {"type": "object", "additionalProperties": _WORDS}
    return {
        "Answer": _record(
            {
                "id": _ID,
                "engine": _ref("Engine"),
                "pages": _list_of({"oneOf": [_ref("Page"), _ref("FailedPage")]}),
                "pages_total": _SIDE | {"description": "Pages that the files have, read or not."},
                "timing": _ref("Timing"),
            }
        ),
        "Page": _page(),
        "FailedPage": _record({"page": _NUMBER, "error": _ref("Problem"), "source": _source()}, optional=("source",)),
        "Line": _line(),
        "Region": _region(),
        "Table": _table(),
        "Cell": _cell(),
        "Word": _word(),
        "Character": _record(_boxed_text()),
        "Engine": _record(engine),
        "Timing": _record(dict.fromkeys(("decode_s", "queue_s", "engine_s", "total_s"), _SECONDS)),
        "Problem": _problem(),
        "Version": _record(
            {
                "name": {"const": "ocrsvc"},
                "version": _WORDS,
                "engine": {"oneOf": [_ref("Engine"), {"type": "null"}]},
                "libraries": libraries,
            }
        ),
    }


def _page() -> Node:
    return _record(
        {
            "page": _NUMBER,
            "width": _SIDE | {"description": "Pixels of the image as displayed, the frame of all boxes."},
            "height": _SIDE,
            "angle": {"enum": [0, 90, 180, 270], "description": "Clockwise turn with which the page was read."},
            "text": {"type": "string", "description": "The lines, joined by newlines."},
            "lines": _list_of(_ref("Line")) | {"description": "In reading order; left out with lines=false."},
            "regions": _list_of(_ref("Region")) | {"description": "In reading order; only with layout=true."},
            "tables": _list_of(_ref("Table")) | {"description": "From top to bottom; only with tables=true."},
            "source": _source(),
        },
        optional=("lines", "regions", "tables", "source"),
    )


def _source() -> Node:
    return _record({"file": _SIDE, "page": _SIDE}) | {
        "description": "Of several files, if one has several pages: place of the file in the request, and of the page "
        "in the file."
    }


def _box() -> Node:
    return _list_of(_list_of({"type": "number"}, 2), 4) | {
        "description": "Corners [x, y], clockwise from where reading starts; origin top left, y downwards."
    }


def _region() -> Node:
    return _record(
        {
            "type": {"enum": list(get_args(RegionType))},
            "confidence": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "description": "0 for text in which the layout model saw no region.",
            },
            "box": _box(),
            "lines": _list_of({"type": "integer", "minimum": 0})
            | {"description": "Which of the page's lines are in it, from 0."},
        }
    )


def _table() -> Node:
    return _record(
        {
            "box": _box(),
            "rows": _SIDE,
            "columns": _SIDE,
            "cells": _list_of(_ref("Cell")) | {"description": "Row by row; together they cover the grid once."},
            "html": {"type": "string", "description": "The table as an HTML element."},
            "markdown": {"type": "string", "description": "As GitHub Flavored Markdown; its first row is the heading."},
        }
    )


def _cell() -> Node:
    index = {"type": "integer", "minimum": 0}
    return _record(
        {
            "row": index,
            "column": index,
            "row_span": _SIDE,
            "column_span": _SIDE,
            "box": _box(),
            "text": _WORDS,
            "lines": _list_of(index) | {"description": "Which of the page's lines stand in it, from 0."},
        }
    )


def _line() -> Node:
    words = _list_of(_ref("Word")) | {"description": "In the order of the text; where they are asked for and known."}
    return _record(_boxed_text() | {"words": words}, optional=("words",))


def _word() -> Node:
    characters = _list_of(_ref("Character")) | {"description": "In the order of the text; where they are asked for."}
    return _record(_boxed_text() | {"characters": characters}, optional=("characters",))


def _boxed_text() -> Node:
    return {
        "text": _WORDS,
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "box": _box(),
    }


def _problem() -> Node:
    return _record(
        {
            "type": {"type": "string", "format": "uri-reference"},
            "title": _WORDS,
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": _WORDS,
            "code": {"type": "string", "description": "Short and stable, for programs."},
            "retryable": {"type": "boolean", "description": "May the same request succeed later?"},
            "id": _ID,
            "remedy": {"type": "string", "description": "What can be done about it."},
        },
        optional=("remedy",),
    )
