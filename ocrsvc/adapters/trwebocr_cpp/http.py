"""How does TrWebOCR.cpp (SamuraiBUPT/TrWebOCR.cpp, port 6006) speak?

Its success answer to the letter; its error texts with true statuses, where the original answers 200 to everything.
"""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response, request

from ocrsvc.errors import BadBase64, BrokenImage, CallerError, NothingSent, UnsupportedImage
from ocrsvc.formats.text import to_bars
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import context_of, deadline_of, first_image, left_s, receive
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import ReadOptions
from ocrsvc.settings.settings import Settings

FILE_FIELDS: Final = ("file",)
TEXT_FIELDS: Final = ("img_base64", "file")
TEXT_TYPE: Final = "text/plain; charset=UTF-8"

HELLO: Final = "Hello World!"
NOTHING_SENT: Final = "Missing file or img_base64 parameter"
NO_IMAGE: Final = "Failed to load image"
BAD_BODY: Final = "Invalid JSON data"


def make_trwebocr_cpp(settings: Settings, reader: Reader) -> Blueprint:
    """POST /api/trocr and GET /hi over a reader."""
    dialect = Blueprint("trwebocr_cpp", __name__)
    dialect.register_error_handler(Exception, _failure)

    @dialect.post("/api/trocr", strict_slashes=False)
    def trocr() -> Response:
        deadline = deadline_of(request.environ, settings.deadline_s)
        incoming = receive(request.environ, settings.max_body_bytes, deadline)
        data = first_image(incoming, FILE_FIELDS, TEXT_FIELDS)
        reading = reader.read(data, ReadOptions(), left_s(deadline), context_of(request.environ))
        return Response(to_bars(reading.page), content_type=TEXT_TYPE)

    @dialect.get("/hi")
    def hi() -> Response:
        return Response(HELLO, content_type="text/plain")

    return dialect


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    return Response(_text(error) or str(failure), failure.status, failure.headers, content_type=TEXT_TYPE)


def _text(error: Exception) -> str:
    """The original's own words for this error; empty if it has none."""
    if isinstance(error, NothingSent):
        return NOTHING_SENT
    if isinstance(error, BadBase64 | UnsupportedImage | BrokenImage):
        return NO_IMAGE
    return BAD_BODY if type(error) is CallerError else ""
