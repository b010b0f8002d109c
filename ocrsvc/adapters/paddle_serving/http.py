"""The HTTP gateway of a Paddle Serving pipeline (port 9998 in PaddleOCR's configuration).

Its success response to the letter: a list as Python writes it, which clients hand to eval(). A bad image is reported by
err_no in an HTTP 200, as there; a bad body and a refusal as by its gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import orjson
from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, make_blueprint, placed_texts
from ocrsvc.errors import CallerError, NothingSent
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, is_reported_in_a_200, is_wrong_path
from ocrsvc.results import Page
from ocrsvc.serving.memory_budget import Share

OK, NO_SERVICE, BAD_INPUT = 0, 3002, 5000
NO_SERVICE_TEXT: Final = "Failed to inference: Service name error."

GATEWAY_HEADERS: Final = {
    "Grpc-Metadata-Content-Type": "application/grpc",
    "Grpc-Metadata-Grpc-Accept-Encoding": "identity, deflate, gzip",
}
# The gateway's gRPC codes, by HTTP status.
INVALID_ARGUMENT, UNKNOWN = 3, 2
GRPC_CODES: Final[Mapping[int, int]] = {401: 16, 403: 7, 408: 4, 429: 8, 503: 14, 504: 4}
_HOW: Final = 'Send {"key": ["image"], "value": ["<base64>"]}.'


class _WrongType(CallerError):
    """A member of the body has a type that the gateway's message cannot hold."""


class _NoService(CallerError):
    """The path names another service than ocr."""


def make_paddle_serving(context: AdapterContext) -> Blueprint:
    """POST /ocr/{anything} and /{service}/prediction over a reader."""
    blueprint = make_blueprint("paddle_serving", _failure)

    @blueprint.post("/ocr/<_method>")
    def inference(_method: str) -> Response:
        data = image_in(*to_lists(request.content), request.share)
        return _answer(OK, "", result=[to_result(context.read(data).page)])

    @blueprint.post("/<_service>/prediction")
    def no_service(_service: str) -> Response:
        raise _NoService(NO_SERVICE_TEXT)

    return blueprint


def to_lists(content: Content) -> tuple[list[str], list[str]]:
    """The members `key` and `value`. Raises CallerError for other types than lists of text."""
    keys, values = (content.members.get(name) or [] for name in ("key", "value"))
    for items in (keys, values):
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise _WrongType("The member 'key' or 'value' is not a list of texts.", _HOW)
    return keys, values  # type: ignore[return-value]  # checked above


def image_in(keys: Iterable[str], values: Iterable[str], share: Share) -> bytes:
    """The image of a request. Raises NothingSent, and as `decode_base64`."""
    sent = dict(zip(keys, values, strict=False))
    if "image" not in sent:
        raise NothingSent('There is no "image" among the keys.', _HOW)
    return decode_base64(sent["image"], share)


def to_result(page: Page) -> str:
    """[[(text, score), corners], ...] as Python writes it: `eval` gives exactly that back, whatever the text is."""
    # orjson writes corners as repr does, in a third of its time.
    items = [
        f"[({text!r}, {score}), {orjson.dumps(corners).decode().replace(',', ', ')}]"
        for text, score, corners in placed_texts(page.lines, 1)
    ]
    return f"[{', '.join(items)}]"


def _answer(number: int, message: str, result: Iterable[str] = (), status: int = 200) -> Response:
    value = list(result)
    answer = {"err_no": number, "err_msg": message, "key": ["result"] * len(value), "value": value, "tensors": []}
    response = as_json(answer, status)
    response.headers.extend(GATEWAY_HEADERS)
    return response


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    message = str(failure)
    if is_wrong_path(failure):
        return Response(f"{failure.title}\n", failure.status, content_type="text/plain; charset=utf-8")
    if isinstance(error, _NoService):
        return _answer(NO_SERVICE, NO_SERVICE_TEXT)
    if type(error) not in {CallerError, _WrongType} and is_reported_in_a_200(error):
        return _answer(BAD_INPUT, message)
    code = GRPC_CODES.get(failure.status, INVALID_ARGUMENT if isinstance(error, CallerError) else UNKNOWN)
    return as_json({"error": message, "code": code, "message": message, "details": []}, failure.status)
