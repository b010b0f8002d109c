"""The HTTP gateway of a Paddle Serving pipeline (port 9998 in PaddleOCR's configuration).

Successful responses equal the original's byte for byte: a Python list that clients pass to eval(). As in the original,
a bad image is reported as HTTP 200 with err_no, and a bad body or overload as an error of the gateway.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import orjson
from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, CodedError, make_blueprint, original_code_of, texts_with_corners
from ocrsvc.errors import CallerError, NothingSent, OcrsvcError
from ocrsvc.http.base64text import decode_base64
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
# gRPC codes of errors whose HTTP status is not in GRPC_CODES: INVALID_ARGUMENT for a caller's error, else UNKNOWN.
INVALID_ARGUMENT, UNKNOWN = 3, 2
GRPC_CODES: Final[Mapping[int, int]] = {401: 16, 403: 7, 408: 4, 429: 8, 503: 14, 504: 4}
_REMEDY: Final = 'Send {"key": ["image"], "value": ["<base64>"]}.'


def make_paddle_serving(context: AdapterContext) -> Blueprint:
    """Make POST /ocr/{anything} and /{service}/prediction."""

    def inference(_method: str) -> Response:
        data = image_in(*to_lists(request.content), request.share)
        return _answer(OK, "", result=[to_result(context.read(data).page)])

    def no_service(_service: str) -> Response:
        raise CodedError(NO_SERVICE, NO_SERVICE_TEXT)

    routes = (("POST", "/ocr/<_method>", inference), ("POST", "/<_service>/prediction", no_service))
    return make_blueprint("paddle_serving", _failure, routes)


def to_lists(content: Content) -> tuple[list[str], list[str]]:
    """The members `key` and `value`. Raises CallerError unless they are lists of strings."""
    keys, values = (content.members.get(name) or [] for name in ("key", "value"))
    for items in (keys, values):
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise CallerError("The member 'key' or 'value' is not a list of strings.", _REMEDY)
    return keys, values  # type: ignore[return-value]  # checked above


def image_in(keys: Iterable[str], values: Iterable[str], share: Share) -> bytes:
    """The image of a request. Raises NothingSent, and as `decode_base64`."""
    members = dict(zip(keys, values, strict=False))
    if "image" not in members:
        raise NothingSent('The keys do not include "image".', _REMEDY)
    return decode_base64(members["image"], share)


def to_result(page: Page) -> str:
    """The Python literal [[(text, score), corners], ...], which `eval` reads back exactly."""
    # orjson formats corners like repr, in a third of the time.
    items = [
        f"[({text!r}, {score}), {orjson.dumps(corners).decode().replace(',', ', ')}]"
        for text, score, corners in texts_with_corners(page.lines, 1)
    ]
    return f"[{', '.join(items)}]"


def _answer(number: int, message: str, result: Iterable[str] = (), status: int = 200) -> Response:
    value = list(result)
    answer = {"err_no": number, "err_msg": message, "key": ["result"] * len(value), "value": value, "tensors": []}
    response = as_json(answer, status)
    response.headers.extend(GATEWAY_HEADERS)
    return response


def _failure(failure: OcrsvcError) -> Response:
    message = str(failure)
    if is_wrong_path(failure):
        return Response(f"{failure.title}\n", failure.status, content_type="text/plain; charset=utf-8")
    if type(failure) is not CallerError and is_reported_in_a_200(failure):
        return _answer(original_code_of((), failure, None) or BAD_INPUT, message)
    code = GRPC_CODES.get(failure.status, INVALID_ARGUMENT if isinstance(failure, CallerError) else UNKNOWN)
    return as_json({"error": message, "code": code, "message": message, "details": []}, failure.status)
