"""The API of TrWebOCR.cpp (SamuraiBUPT/TrWebOCR.cpp, port 6006) over HTTP.

Its success response to the letter; its error texts with true statuses, where the original answers 200 to everything.
"""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.errors import BadBase64, BrokenImage, CallerError, NothingSent, UnsupportedImage
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.records import ReadOptions

FILE_FIELDS: Final = ("file",)
TEXT_FIELDS: Final = ("img_base64", "file")
TEXT_TYPE: Final = "text/plain; charset=UTF-8"

HELLO: Final = "Hello World!"
NOTHING_SENT: Final = "Missing file or img_base64 parameter"
NO_IMAGE: Final = "Failed to load image"
BAD_BODY: Final = "Invalid JSON data"


def make_trwebocr_cpp(context: AdapterContext) -> Blueprint:
    """POST /api/trocr and GET /hi over a reader."""
    reader = context.reader
    blueprint = Blueprint("trwebocr_cpp", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post("/api/trocr", strict_slashes=False)
    def trocr() -> Response:
        data = request.content.first_image(FILE_FIELDS, TEXT_FIELDS)
        page = reader.read(data, ReadOptions(), request.left_s, request.context).page
        return Response("".join(f"{line.text}|" for line in page.lines), content_type=TEXT_TYPE)

    @blueprint.get("/hi")
    def hi() -> Response:
        return Response(HELLO, content_type="text/plain")

    return blueprint


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    return Response(_text(error) or str(failure), failure.status, content_type=TEXT_TYPE)


def _text(error: Exception) -> str:
    """The original's own words for this error; empty if it has none."""
    if isinstance(error, NothingSent):
        return NOTHING_SENT
    if isinstance(error, BadBase64 | UnsupportedImage | BrokenImage):
        return NO_IMAGE
    return BAD_BODY if type(error) is CallerError else ""
