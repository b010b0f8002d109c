"""The API of PaddleHub Serving (port 8868); as in the original, client errors are an HTTP 200 with a status code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, make_blueprint, texts_with_corners
from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import NO_IMAGE, as_json, is_reported_in_a_200, read_images
from ocrsvc.results import Line, Reading, ReadOptions

OK, FAILED, NO_MODULE, NOT_JSON = "000", "101", "111", "112"

Items = list[dict[str, object]]


class _NoModule(CallerError):
    """The path names an unknown module."""


def make_paddlehub(context: AdapterContext) -> Blueprint:
    """Make POST /predict/{module}."""
    blueprint = make_blueprint("paddlehub", _failure)

    @blueprint.post("/predict/<module>")
    def predict(module: str) -> Response:
        if module not in MODULES:
            raise _NoModule(f"Module {module} is not available.")
        images, options = request.content.images(("images",), ("images",)), ReadOptions(detect=module != "ocr_rec")
        pages = [_lines(outcome) for outcome in read_images(context.reader, images, options)]
        return as_json({"msg": "", "results": MODULES[module](pages), "status": OK})

    return blueprint


def _lines(outcome: Reading | OcrsvcError) -> tuple[Line, ...]:
    """The lines of an image; as in the original, none for a file that is not an image. Raises other errors."""
    if isinstance(outcome, Reading):
        return outcome.page.lines
    if isinstance(outcome, NO_IMAGE):
        return ()
    raise outcome


def to_system(lines: Sequence[Line]) -> Items:
    """Confidence, text and corners of each line."""
    return [
        {"confidence": score, "text": text, "text_region": region} for text, score, region in texts_with_corners(lines)
    ]


def _to_regions(lines: Sequence[Line]) -> Items:
    return [{"text_region": region} for _, _, region in texts_with_corners(lines)]


def _to_text(lines: Sequence[Line]) -> dict[str, object]:
    items = ({"text": text, "confidence": score} for text, score, _ in texts_with_corners(lines))
    return next(items, {"text": "", "confidence": 0.0})


MODULES: Final[Mapping[str, Callable[[Sequence[Sequence[Line]]], list[Items]]]] = {
    "ocr_system": lambda pages: [to_system(lines) for lines in pages],
    "ocr_det": lambda pages: [_to_regions(lines) for lines in pages],
    # One list for all images; each image is one line.
    "ocr_rec": lambda pages: [[_to_text(lines) for lines in pages]],
}
"""Converts the lines of all images to the `results` of each module."""


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    status = NO_MODULE if isinstance(error, _NoModule) else NOT_JSON if type(error) is CallerError else FAILED
    answer = {"msg": str(failure), "results": "", "status": status}
    return as_json(answer, 200 if is_reported_in_a_200(error) else failure.status)
