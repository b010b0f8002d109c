"""The API of TrWebOCR.cpp (SamuraiBUPT/TrWebOCR.cpp, port 6006) over HTTP.

Its success response to the letter; its error texts with true statuses, where the original answers 200 to everything.
"""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, make_blueprint
from ocrsvc.errors import CallerError, NothingSent
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import NO_IMAGE

TEXT_TYPE: Final = "text/plain; charset=UTF-8"


def make_trwebocr_cpp(context: AdapterContext) -> Blueprint:
    """POST /api/trocr and GET /hi over a reader."""
    blueprint = make_blueprint("trwebocr_cpp", _failure)

    @blueprint.post("/api/trocr", strict_slashes=False)
    def trocr() -> Response:
        page = context.read(request.content.first_image(("file",), ("img_base64", "file"))).page
        return Response("".join(f"{line.text}|" for line in page.lines), content_type=TEXT_TYPE)

    @blueprint.get("/hi")
    def hi() -> Response:
        return Response("Hello World!", content_type="text/plain")

    return blueprint


def _failure(error: Exception) -> Response:
    """In the original's own words where it has any."""
    failure = failure_of(error)
    text = str(failure)
    if isinstance(error, NothingSent):
        text = "Missing file or img_base64 parameter"
    elif isinstance(error, NO_IMAGE):
        text = "Failed to load image"
    elif type(error) is CallerError:
        text = "Invalid JSON data"
    return Response(text, failure.status, content_type=TEXT_TYPE)
