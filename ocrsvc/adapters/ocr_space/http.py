"""The API of OCR.space over HTTP.

What the caller got wrong is reported in an HTTP 200 with IsErroredOnProcessing, as there; what the service refuses
keeps its true status beside it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.ocr_space.languages import LANGUAGES
from ocrsvc.errors import BadOption, CallerError, NothingSent, OcrsvcError, UnknownModel
from ocrsvc.formats.boxes import to_boxes, to_frames
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import (
    as_json,
    is_reported_in_a_200,
    is_url,
    read_pages,
    rotate_option,
)
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.readings import Reading
from ocrsvc.records import Line, Page, ReadOptions, Word

BASE64_FIELD: Final = "base64Image"
ENGINES: Final = ("1", "2", "3")
READ_FILE, READ_PARTLY, FAILED = 1, 2, 3
FATAL: Final = 4
INVALID_PARAMETER: Final = 99
NO_LANGUAGE: Final = "E201: Value for parameter 'language' is invalid"
PAGE_FAILED: Final = -10
NO_OVERLAY: Final = "Text overlay is not provided as it is not requested"


def make_ocr_space(context: AdapterContext) -> Blueprint:
    """POST /parse/image and GET /parse/imageurl over a reader, in both spellings."""
    settings, reader, url_files = context.settings, context.reader, context.url_files
    blueprint = Blueprint("ocr_space", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post("/parse/image")
    @blueprint.post("/Parse/Image")
    def image() -> Response:
        began_s = time.monotonic()
        overlay = _flag(request.content, "isOverlayRequired") is True
        options = replace(_options(request.content, has_models=reader.has_models), words=overlay)
        data = _image(request.content, url_files)
        file = read_pages(reader, data, options, request.left_s, request.context, most=settings.max_pages)
        return as_json(to_answer(file, time.monotonic() - began_s, overlay=overlay))

    @blueprint.get("/parse/imageurl")
    @blueprint.get("/Parse/ImageUrl")
    def imageurl() -> Response:
        raise _no_addresses()

    return blueprint


def to_answer(file: FileRead, spent_s: float, *, overlay: bool) -> dict[str, object]:
    """The pages in OCR.space's words. Raises the error of a file of which no page was read."""
    if not file.readings:
        raise file.errors[0][1]
    messages = [str(failure_of(error)) for _, error in file.errors]
    if len(file.pages) < file.total:
        messages.append(f"The maximum page limit of {len(file.pages)} reached")
    return {
        "ParsedResults": [_parsed(outcome, overlay=overlay) for _, outcome in file.pages],
        "OCRExitCode": READ_PARTLY if messages else READ_FILE,
        "IsErroredOnProcessing": False,
        **({"ErrorMessage": messages} if messages else {}),
        "ProcessingTimeInMilliseconds": str(int(spent_s * 1000)),
        "SearchablePDFURL": "",
    }


def _parsed(outcome: Reading | OcrsvcError, *, overlay: bool) -> dict[str, object]:
    """One page, or why it is not there."""
    if isinstance(outcome, OcrsvcError):
        failure = failure_of(outcome)
        return {
            "TextOverlay": None,
            "FileParseExitCode": PAGE_FAILED,
            "ParsedText": "",
            "ErrorMessage": str(failure),
            "ErrorDetails": failure.title,
        }
    page = outcome.page
    return {
        "TextOverlay": _overlay(page) if overlay else {"Lines": [], "HasOverlay": False, "Message": NO_OVERLAY},
        "TextOrientation": str(page.angle),
        "FileParseExitCode": 1,
        "ParsedText": "".join([f"{line.text}\r\n" for line in page.lines]),
        "ErrorMessage": "",
        "ErrorDetails": "",
    }


def _overlay(page: Page) -> dict[str, object]:
    """Each line with its words; one that is the whole line where the engine knows none."""
    frames = _sizes(page.lines)
    words = iter(_sizes([word for line in page.lines for word in line.words or ()]))
    lines = [
        _to_line(line.text, frame, [_to_word(word.text, next(words)) for word in line.words or ()])
        for line, frame in zip(page.lines, frames, strict=True)
    ]
    return {"Lines": lines, "HasOverlay": True, "Message": f"Total lines: {len(lines)}"}


def _sizes(texts: Sequence[Line | Word]) -> list[list[float]]:
    """Left, top, width and height of each."""
    frames = to_frames(to_boxes(texts).round(1))
    frames[:, 2:] -= frames[:, :2]
    return cast("list[list[float]]", frames.round(1).tolist())


def _to_line(text: str, frame: Sequence[float], words: list[dict[str, object]]) -> dict[str, object]:
    _, top, _, height = frame
    return {"LineText": text, "Words": words or [_to_word(text, frame)], "MaxHeight": height, "MinTop": top}


def _to_word(text: str, frame: Sequence[float]) -> dict[str, object]:
    left, top, width, height = frame
    return {"WordText": text, "Left": left, "Top": top, "Height": height, "Width": width}


def _options(content: Content, *, has_models: bool) -> ReadOptions:
    """What the fields ask for. Raises BadOption for what is unknown, or cannot be done.

    Without a model repository one model reads all that it can read, so that the language decides nothing.
    """
    language, engine = (content.text(name) for name in ("language", "OCREngine"))
    if language and language.lower() not in LANGUAGES:
        raise BadOption(f"Value for parameter 'language' is invalid: {language[:20]!r}.")
    if engine and engine not in ENGINES:
        raise BadOption(f"Value for parameter 'OCREngine' is invalid: {engine[:20]!r}.")
    if _flag(content, "isCreateSearchablePdf"):
        raise BadOption("Searchable PDF files are not made here.", "Leave isCreateSearchablePdf out.")
    rotate = rotate_option(_flag(content, "detectOrientation"))
    return ReadOptions(rotate=rotate, lang=LANGUAGES[language.lower()] if has_models and language else None)


def _flag(content: Content, name: str) -> bool | None:
    try:
        return content.flag(name)
    except ValueError as error:
        raise BadOption(f"Value for parameter '{name}' is invalid: it is neither true nor false.") from error


def _image(content: Content, url_files: UrlFiles) -> bytes:
    """A file under any name, else at a URL where these are fetched, else base64, with a data URI or without."""
    data = content.any_file()
    if data is not None:
        return data
    url = content.text("url")
    if url and url_files.is_on:
        return url_files.fetch(url).data
    if url or any(is_url(value) for name, value in content.fields if name == BASE64_FIELD):
        raise _no_addresses()
    return content.first_image((), (BASE64_FIELD,))


def _no_addresses() -> CallerError:
    return BadOption("Addresses are not fetched here.", "Send the file, or its content in base64Image.")


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    message, details = str(failure), failure.title
    exit_code = FAILED if isinstance(error, CallerError) else FATAL
    if isinstance(error, NothingSent):
        message = "No file uploaded or URL provided"
    if isinstance(error, UnknownModel):
        # Nothing else in this format chooses a model. The original says no more than that.
        message, details, exit_code = NO_LANGUAGE, message, INVALID_PARAMETER
    answer = {
        "OCRExitCode": exit_code,
        "IsErroredOnProcessing": True,
        "ErrorMessage": [message],
        "ErrorDetails": details,
        "ProcessingTimeInMilliseconds": "0",
    }
    return as_json(answer, 200 if is_reported_in_a_200(error) else failure.status)
