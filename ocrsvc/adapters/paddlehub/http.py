"""The API of PaddleHub Serving (port 8868); as in the original, client errors are an HTTP 200 with a status code."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, CodedError, make_blueprint, original_code_of, texts_with_corners
from ocrsvc.errors import OcrsvcError
from ocrsvc.http.request import request
from ocrsvc.http.responses import NO_IMAGE, as_json, is_reported_in_a_200, read_images
from ocrsvc.results import Line, Reading, ReadOptions

OK, FAILED, NO_MODULE, NOT_JSON = "000", "101", "111", "112"

Items = list[dict[str, object]]


def make_paddlehub(context: AdapterContext) -> Blueprint:
    """Make POST /predict/{module}."""

    def predict(module: str) -> Response:
        if module not in MODULES:
            raise CodedError(NO_MODULE, f"Module {module} is not available.")
        images, options = request.content.images(("images",), ("images",)), ReadOptions(detect=module != "ocr_rec")
        pages = [_lines(outcome) for outcome in read_images(context.reader, images, options)]
        return as_json({"msg": "", "results": MODULES[module](pages), "status": OK})

    return make_blueprint("paddlehub", _failure, [("POST", "/predict/<module>", predict)])


def _lines(outcome: Reading | OcrsvcError) -> tuple[Line, ...]:
    """The lines of an image; as in the original, none for a file that is not an image. Raises other errors."""
    if isinstance(outcome, Reading):
        return outcome.page.lines
    if isinstance(outcome, NO_IMAGE):
        return ()
    raise outcome


def to_system(lines: Sequence[Line]) -> Items:
    """The lines as `ocr_system` returns them: confidence, text and corners."""
    placed = texts_with_corners(lines)
    return [{"confidence": score, "text": text, "text_region": region} for text, score, region in placed]


def _to_text(lines: Sequence[Line]) -> dict[str, object]:
    items = ({"text": text, "confidence": score} for text, score, _ in texts_with_corners(lines))
    return next(items, {"text": "", "confidence": 0.0})


MODULES: Final[Mapping[str, Callable[[Sequence[Sequence[Line]]], list[Items]]]] = {
    "ocr_system": lambda pages: [to_system(lines) for lines in pages],
    "ocr_det": lambda pages: [[{"text_region": box} for _, _, box in texts_with_corners(lines)] for lines in pages],
    # All images share one list, because each image is one line of text.
    "ocr_rec": lambda pages: [[_to_text(lines) for lines in pages]],
}
"""For each PaddleHub module, the function that converts the lines of all images to the response's `results`."""


def _failure(failure: OcrsvcError) -> Response:
    answer = {"msg": str(failure), "results": "", "status": original_code_of((), failure, NOT_JSON) or FAILED}
    return as_json(answer, 200 if is_reported_in_a_200(failure) else failure.status)
