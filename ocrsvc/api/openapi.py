"""The OpenAPI 3.1 description of the native API.

Options and errors come from where they are declared; paths are written here, shapes in openapi_schemas.py,
jobs in openapi_jobs.py, and all are held against the running service by tests.
"""

from __future__ import annotations

from typing import Final

from ocrsvc import __version__, errors
from ocrsvc.api.document_responses import FAILED_HEADER
from ocrsvc.api.openapi_jobs import job_paths, job_schemas
from ocrsvc.api.openapi_parts import Errors, bodies, get, headers, option_schema, parameter, problem_responses
from ocrsvc.api.openapi_schemas import ID, TEXT, Node, record, ref, schemas
from ocrsvc.document_output.document_formats import DOCUMENT_FORMATS
from ocrsvc.document_output.requested_files import ZIP_TYPE
from ocrsvc.http.options import OPTIONS
from ocrsvc.http.request import ID_HEADER, PRIORITY_HEADER, TIMEOUT_HEADER, TIMING_HEADER
from ocrsvc.http.stream_forms import STREAM_FORMS, StreamForm
from ocrsvc.masking.kinds import HEADER as MASK_HEADER
from ocrsvc.masking.kinds import PATTERN
from ocrsvc.serving.work_queue import PRIORITIES
from ocrsvc.telemetry.trace_context import PARENT_HEADER, STATE_HEADER

READING_ERRORS: Final[Errors] = (
    errors.CallerError,
    errors.NothingSent,
    errors.BadBase64,
    errors.BadOption,
    errors.UrlRefused,
    errors.UrlUnavailable,
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


def openapi(*, wants_keys: bool = False, fetches_urls: bool = False) -> Node:
    """The whole description; `wants_keys` where requests want API keys, `fetches_urls` where they may name URLs."""
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
        "paths": _paths(
            KEY_ERRORS if wants_keys else (), {"security": []} if wants_keys else {}, fetches_urls=fetches_urls
        ),
        "components": {
            "schemas": schemas() | job_schemas(),
            "headers": {"RequestId": {"description": "Id of the request.", "schema": ID}},
            **schemes,
        },
    }


def _paths(key_errors: Errors, opened: Node, *, fetches_urls: bool) -> Node:
    """Each path; `opened` are the members of an operation that wants no key."""
    listing_errors: Errors = [errors.NotReady, *key_errors]
    return {
        "/v1/ocr": {"post": _ocr([*READING_ERRORS, *key_errors], fetches_urls=fetches_urls)},
        "/v1/ocr/models": {
            "get": get("models", "The models that requests may name.", ref("ModelList"), listing_errors)
        },
        "/v1/ocr/picture": {"post": _picture([*READING_ERRORS, *key_errors])},
        **job_paths(key_errors, fetches_urls=fetches_urls),
        "/healthz": {"get": get("healthz", "The process is alive.", _state("ok")) | opened},
        "/readyz": {
            "get": get("readyz", "An engine is warm in this worker.", _state("ready"), [errors.NotReady]) | opened,
        },
        "/version": {"get": get("version", "What answers here.", ref("Version"), key_errors)},
        "/openapi.json": {"get": get("openapi", "This description.", {"type": "object"}, key_errors)},
    }


def _ocr(failures: Errors, *, fetches_urls: bool) -> Node:
    options = {name: option_schema(option) for name, option in OPTIONS.items()}
    return {
        "operationId": "ocr",
        "summary": "Read one or more page images or documents.",
        "parameters": [parameter(name, option) for name, option in OPTIONS.items()] + _header_parameters(),
        "requestBody": {
            "required": True,
            "description": "The options may also be fields of the form or members of the JSON object.",
            "content": bodies(options, fetches_urls=fetches_urls),
        },
        "responses": {"200": _read_response()} | problem_responses(failures),
    }


def _picture(failures: Errors) -> Node:
    number = {"type": "integer", "minimum": 1, "maximum": 9_999_999, "default": 1}
    jpeg = {"image/jpeg": {"schema": {"type": "string", "contentMediaType": "image/jpeg"}}}
    return {
        "operationId": "picture",
        "summary": "One page of a document as a picture; nothing is read.",
        "parameters": [
            {"name": "page", "in": "query", "description": "The number of the page, from 1.", "schema": number}
        ],
        "requestBody": {"required": True, "description": "The file.", "content": {"application/octet-stream": {}}},
        "responses": {"200": {"description": "The page.", "headers": headers(), "content": jpeg}}
        | problem_responses(failures),
    }


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


def _read_response() -> Node:
    return {
        "description": "The pages, in the order of the images.",
        "headers": headers() | _timing_headers() | _file_headers(),
        "content": {"application/json": {"schema": ref("Answer")}}
        | {
            form.media_type: {"schema": _file(form.writer) | {"description": f"With format={name}: {form.help}."}}
            for name, form in DOCUMENT_FORMATS.items()
        }
        | {ZIP_TYPE: {"schema": _file("zip") | {"description": "With several formats: a file for each."}}}
        | {form.media_type: {"schema": _parts_schema(name, form)} for name, form in STREAM_FORMS.items()},
    }


def _parts_schema(name: str, form: StreamForm) -> Node:
    event = {"event": {"enum": ["page", "end", "error"]}, "data": TEXT}
    return {
        **({"type": "object", "properties": event} if name == "sse" else {"type": "string"}),
        "description": f"With format={name}: {form.help}. Each part is a page as in JSON with pages_total and "
        'pages_wanted, and the last is {"end": …}, or {"error": …} where the answer ends early.',
    }


def _file(writer: str) -> Node:
    """The schema of a file that a writer of its own makes, or of text."""
    return {"contentMediaType": "application/octet-stream"} if writer else {"type": "string"}


def _file_headers() -> Node:
    return {
        "Content-Disposition": {"description": "A name for the file, of the one that was sent.", "schema": TEXT},
        FAILED_HEADER: {
            "description": "Pages that could not be read, as the option pages takes them; with other forms than JSON.",
            "schema": TEXT,
        },
    }


def _timing_headers() -> Node:
    return {
        TIMING_HEADER: {"description": "Milliseconds of each stage; with timing=stages.", "schema": TEXT},
        PARENT_HEADER: {"description": "The trace that the request belongs to, if there is one.", "schema": TEXT},
    }


def _state(word: str) -> Node:
    return record({"status": {"const": word}})
