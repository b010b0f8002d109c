"""How does rapidocr_api (RapidAI/RapidOCRAPI, port 9003) speak?

Its success answer to the letter; its errors as FastAPI shapes them, with true statuses where the original answers 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson
from flask import Blueprint, Response, request

from ocrsvc.errors import BadOption
from ocrsvc.formats.box_values import to_boxes, to_scores
from ocrsvc.formats.json_lines import column, json_object, row_column, text_column
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import ParsedRequest, as_text, context_of, deadline_of, first_image, left_s, receive
from ocrsvc.http.responses import as_json, flag, turning, with_headers
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Page, ReadOptions
from ocrsvc.settings.settings import Settings

FILE_FIELDS: Final = ("image_file",)
TEXT_FIELDS: Final = ("image_data",)
FLAGS: Final = ("use_det", "use_cls", "use_rec")

BANNER: Final = "Welcome to RapidOCR API Server!"
NOT_A_BOOL: Final = "Input should be a valid boolean, unable to interpret input"
NOT_A_FILE: Final = "Value error, Expected UploadFile, received: <class 'str'>"


class _BadField(BadOption):
    """A field that FastAPI would refuse; `item` is the entry of its list `detail`."""

    status = 422

    def __init__(self, kind: str, field: str, message: str, sent: object) -> None:
        super().__init__(f"{field}: {message}")
        self.item = {"type": kind, "loc": ["body", field], "msg": message, "input": sent}


def make_rapidocr_api(settings: Settings, reader: Reader) -> Blueprint:
    """POST /ocr and GET / over a reader."""
    dialect = Blueprint("rapidocr_api", __name__)
    dialect.register_error_handler(Exception, _failure)

    @dialect.post("/ocr")
    def ocr() -> Response:
        deadline = deadline_of(request.environ, settings.deadline_s)
        incoming = receive(request.environ, settings.max_body_bytes, deadline)
        options = _options(incoming)
        data = first_image(incoming, FILE_FIELDS, TEXT_FIELDS)
        return as_json(to_answer(reader.read(data, options, left_s(deadline), context_of(request.environ)).page))

    @dialect.get("/")
    def banner() -> Response:
        return as_json({"message": BANNER})

    return dialect


def to_answer(page: Page) -> orjson.Fragment:
    """The lines under "0", "1", and so on."""
    lines = page.lines
    return json_object(
        b'"%":{"rec_txt":%,"dt_boxes":[[%]],"score":%}',
        column(list(range(len(lines)))),
        text_column(lines),
        row_column(to_boxes(lines).round(1)),
        column(to_scores(lines)),
    )


def _options(incoming: ParsedRequest) -> ReadOptions:
    """What the flags ask for; an empty one counts as not sent. Raises BadOption."""
    flags = {name: _flag(incoming, name) for name in FLAGS}
    for name, value in incoming.fields:
        if name in FILE_FIELDS:
            raise _BadField("value_error", name, NOT_A_FILE, as_text(value)[:100])
    if flags["use_rec"] is False:
        raise _BadField(
            "value_error", "use_rec", "Value error, without recognition there is nothing to answer", "false"
        )
    return _as_read_options(flags)


def _as_read_options(flags: Mapping[str, bool | None]) -> ReadOptions:
    return ReadOptions(rotate=turning(flags["use_cls"]), detect=flags["use_det"] is not False)


def _flag(incoming: ParsedRequest, name: str) -> bool | None:
    try:
        return flag(incoming, name)
    except ValueError as error:
        raise _BadField("bool_parsing", name, NOT_A_BOOL, str(error)[:100]) from error


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    # What the router refuses has FastAPI's bare words.
    detail: object = failure.title if failure.status in {404, 405} else str(failure)
    if isinstance(error, _BadField):
        detail = [error.item]
    return with_headers(as_json({"detail": detail}, failure.status), failure)
