"""The API of PaddleHub Serving (port 8868 for ocr_system) over HTTP.

Its success response to the letter. What the caller got wrong is reported in an HTTP 200 with a status of its own, as
there; what the service refuses keeps its true status beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.formats.boxes import to_boxes, to_scores, whole
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import NO_IMAGE, as_json, is_reported_in_a_200, read_images
from ocrsvc.readings import Reading
from ocrsvc.records import Line, ReadOptions

IMAGE_FIELDS: Final = ("images",)
OK, FAILED, NO_MODULE, NOT_JSON = "000", "101", "111", "112"

Items = list[dict[str, object]]


class _NoModule(CallerError):
    """The path names a module that is not served."""


def make_paddlehub(context: AdapterContext) -> Blueprint:
    """POST /predict/{module} over a reader."""
    reader = context.reader
    blueprint = Blueprint("paddlehub", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post("/predict/<module>")
    def predict(module: str) -> Response:
        if module not in MODULES:
            raise _NoModule(f"Module {module} is not available.")
        images = request.content.images(IMAGE_FIELDS, IMAGE_FIELDS)
        pages = [_lines(outcome) for outcome in read_images(reader, images, ReadOptions(detect=module != "ocr_rec"))]
        return as_json({"msg": "", "results": MODULES[module](pages), "status": OK})

    return blueprint


def _lines(outcome: Reading | OcrsvcError) -> tuple[Line, ...]:
    """The lines of an image; none for what is no image, as in the original. Raises any other error."""
    if isinstance(outcome, Reading):
        return outcome.page.lines
    if isinstance(outcome, NO_IMAGE):
        return ()
    raise outcome


def to_system(lines: Sequence[Line]) -> Items:
    """Confidence, text and corners of each line."""
    scores, corners = to_scores(lines), whole(to_boxes(lines)).tolist()
    return [
        {"confidence": score, "text": line.text, "text_region": region}
        for score, line, region in zip(scores, lines, corners, strict=True)
    ]


def _to_regions(lines: Sequence[Line]) -> Items:
    return [{"text_region": region} for region in whole(to_boxes(lines)).tolist()]


def _to_texts(pages: Sequence[Sequence[Line]]) -> list[Items]:
    """One list for all images, each of which was read as one line."""
    return [[_to_text(lines) for lines in pages]]


def _to_text(lines: Sequence[Line]) -> dict[str, object]:
    texts = [{"text": line.text, "confidence": score} for line, score in zip(lines, to_scores(lines), strict=True)]
    return texts[0] if texts else {"text": "", "confidence": 0.0}


MODULES: Final[Mapping[str, Callable[[Sequence[Sequence[Line]]], list[Items]]]] = {
    "ocr_system": lambda pages: [to_system(lines) for lines in pages],
    "ocr_det": lambda pages: [_to_regions(lines) for lines in pages],
    "ocr_rec": _to_texts,
}
"""What each module's `results` are, from the lines of each image."""


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    status = NO_MODULE if isinstance(error, _NoModule) else NOT_JSON if type(error) is CallerError else FAILED
    answer = {"msg": str(failure), "results": "", "status": status}
    return as_json(answer, 200 if is_reported_in_a_200(error) else failure.status)
