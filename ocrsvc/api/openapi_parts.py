"""Parts of the OpenAPI description that several paths share: options, bodies, answers and problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ocrsvc import errors
from ocrsvc.api.openapi_schemas import COUNT, Node, ref
from ocrsvc.http.error_responses import PROBLEM_TYPE
from ocrsvc.http.options import Option
from ocrsvc.http.request import ID_HEADER

Errors = Sequence[type[errors.OcrsvcError]]

_BASE64: Final[Node] = {
    "type": "string",
    "description": "Base64 of an image file; a data URI, the URL-safe alphabet and missing padding are understood.",
}
_BASE64_OR_MORE: Final[Node] = {"oneOf": [_BASE64, {"type": "array", "minItems": 1, "items": _BASE64}]}
_URL: Final[Node] = {
    "type": "string",
    "description": "The URL of a file, by http or https; refused where its host may not be asked.",
}
_BINARY: Final[Node] = {"contentMediaType": "application/octet-stream", "description": "An image file."}


def parameter(name: str, option: Option) -> Node:
    """An option in the query."""
    return {"name": name, "in": "query", "description": option.help, "schema": option_schema(option)}


def option_schema(option: Option) -> Node:
    """What an option takes."""
    default = {"true": True, "false": False}.get(option.default or "", option.default)
    return dict(option.schema) | ({} if default is None else {"default": default})


def bodies(options: Node, *, fetches_urls: bool) -> Node:
    """The ways in which a file and options are sent, or its URL; `options` are the schemas by name."""
    images = {"image": _BASE64_OR_MORE, "images": _BASE64_OR_MORE, **({"url": _URL} if fetches_urls else {})}
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


def get(operation: str, summary: str, schema: Node, failures: Errors = ()) -> Node:
    """An operation that answers JSON of a schema."""
    answer = {
        "description": summary,
        "headers": headers(),
        "content": {"application/json": {"schema": schema}},
    }
    return {
        "operationId": operation,
        "summary": summary,
        "responses": {"200": answer} | problem_responses([*failures, errors.OcrsvcError]),
    }


def problem_responses(failures: Errors) -> Node:
    """One response for each status, naming its codes."""
    statuses = sorted({failure.status for failure in failures})
    return {str(status): _problem_response([f for f in failures if f.status == status]) for status in statuses}


def _problem_response(failures: Errors) -> Node:
    retry = {"Retry-After": {"description": "Seconds after which a retry is worth it.", "schema": COUNT}}
    described = headers() | (retry if any(issubclass(failure, errors.Refused) for failure in failures) else {})
    return {
        "description": "; ".join(f"{failure.code}: {failure.title}" for failure in failures),
        "headers": described,
        "content": {PROBLEM_TYPE: {"schema": ref("Problem")}},
    }


def headers() -> Node:
    """Of every answer."""
    return {ID_HEADER: {"$ref": "#/components/headers/RequestId"}}
