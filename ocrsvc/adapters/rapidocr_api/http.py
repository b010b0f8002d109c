"""The API of rapidocr_api (RapidAI/RapidOCRAPI, port 9003), plus RapidOCR's flag `return_word_box`."""

from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, make_blueprint, texts_with_corners
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.http.field_values import as_text
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, is_wrong_path, rotate_option
from ocrsvc.results import Page, ReadOptions

FILE_FIELD: Final = "image_file"
FLAGS: Final = ("use_det", "use_cls", "use_rec", "return_word_box")


class _BadField(BadOption, status=422):
    """A field that FastAPI would refuse; `item` is its entry in FastAPI's list `detail`."""

    def __init__(self, kind: str, field: str, message: str, value: object) -> None:
        super().__init__(f"{field}: {message}")
        self.item = {"type": kind, "loc": ["body", field], "msg": message, "input": value}


def make_rapidocr_api(context: AdapterContext) -> Blueprint:
    """Make POST /ocr and GET /."""

    def ocr() -> Response:
        options = _options(request.content)
        data = request.content.first_image((FILE_FIELD,), ("image_data",))
        return as_json(to_answer(context.read(data, options).page))

    def banner() -> Response:
        return as_json({"message": "Welcome to RapidOCR API Server!"})

    return make_blueprint("rapidocr_api", _failure, [("POST", "/ocr", ocr), ("GET", "/", banner)])


def to_answer(page: Page) -> dict[str, dict[str, object]]:
    """Convert the lines to members "0", "1", and so on; lines with words also have RapidOCR's `word_results`."""
    answer = {}
    for number, (text, score, box) in enumerate(texts_with_corners(page.lines, 1)):
        words = page.lines[number].words
        more = {} if words is None else {"word_results": list(texts_with_corners(words, 1))}
        answer[str(number)] = {"rec_txt": text, "dt_boxes": box, "score": score, **more}
    return answer


def _options(content: Content) -> ReadOptions:
    """The reading options; an empty flag counts as absent. Raises BadOption."""
    flags = {name: _flag(content, name) for name in FLAGS}
    for name, value in content.fields:
        if name == FILE_FIELD:
            message = "Value error, Expected UploadFile, received: <class 'str'>"
            raise _BadField("value_error", name, message, as_text(value)[:100])
    if flags["use_rec"] is False:
        raise _BadField("value_error", "use_rec", "Value error, use_rec must be true", "false")
    words = flags["return_word_box"] is True
    return ReadOptions(rotate=rotate_option(flags["use_cls"]), detect=flags["use_det"] is not False, words=words)


def _flag(content: Content, name: str) -> bool | None:
    try:
        return content.flag(name)
    except ValueError as error:
        message = "Input should be a valid boolean, unable to interpret input"
        raise _BadField("bool_parsing", name, message, str(error)[:100]) from error


def _failure(failure: OcrsvcError) -> Response:
    # For an unknown path, FastAPI's router answers with only the status text, such as Not Found.
    detail = failure.title if is_wrong_path(failure) else str(failure)
    return as_json({"detail": [failure.item] if isinstance(failure, _BadField) else detail}, failure.status)
