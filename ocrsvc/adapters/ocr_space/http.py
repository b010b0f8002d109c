"""The API of OCR.space; as in the original, client errors are an HTTP 200 with IsErroredOnProcessing."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal, cast

from flask import Blueprint, Response
from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ocrsvc.access.api_keys import KeyRequest
from ocrsvc.adapters.context import URLS_NOT_FETCHED, AdapterContext, NotServed, RequestValues, Route, make_blueprint
from ocrsvc.errors import BadOption, CallerError, NothingSent, OcrsvcError, UnknownModel
from ocrsvc.formats.boxes import to_boxes, to_frames
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, is_reported_in_a_200, is_url, rotate_option
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.results import Line, Page, Reading, ReadOptions, Word

BASE64_FIELD: Final = "base64Image"
READ_FILE, READ_PARTLY, FAILED = 1, 2, 3
FATAL: Final = 4
INVALID_PARAMETER: Final = 99
NO_LANGUAGE: Final = "E201: Value for parameter 'language' is invalid"
PAGE_FAILED: Final = -10
NO_OVERLAY: Final = "Text overlay is not provided as it is not requested"
_REMEDY: Final = "Send the file, or its content in base64Image."

_TAGS: Final = (
    "ara:ar auto:auto bul:bg chs:zh cht:zh-hant cze:cs dan:da dut:nl eng:en fin:fi fre:fr ger:de gre:el hrv:hr hun:hu "
    "ita:it jpn:ja kor:ko nor:nb pol:pl por:pt rus:ru slv:sl spa:es swe:sv tha:th tur:tr ukr:uk vnm:vi"
)
LANGUAGES: Final[Mapping[str, str]] = dict(pair.split(":") for pair in _TAGS.split())
"""Model language tag per OCR.space language name."""


def _language(name: str) -> str:
    if name.lower() not in LANGUAGES:
        raise PydanticCustomError("language", "Unknown language")
    return LANGUAGES[name.lower()]


class _Options(RequestValues, alias_generator=to_camel):
    """The options of a request."""

    message: ClassVar[str] = "Value for parameter '{name}' is invalid: {value!r}. {why}."
    language: Annotated[str, AfterValidator(_language)] | None = None
    ocr_engine: Annotated[Literal["1", "2", "3"] | None, Field(alias="OCREngine")] = None
    is_overlay_required: bool = False
    is_create_searchable_pdf: NotServed = False
    detect_orientation: bool | None = None


def credentials(request: KeyRequest) -> str:
    """The key `apikey` in a header, in the query of a GET, or in the form. See AdapterEntry.credentials."""
    in_query_or_form = request.argument if request.method == "GET" else request.field
    return request.header("apikey") or in_query_or_form("apikey")


def make_ocr_space(context: AdapterContext) -> Blueprint:
    """Make POST /parse/image and GET /parse/imageurl, each also capitalized (/Parse/Image)."""

    def image() -> Response:
        began_s = time.monotonic()
        options = read_options(request.content, has_models=context.reader.has_models)
        file = context.read_pages(_image(request.content, context), options, context.settings.max_pages)
        return as_json(to_answer(file, time.monotonic() - began_s, overlay=bool(options.words)))

    def imageurl() -> Response:
        raise BadOption(URLS_NOT_FETCHED, _REMEDY)

    routes: list[Route] = [("POST", path, image) for path in ("/parse/image", "/Parse/Image")]
    routes += [("GET", path, imageurl) for path in ("/parse/imageurl", "/Parse/ImageUrl")]
    return make_blueprint("ocr_space", _failure, routes)


def read_options(content: Content, *, has_models: bool) -> ReadOptions:
    """The reading options; the language is ignored without a model repository. Raises BadOption."""
    options = _Options.from_values(content.members)
    lang, rotate = options.language if has_models else None, rotate_option(options.detect_orientation)
    return ReadOptions(rotate=rotate, lang=lang, words=options.is_overlay_required)


def _image(content: Content, context: AdapterContext) -> bytes:
    """The image: a file in any field, else at a URL, else base64 or a data URI."""
    data = content.any_file()
    if data is not None:
        return data
    if url := content.text("url"):
        return context.fetch(url, _REMEDY).data
    if any(is_url(value) for name, value in content.fields if name == BASE64_FIELD):
        raise BadOption(URLS_NOT_FETCHED, _REMEDY)
    return content.first_image((), (BASE64_FIELD,))


def to_answer(file: FileRead, spent_s: float, *, overlay: bool) -> dict[str, object]:
    """The pages in OCR.space's format. Raises the first error if no page was read."""
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
    if isinstance(outcome, OcrsvcError):
        failure = failure_of(outcome)
        message, details = str(failure), failure.title
        page: dict[str, object] = {"TextOverlay": None, "FileParseExitCode": PAGE_FAILED, "ParsedText": ""}
        return {**page, "ErrorMessage": message, "ErrorDetails": details}
    lines = outcome.page.lines
    return {
        "TextOverlay": _overlay(outcome.page) if overlay else {"Lines": [], "HasOverlay": False, "Message": NO_OVERLAY},
        "TextOrientation": str(outcome.page.angle),
        "FileParseExitCode": 1,
        "ParsedText": "".join([f"{line.text}\r\n" for line in lines]),
        "ErrorMessage": "",
        "ErrorDetails": "",
    }


def _overlay(page: Page) -> dict[str, object]:
    """Each line with its words; a line without words counts as one word."""
    words = iter(_placed([word for line in page.lines for word in line.words or ()]))
    lines = []
    for line, whole in zip(page.lines, _placed(page.lines), strict=True):
        line_words = [next(words) for _ in line.words or ()] or [whole]
        lines.append({"LineText": line.text, "Words": line_words, "MaxHeight": whole["Height"], "MinTop": whole["Top"]})
    return {"Lines": lines, "HasOverlay": True, "Message": f"Total lines: {len(lines)}"}


def _placed(texts: Sequence[Line | Word]) -> list[dict[str, object]]:
    frames = to_frames(to_boxes(texts).round(1))
    frames[:, 2:] -= frames[:, :2]
    sizes = cast("list[list[float]]", frames.round(1).tolist())
    return [
        {"WordText": text.text, "Left": left, "Top": top, "Height": height, "Width": width}
        for text, (left, top, width, height) in zip(texts, sizes, strict=True)
    ]


def _failure(failure: OcrsvcError) -> Response:
    message, details, exit_code = str(failure), failure.title, FAILED if isinstance(failure, CallerError) else FATAL
    if isinstance(failure, NothingSent):
        message = "No file uploaded or URL provided"
    if isinstance(failure, UnknownModel):
        # In this API only the language selects a model, so the error is an unknown language.
        message, details, exit_code = NO_LANGUAGE, message, INVALID_PARAMETER
    answer = {
        "OCRExitCode": exit_code,
        "IsErroredOnProcessing": True,
        "ErrorMessage": [message],
        "ErrorDetails": details,
        "ProcessingTimeInMilliseconds": "0",
    }
    return as_json(answer, 200 if is_reported_in_a_200(failure) else failure.status)
