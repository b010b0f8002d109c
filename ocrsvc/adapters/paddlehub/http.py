"""How does PaddleHub Serving (port 8868 for ocr_system) speak?

Its success answer to the letter. What the caller got wrong is told in an HTTP 200 with a status of its own, as there;
what the service refuses keeps its true status beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson
from flask import Blueprint, Response, request

from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.formats.box_values import to_boxes, to_scores, whole
from ocrsvc.formats.json_lines import column, json_list, row_column, text_column
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import context_of, deadline_of, images_or_errors, left_s, receive
from ocrsvc.http.responses import NO_IMAGE, as_json, is_told_in_a_200, with_headers
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Line, Reading, ReadOptions
from ocrsvc.settings.settings import Settings

IMAGE_FIELDS: Final = ("images",)
OK, FAILED, NO_MODULE, NOT_JSON = "000", "101", "111", "112"

Items = orjson.Fragment | list[dict[str, object]]


class _NoModule(CallerError):
    """The path names a module that is not served."""


def make_paddlehub(settings: Settings, reader: Reader) -> Blueprint:
    """POST /predict/{module} over a reader."""
    dialect = Blueprint("paddlehub", __name__)
    dialect.register_error_handler(Exception, _failure)

    @dialect.post("/predict/<module>")
    def predict(module: str) -> Response:
        if module not in MODULES:
            raise _NoModule(f"Module {module} is not available.")
        deadline = deadline_of(request.environ, settings.deadline_s)
        incoming = receive(request.environ, settings.max_body_bytes, deadline)
        images = images_or_errors(incoming, IMAGE_FIELDS, IMAGE_FIELDS)
        options = ReadOptions(detect=module != "ocr_rec")
        pages = _pages(reader, images, options, left_s(deadline))
        return as_json({"msg": "", "results": MODULES[module](pages), "status": OK})

    return dialect


def _pages(
    reader: Reader, images: Sequence[bytes | OcrsvcError], options: ReadOptions, limit_s: float
) -> list[tuple[Line, ...]]:
    """The lines of each image; none for what is no image, as in the original. Raises any other error."""
    datas = [image for image in images if isinstance(image, bytes)]
    outcomes = iter(reader.read_many(datas, options, limit_s, context_of(request.environ)))
    return [_lines(next(outcomes) if isinstance(image, bytes) else image) for image in images]


def _lines(outcome: Reading | OcrsvcError) -> tuple[Line, ...]:
    if isinstance(outcome, Reading):
        return outcome.page.lines
    if isinstance(outcome, NO_IMAGE):
        return ()
    raise outcome


def to_system(lines: Sequence[Line]) -> Items:
    """Confidence, text and corners of each line."""
    return json_list(
        b'{"confidence":%,"text":%,"text_region":[[%]]}',
        column(to_scores(lines)),
        text_column(lines),
        row_column(whole(to_boxes(lines))),
    )


def _to_regions(lines: Sequence[Line]) -> Items:
    return json_list(b'{"text_region":[[%]]}', row_column(whole(to_boxes(lines))))


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
    return with_headers(as_json(answer, 200 if is_told_in_a_200(error) else failure.status), failure)
