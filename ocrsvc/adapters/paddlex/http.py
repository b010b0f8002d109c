"""PaddleX basic serving (PaddleOCR 3.x, port 8080); `infer` serves the same JSON in a Triton tensor."""

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import orjson
from flask import Blueprint, Response, g
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ocrsvc.adapters.context import URLS_NOT_FETCHED, AdapterContext, NotServed, make_blueprint
from ocrsvc.adapters.paddlex.word_boxes import frame_lines, to_word_members
from ocrsvc.errors import BadOption, CallerError, OcrsvcError
from ocrsvc.formats.boxes import to_boxes, to_frames, to_scores, whole
from ocrsvc.http import responses
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.field_values import as_text
from ocrsvc.http.parsed_body import is_image, parse_any_json
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, NO_IMAGE, as_json, drawn_page, is_url
from ocrsvc.imaging.document import is_pdf
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Check, Image, Page, ReadOptions
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, RequestContext, make_check

# PaddleX's default; as in PaddleX, further pages are ignored without an error.
MAX_PAGES: Final = 10
INVALID_FILE: Final = "Invalid input file"
UNPROCESSABLE: Final = 422
MAX_TEXT: Final = 1024
"""Maximum characters of members other than the file."""

# The largest whole number that JSON represents exactly.
_LARGEST: Final = 2**53


class WrongMembers(BadOption, status=UNPROCESSABLE):
    """Members that PaddleX refuses; the message is a JSON list of the errors, formatted as PaddleX formats it."""

    def __init__(self, *validation_errors: dict[str, str]) -> None:
        super().__init__(json.dumps(validation_errors))


class WrongFile(CallerError, status=UNPROCESSABLE, code="bad_file", title="The file cannot be read"):
    """The member `file` has no readable content."""


def validation_error(kind: str, where: str, message: str) -> dict[str, str]:
    """One wrong member as PaddleX reports it."""
    return {"type": kind, "loc": where, "msg": message}


def _text(value: object) -> object:
    # Check only the type: pydantic's own check of strings would read megabytes of text.
    if not isinstance(value, str | bytes):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return value


Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]


class Members(BaseModel):
    """The request's members that this service uses."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, allow_inf_nan=False)

    file: Annotated[Any, AfterValidator(_text)]
    file_type: Literal[0, 1] | None = None
    use_doc_orientation_classify: bool | None = None
    use_doc_unwarping: NotServed = False
    use_textline_orientation: bool = False
    text_det_limit_side_len: Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)] | None = None
    text_det_limit_type: Literal["min", "max"] | None = None
    text_det_thresh: Number | None = None
    text_det_box_thresh: Number | None = None
    text_det_unclip_ratio: Number | None = None
    text_rec_score_thresh: Number | None = None
    return_word_box: bool = False
    visualize: bool | None = None
    log_id: Annotated[str, Field(max_length=MAX_TEXT)] | None = None

    @property
    def read_options(self) -> ReadOptions:
        """Convert these members to the reader's options."""
        side = self.text_det_limit_side_len
        return ReadOptions(
            rotate=responses.rotate_option(self.use_doc_orientation_classify),
            max_side=responses.clamp_side_px(side) if side is not None and self.text_det_limit_type == "max" else None,
            min_confidence=self.text_rec_score_thresh,
            characters=self.return_word_box,
        )


def parse_members(members: Mapping[str, Any]) -> Members:
    """Validate a JSON object's members; null counts as absent. Raises WrongMembers."""
    values = {}
    for name in map(to_camel, Members.model_fields):
        if (value := members.get(name)) is not None:
            # Truncate text, except the file, before pydantic checks it.
            is_long = isinstance(value, str | bytes) and name != "file"
            values[name] = as_text(value)[: MAX_TEXT + 1] if is_long else value
    try:
        return Members.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
        refused = [validation_error(each["type"], f"body.{each['loc'][0]}", each["msg"]) for each in wrong]
        raise WrongMembers(*refused) from None


def file_of(members: Members, share: Share, fetch: Callable[[str], bytes] | None = None) -> bytes:
    """The bytes in `file`, or at its URL. Raises WrongFile; as `decode_base64` and `fetch`."""
    file = members.file
    if not is_url(file):
        data = file if isinstance(file, bytes) and is_image(file) else decode_base64(file, share)
    elif fetch is None:
        raise WrongFile(f"{INVALID_FILE}. {URLS_NOT_FETCHED}", "Send the file itself, in base64.")
    else:
        data = fetch(as_text(file))
    if members.file_type is None and not is_image(data):
        raise WrongFile("File type cannot be determined.", "Send an image.")
    if members.file_type == 0 and not is_pdf(data):
        raise WrongFile(f"{INVALID_FILE}. It is not a PDF.", "Send an image with fileType 1.")
    return data


def make_paddlex(context: AdapterContext) -> Blueprint:
    """Make POST /ocr and GET /health."""
    url_files = context.url_files
    fetch = (lambda url: url_files.fetch(url).data) if url_files.is_on else None

    def ocr() -> Response:
        raw, members = request.content.raw, request.content.members
        g.log_id = members.get("logId")
        # An image as the body replaces the member `file`.
        parsed = parse_members(members if raw is None else members | {"file": raw})
        data = file_of(parsed, request.share, fetch)
        answer = success(data, parsed, context.reader, request.left_s, request.context)
        return Response(answer, content_type=JSON_TYPE)

    def health() -> Response:
        # PaddleX has no member `status`; clients of other servers that also have the path /health read it.
        return as_json({"logId": request.id, "errorCode": 0, "errorMsg": "Healthy", "status": "ok"})

    return make_blueprint("paddlex", _failure, [("POST", "/ocr", ocr), ("GET", "/health", health)])


def _failure(failure: OcrsvcError) -> Response:
    status, envelope = failure_envelope(failure, g.get("log_id"))
    return as_json(envelope, status)


def infer(
    body: bytes, reader: Reader, limit_s: float, context: RequestContext = DEFAULT_CONTEXT, model: str | None = None
) -> tuple[int, bytes]:
    """Serve a JSON request; return the HTTP status and the response. `model` is the reading option of this name."""
    log_id: object = None
    try:
        members = parse_any_json(body, context.share)
        if not isinstance(members, dict):
            message = "Input should be a valid dictionary or object"
            raise WrongMembers(validation_error("model_attributes_type", "body", message))
        log_id = members.get("logId")
        parsed = parse_members(members)
        return 200, success(file_of(parsed, context.share), parsed, reader, limit_s, context, model)
    except Exception as error:  # noqa: BLE001  an edge of the web: every error becomes a response
        status, envelope = failure_envelope(failure_of(error), log_id)
        return status, orjson.dumps(envelope)


def success(
    data: bytes, members: Members, reader: Reader, limit_s: float, context: RequestContext, model: str | None = None
) -> bytes:
    """The JSON response for a file. Raises as `Reader.read` and `Reader.decoded_image`."""
    deadline = time.monotonic() + limit_s
    read_options = members.read_options if model is None else replace(members.read_options, model=model)
    file = responses.read_pages(reader, data, read_options, limit_s, context, most=MAX_PAGES)
    for _, error in file.errors:
        # The response has no field for a page's error, so one failed page fails the request.
        raise error
    pages = [reading.page for reading in file.readings]

    def pictures_of(page: Page, held: Share) -> dict[str, orjson.Fragment]:
        if members.visualize is False:
            return {}
        number = None if file.kind == "image" else page.number
        with reader.decoded_image(data, number, max(0.0, deadline - time.monotonic()), context) as image:
            return _pictures(members, image, page, held, make_check(context, deadline, time.monotonic))

    with context.share.part() as held:
        results = [{"prunedResult": to_pruned(page, members), **pictures_of(page, held)} for page in pages]
        result = {"ocrResults": results, "dataInfo": _info(file.kind, pages)}
        return orjson.dumps({"logId": _log_id(members.log_id), "result": result, "errorCode": 0, "errorMsg": "Success"})


def _info(kind: str, pages: Sequence[Page]) -> dict[str, object]:
    """Sizes in pixels; for a document also the number of pages read, as in PaddleX."""
    sizes = [{"width": page.width, "height": page.height} for page in pages]
    if kind == "image":
        return sizes[0] | {"type": kind}
    return {"numPages": len(pages), "pages": sizes, "type": kind.lower()}


def failure_envelope(failure: OcrsvcError, log_id: object) -> tuple[int, dict[str, object]]:
    """HTTP status and response for an error; `log_id` is the client's."""
    status, message = failure.status, str(failure)
    if isinstance(failure, NO_IMAGE):
        status, message = UNPROCESSABLE, f"{INVALID_FILE}. {message}"
    elif type(failure) is CallerError:
        status, message = UNPROCESSABLE, json.dumps([validation_error("json_invalid", "body", message)])
    elif responses.is_wrong_path(failure):
        message = failure.title
    return status, {"logId": _log_id(log_id), "errorCode": status, "errorMsg": message}


def to_pruned(page: Page, members: Members) -> dict[str, object]:
    """The page as PaddleX's prunedResult, which repeats the request's settings."""
    lines, boxes, turns = page.lines, to_boxes(page.lines), members.use_doc_orientation_classify is True
    corners, frames = whole(boxes).tolist(), whole(to_frames(boxes)).tolist()
    settings = {"use_doc_preprocessor": turns, "use_textline_orientation": members.use_textline_orientation}
    pruned: dict[str, object] = {"model_settings": settings}
    if turns:
        preprocessor = {"use_doc_orientation_classify": True, "use_doc_unwarping": False}
        # PaddleX reports the anticlockwise rotation that makes the page upright.
        pruned["doc_preprocessor_res"] = {"model_settings": preprocessor, "angle": -page.angle % 360}
    pruned |= {
        "dt_polys": corners,
        # The requested values or PaddleX's defaults; the engine does not use them.
        "text_det_params": {
            "limit_side_len": members.text_det_limit_side_len or 64,
            "limit_type": members.text_det_limit_type or "min",
            "thresh": members.text_det_thresh or 0.3,
            "max_side_limit": 4000,
            "box_thresh": members.text_det_box_thresh or 0.6,
            "unclip_ratio": members.text_det_unclip_ratio or 1.5,
        },
        "text_type": "general",
        "textline_orientation_angles": [0 if members.use_textline_orientation else -1] * len(lines),
        "text_rec_score_thresh": members.text_rec_score_thresh or 0.0,
        "return_word_box": members.return_word_box,
        "rec_texts": [line.text for line in lines],
        "rec_scores": to_scores(lines),
        "rec_polys": corners,
        "rec_boxes": frames,
    }
    return pruned | to_word_members(lines) if members.return_word_box else pruned


def _pictures(members: Members, image: Image, page: Page, held: Share, check: Check) -> dict[str, orjson.Fragment]:
    """The image with frames around its lines (or words), and the plain image."""
    if members.return_word_box:
        page = replace(page, lines=frame_lines(page.lines))
    text = drawn_page(image, replace(page, lines=()), held, check)
    plain = orjson.Fragment(text)
    pictures = {"ocrImage": orjson.Fragment(drawn_page(image, page, held, check))}
    if members.use_doc_orientation_classify is True:
        held.take(len(text))
        pictures["docPreprocessingImage"] = plain
    return pictures | {"inputImage": plain}


def _log_id(log_id: object) -> str:
    return log_id if isinstance(log_id, str) and len(log_id) <= MAX_TEXT else str(uuid.uuid4())
