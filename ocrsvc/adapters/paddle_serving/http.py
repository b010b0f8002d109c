"""The HTTP gateway of a Paddle Serving pipeline (port 9998 in PaddleOCR's configuration).

Its success response to the letter: a list as Python writes it, which clients hand to eval(). What is wrong with an
image is reported by err_no in an HTTP 200, as there; what is wrong with the body, or refused, as its gateway does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.paddle_serving.python_list import to_result
from ocrsvc.errors import CallerError, NothingSent
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, is_reported_in_a_200, is_wrong_path
from ocrsvc.records import ReadOptions
from ocrsvc.serving.memory_budget import Share

OK, NO_SERVICE, BAD_INPUT = 0, 3002, 5000
NO_SERVICE_TEXT: Final = "Failed to inference: Service name error."

GATEWAY_HEADERS: Final = {
    "Grpc-Metadata-Content-Type": "application/grpc",
    "Grpc-Metadata-Grpc-Accept-Encoding": "identity, deflate, gzip",
}
# HTTP status to gRPC code, as the gateway counts.
INVALID_ARGUMENT, UNKNOWN = 3, 2
GRPC_CODES: Final[Mapping[int, int]] = {401: 16, 403: 7, 408: 4, 429: 8, 503: 14, 504: 4}


class _WrongType(CallerError):
    """A member of the body has a type that the gateway cannot put into its message."""


class _NoService(CallerError):
    """The path names another service than ocr."""


def make_paddle_serving(context: AdapterContext) -> Blueprint:
    """POST /ocr/{anything} and /{service}/prediction over a reader."""
    reader = context.reader
    blueprint = Blueprint("paddle_serving", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post("/ocr/<_method>")
    def inference(_method: str) -> Response:
        image = _image(to_pairs(request.content), request.share)
        page = reader.read(image, ReadOptions(), request.left_s, request.context).page
        return _answer(OK, "", result=to_result(page))

    @blueprint.post("/<_service>/prediction")
    def no_service(_service: str) -> Response:
        raise _NoService(NO_SERVICE_TEXT)

    return blueprint


def to_pairs(content: Content) -> dict[str, str]:
    """The members `key` and `value`, side by side. Raises CallerError for other types than lists of text."""
    keys, values = (_texts(content.members.get(name), name) for name in ("key", "value"))
    return dict(zip(keys, values, strict=False))


def _texts(value: object, name: str) -> list[str]:
    items = [] if value is None else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise _WrongType(
            f"The member {name!r} is not a list of texts.", 'Send {"key": ["image"], "value": ["<base64>"]}.'
        )
    return items


def _image(sent: Mapping[str, str], share: Share) -> bytes:
    if "image" not in sent:
        raise NothingSent('There is no "image" among the keys.', 'Send {"key": ["image"], "value": ["<base64>"]}.')
    return decode_base64(sent["image"], share)


def _answer(number: int, message: str, result: str | None = None, status: int = 200) -> Response:
    key, value = ([], []) if result is None else (["result"], [result])
    response = as_json({"err_no": number, "err_msg": message, "key": key, "value": value, "tensors": []}, status)
    response.headers.extend(GATEWAY_HEADERS)
    return response


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    if is_wrong_path(failure):
        return Response(f"{failure.title}\n", failure.status, content_type="text/plain; charset=utf-8")
    if isinstance(error, _NoService):
        return _answer(NO_SERVICE, NO_SERVICE_TEXT)
    if type(error) not in {CallerError, _WrongType} and is_reported_in_a_200(error):
        return _answer(BAD_INPUT, str(failure))
    message = str(failure)
    code = GRPC_CODES.get(failure.status, INVALID_ARGUMENT if isinstance(error, CallerError) else UNKNOWN)
    answer = {"error": message, "code": code, "message": message, "details": []}
    return as_json(answer, failure.status)
