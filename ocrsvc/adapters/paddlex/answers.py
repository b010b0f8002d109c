"""Answers of PaddleX's serving: the envelope around results and errors."""

import json
import uuid
from collections.abc import Sequence

import orjson

from ocrsvc.adapters.paddlex.members import INVALID_FILE, MAX_TEXT, UNPROCESSABLE, validation_error
from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.http.responses import NO_IMAGE, is_wrong_path
from ocrsvc.results import Page


def success_envelope(result: dict[str, object], log_id: object) -> bytes:
    """The JSON response with a result; `log_id` is the id that the client sent."""
    return orjson.dumps({"logId": _log_id(log_id), "result": result, "errorCode": 0, "errorMsg": "Success"})


def failure_envelope(failure: OcrsvcError, log_id: object) -> tuple[int, dict[str, object]]:
    """HTTP status and response for an error; `log_id` is the id that the client sent."""
    status, message = failure.status, str(failure)
    if isinstance(failure, NO_IMAGE):
        status, message = UNPROCESSABLE, f"{INVALID_FILE}. {message}"
    elif type(failure) is CallerError:
        status, message = UNPROCESSABLE, json.dumps([validation_error("json_invalid", "body", message)])
    elif is_wrong_path(failure):
        message = failure.title
    return status, {"logId": _log_id(log_id), "errorCode": status, "errorMsg": message}


def data_info(kind: str, pages: Sequence[Page]) -> dict[str, object]:
    """An image's size, or the number and sizes of the pages read of a document, in pixels and PaddleX's format."""
    sizes = [{"width": page.width, "height": page.height} for page in pages]
    if kind == "image":
        return sizes[0] | {"type": kind}
    return {"numPages": len(pages), "pages": sizes, "type": kind.lower()}


def _log_id(log_id: object) -> str:
    return log_id if isinstance(log_id, str) and len(log_id) <= MAX_TEXT else str(uuid.uuid4())
