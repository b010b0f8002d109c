"""The OpenAPI 3.1 description of the native API.

Options and errors come from where they are declared; paths are written here, shapes in openapi_schemas.py, and both are
held against the running service by tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ocrsvc import __version__, errors
from ocrsvc.api.openapi_schemas import COUNT, ID, TEXT, Node, record, ref, schemas
from ocrsvc.formats.output_formats import OUTPUT_FORMATS
from ocrsvc.http.error_responses import PROBLEM_TYPE
from ocrsvc.http.options import OPTIONS, Option
from ocrsvc.http.request import ID_HEADER, PRIORITY_HEADER, TIMEOUT_HEADER, TIMING_HEADER
from ocrsvc.masking.kinds import HEADER as MASK_HEADER
from ocrsvc.masking.kinds import PATTERN
from ocrsvc.serving.work_queue import PRIORITIES
from ocrsvc.telemetry.trace_context import PARENT_HEADER, STATE_HEADER

Errors = Sequence[type[errors.OcrsvcError]]

READING_ERRORS: Final[Errors] = (
    errors.CallerError,
    errors.NothingSent,
    errors.BadBase64,
    errors.BadOption,
    errors.UnknownModel,
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
    errors.ModelUnavailable,
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


KEY_ERRORS: Final[Errors] = (
    errors.KeyMissing,
    errors.KeyRefused,
    errors.ScopeMissing,
    errors.PagesOverQuota,
    errors.QuotaExceeded,
    errors.KeysUnavailable,
)
"""What may be answered besides where requests want API keys."""

_KEY_SCHEMES: Final[Node] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The API key."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The API key."},
    "basic": {"type": "http", "scheme": "basic", "description": "For browsers: any name, and the key as password."},
}


def openapi(*, wants_keys: bool = False) -> Node:
    """The whole description; `wants_keys` where requests want API keys."""
    schemes = {"securitySchemes": _KEY_SCHEMES} if wants_keys else {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ocrsvc",
            "version": __version__,
            "summary": "Reads the text on page images.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        **({"security": [{name: []} for name in _KEY_SCHEMES]} if wants_keys else {}),
        "paths": _paths(KEY_ERRORS if wants_keys else (), {"security": []} if wants_keys else {}),
        "components": {
            "schemas": schemas(),
            "headers": {"RequestId": {"description": "Id of the request.", "schema": ID}},
            **schemes,
        },
    }


def _paths(key_errors: Errors, opened: Node) -> Node:
    """Each path; `opened` are the members of an operation that wants no key."""
    listing_errors: Errors = [errors.NotReady, *key_errors]
    return {
        "/v1/ocr": {"post": _ocr([*READING_ERRORS, *key_errors])},
        "/v1/ocr/models": {
            "get": _get("models", "The models that requests may name.", ref("ModelList"), listing_errors)
        },
        "/healthz": {"get": _get("healthz", "The process is alive.", _state("ok")) | opened},
        "/readyz": {
            "get": _get("readyz", "An engine is warm in this worker.", _state("ready"), [errors.NotReady]) | opened,
        },
        "/version": {"get": _get("version", "What answers here.", ref("Version"), key_errors)},
        "/openapi.json": {"get": _get("openapi", "This description.", {"type": "object"}, key_errors)},
    }


def _ocr(failures: Errors) -> Node:
    return {
        "operationId": "ocr",
        "summary": "Read one or more page images or documents.",
        "parameters": [_parameter(name, option) for name, option in OPTIONS.items()] + _header_parameters(),
        "requestBody": {
            "required": True,
            "description": "The options may also be fields of the form or members of the JSON object.",
            "content": _bodies(),
        },
        "responses": {"200": _read_response()} | _problem_responses(failures),
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
            "name": MASK_HEADER,
            "in": "header",
            "description": "What is masked in the answer, in any format, beside what the option mask names.",
            "schema": {"type": "string", "pattern": PATTERN},
        },
        {
            "name": ID_HEADER,
            "in": "header",
            "description": "Your own id for this request: up to 128 visible ASCII characters, else it gets a new one.",
            "schema": TEXT,
        },
        *_trace_parameters(),
    ]


def _trace_parameters() -> list[Node]:
    parent = "Your trace, by W3C Trace Context; the answer carries it. What is malformed counts as not sent."
    return [
        {"name": PARENT_HEADER, "in": "header", "description": parent, "schema": TEXT},
        {"name": STATE_HEADER, "in": "header", "description": "Goes with traceparent.", "schema": TEXT},
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
        "headers": _headers() | _timing_headers(),
        "content": {"application/json": {"schema": ref("Answer")}}
        | {
            form.media_type: {"schema": {"type": "string", "description": f"With format={name}: {form.help}."}}
            for name, form in OUTPUT_FORMATS.items()
        },
    }


def _get(operation: str, summary: str, schema: Node, failures: Errors = ()) -> Node:
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


def _problem_responses(failures: Errors) -> Node:
    """One response for each status, naming its codes."""
    statuses = sorted({failure.status for failure in failures})
    return {str(status): _problem_response([f for f in failures if f.status == status]) for status in statuses}


def _problem_response(failures: Errors) -> Node:
    retry = {"Retry-After": {"description": "Seconds after which a retry is worth it.", "schema": COUNT}}
    headers = _headers() | (retry if any(issubclass(failure, errors.Refused) for failure in failures) else {})
    return {
        "description": "; ".join(f"{failure.code}: {failure.title}" for failure in failures),
        "headers": headers,
        "content": {PROBLEM_TYPE: {"schema": ref("Problem")}},
    }


def _headers() -> Node:
    return {ID_HEADER: {"$ref": "#/components/headers/RequestId"}}


def _timing_headers() -> Node:
    return {
        TIMING_HEADER: {"description": "Milliseconds of each stage; with timing=stages.", "schema": TEXT},
        PARENT_HEADER: {"description": "The trace that the request belongs to, if there is one.", "schema": TEXT},
    }


def _state(word: str) -> Node:
    return record({"status": {"const": word}})
