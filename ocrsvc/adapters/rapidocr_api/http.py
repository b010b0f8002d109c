"""The API of rapidocr_api (RapidAI/RapidOCRAPI, port 9003) over HTTP.

Its success response to the letter; its errors as FastAPI shapes them, with true statuses where the original answers
500. `return_word_box` is RapidOCR's own flag, which the original does not hand on.
"""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.errors import BadOption
from ocrsvc.formats.boxes import to_boxes, to_scores
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.field_values import as_text
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, is_wrong_path, rotate_option
from ocrsvc.records import Line, Page, ReadOptions

FILE_FIELDS: Final = ("image_file",)
TEXT_FIELDS: Final = ("image_data",)
FLAGS: Final = ("use_det", "use_cls", "use_rec", "return_word_box")

BANNER: Final = "Welcome to RapidOCR API Server!"
NOT_A_BOOL: Final = "Input should be a valid boolean, unable to interpret input"
NOT_A_FILE: Final = "Value error, Expected UploadFile, received: <class 'str'>"


class _BadField(BadOption):
    """A field that FastAPI would refuse; `item` is the entry of its list `detail`."""

    status = 422

    def __init__(self, kind: str, field: str, message: str, sent: object) -> None:
        super().__init__(f"{field}: {message}")
        self.item = {"type": kind, "loc": ["body", field], "msg": message, "input": sent}


def make_rapidocr_api(context: AdapterContext) -> Blueprint:
    """POST /ocr and GET / over a reader."""
    reader = context.reader
    blueprint = Blueprint("rapidocr_api", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post("/ocr")
    def ocr() -> Response:
        options = _options(request.content)
        data = request.content.first_image(FILE_FIELDS, TEXT_FIELDS)
        return as_json(to_answer(reader.read(data, options, request.left_s, request.context).page))

    @blueprint.get("/")
    def banner() -> Response:
        return as_json({"message": BANNER})

    return blueprint


def to_answer(page: Page) -> dict[str, dict[str, object]]:
    """The lines under "0", "1", and so on; those with words with them, as RapidOCR has them."""
    columns = zip(page.lines, to_boxes(page.lines).round(1).tolist(), to_scores(page.lines), strict=True)
    return {
        str(number): {"rec_txt": line.text, "dt_boxes": box, "score": score} | _words_of(line)
        for number, (line, box, score) in enumerate(columns)
    }


def _words_of(line: Line) -> dict[str, object]:
    """Text, confidence and box of each word of a line, if it has any."""
    if line.words is None:
        return {}
    columns = zip(line.words, to_scores(line.words), to_boxes(line.words).round(1).tolist(), strict=True)
    return {"word_results": [[word.text, score, box] for word, score, box in columns]}


def _options(content: Content) -> ReadOptions:
    """What the flags ask for; an empty one counts as not sent. Raises BadOption."""
    flags = {name: _flag(content, name) for name in FLAGS}
    for name, value in content.fields:
        if name in FILE_FIELDS:
            raise _BadField("value_error", name, NOT_A_FILE, as_text(value)[:100])
    if flags["use_rec"] is False:
        raise _BadField(
            "value_error", "use_rec", "Value error, without recognition there is nothing to answer", "false"
        )
    words = flags["return_word_box"] is True
    return ReadOptions(rotate=rotate_option(flags["use_cls"]), detect=flags["use_det"] is not False, words=words)


def _flag(content: Content, name: str) -> bool | None:
    try:
        return content.flag(name)
    except ValueError as error:
        raise _BadField("bool_parsing", name, NOT_A_BOOL, str(error)[:100]) from error


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    # What the router refuses has FastAPI's bare words.
    detail: object = failure.title if is_wrong_path(failure) else str(failure)
    if isinstance(error, _BadField):
        detail = [error.item]
    return as_json({"detail": detail}, failure.status)
