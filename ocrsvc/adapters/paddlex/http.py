"""PaddleX's basic serving (PaddleOCR 3.x, port 8080), and the same JSON in a tensor of Triton (`infer`)."""

from __future__ import annotations

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

from ocrsvc.adapters.context import AdapterContext, NotServed, make_blueprint
from ocrsvc.adapters.paddlex.word_boxes import frame_lines, to_word_members
from ocrsvc.errors import BadOption, CallerError, OcrsvcError
from ocrsvc.formats.boxes import to_boxes, to_frames, to_scores, whole
from ocrsvc.http import responses
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.field_values import as_text
from ocrsvc.http.json_body import parse_any_json
from ocrsvc.http.parsed_body import is_image
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, NO_IMAGE, as_json, drawn_page, is_url
from ocrsvc.imaging.document import is_pdf
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Check, Image, Page, ReadOptions
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, RequestContext, make_check

# PaddleX's own default; it leaves out the other pages without a message.
MOST_PAGES: Final = 10
Envelope = dict[str, object]
INVALID_FILE: Final = "Invalid input file"
UNPROCESSABLE: Final = 422
MAX_TEXT: Final = 1024
"""Characters of a member that is not the file."""

# What JSON can carry exactly.
_LARGEST: Final = 2**53


class WrongMembers(BadOption, status=UNPROCESSABLE):
    """Members that PaddleX would refuse; the text is PaddleX's list of them: JSON with blanks between."""

    def __init__(self, *validation_errors: dict[str, str]) -> None:
        super().__init__(json.dumps(validation_errors))


class WrongFile(CallerError, status=UNPROCESSABLE, code="bad_file", title="The file cannot be read"):
    """The member `file` cannot be what it should be."""


def validation_error(kind: str, where: str, message: str) -> dict[str, str]:
    """PaddleX's report of one wrong member."""
    return {"type": kind, "loc": where, "msg": message}


def _text(value: object) -> object:
    # Text of megabytes is not checked again.
    if not isinstance(value, str | bytes):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return value


Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]


class Members(BaseModel):
    """The members that have a meaning here."""

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
    def options(self) -> ReadOptions:
        """The reading options."""
        side = self.text_det_limit_side_len
        return ReadOptions(
            rotate=responses.rotate_option(self.use_doc_orientation_classify),
            max_side=responses.clamp_side_px(side) if side is not None and self.text_det_limit_type == "max" else None,
            min_confidence=self.text_rec_score_thresh,
            characters=self.return_word_box,
        )


def parse_members(sent: Mapping[str, Any]) -> Members:
    """The members of a JSON object; null counts as not sent. Raises WrongMembers."""
    values = {}
    for name in map(to_camel, Members.model_fields):
        if (value := sent.get(name)) is not None:
            # Text, unless it is the file, is bounded before pydantic looks at it.
            is_long = isinstance(value, str | bytes) and name != "file"
            values[name] = as_text(value)[: MAX_TEXT + 1] if is_long else value
    try:
        return Members.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
        raise WrongMembers(
            *(validation_error(each["type"], f"body.{each['loc'][0]}", each["msg"]) for each in wrong)
        ) from None


def file_of(asked: Members, share: Share, fetch: Callable[[str], bytes] | None = None) -> bytes:
    """The bytes in `file`, or at its URL. Raises WrongFile; as `decode_base64` and `fetch`."""
    sent = asked.file
    if not is_url(sent):
        data = sent if isinstance(sent, bytes) and is_image(sent) else decode_base64(sent, share)
    elif fetch is None:
        raise WrongFile(f"{INVALID_FILE}. Addresses are not fetched.", "Send the file itself, in base64.")
    else:
        data = fetch(as_text(sent))
    if asked.file_type is None and not is_image(data):
        raise WrongFile("File type cannot be determined.", "Send an image.")
    if asked.file_type == 0 and not is_pdf(data):
        raise WrongFile(f"{INVALID_FILE}. It is no PDF.", "Send an image with fileType 1.")
    return data


def make_paddlex(context: AdapterContext) -> Blueprint:
    """POST /ocr and GET /health over a reader."""
    url_files = context.url_files
    fetch = (lambda url: url_files.fetch(url).data) if url_files.is_on else None
    blueprint = make_blueprint("paddlex", _failure)

    @blueprint.post("/ocr")
    def ocr() -> Response:
        raw, members = request.content.raw, request.content.members
        g.log_id = members.get("logId")
        # A body that is an image stands for the member `file`.
        asked = parse_members(members if raw is None else members | {"file": raw})
        data = file_of(asked, request.share, fetch)
        answer = success(data, asked, context.reader, request.left_s, request.context)
        return Response(answer, content_type=JSON_TYPE)

    @blueprint.get("/health")
    def health() -> Response:
        # `status` is for clients of other servers that have the same path.
        return as_json({"logId": request.id, "errorCode": 0, "errorMsg": "Healthy", "status": "ok"})

    return blueprint


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    status, envelope = failure_envelope(error, failure, g.get("log_id"))
    return as_json(envelope, status)


def infer(
    body: bytes, reader: Reader, limit_s: float, context: RequestContext = DEFAULT_CONTEXT, model: str | None = None
) -> tuple[int, bytes]:
    """The HTTP status, 200 or the errorCode, and the answer to a JSON object in UTF-8; `model` is of ReadOptions."""
    log_id: object = None
    try:
        sent = parse_any_json(body, context.share)
        if not isinstance(sent, dict):
            message = "Input should be a valid dictionary or object"
            raise WrongMembers(validation_error("model_attributes_type", "body", message))
        log_id = sent.get("logId")
        asked = parse_members(sent)
        return 200, success(file_of(asked, context.share), asked, reader, limit_s, context, model)
    except Exception as error:  # noqa: BLE001  an edge of the web: what comes out here is an answer
        status, envelope = failure_envelope(error, failure_of(error), log_id)
        return status, orjson.dumps(envelope)


def success(
    data: bytes, asked: Members, reader: Reader, limit_s: float, context: RequestContext, model: str | None = None
) -> bytes:
    """The answer for a file, as JSON. Raises as `Reader.read` and `Reader.decoded_image`."""
    deadline = time.monotonic() + limit_s
    options = asked.options if model is None else replace(asked.options, model=model)
    file = responses.read_pages(reader, data, options, limit_s, context, most=MOST_PAGES)
    for _, error in file.errors:
        # The format has no place for a page that failed.
        raise error
    pages = [reading.page for reading in file.readings]

    def pictures_of(page: Page, held: Share) -> dict[str, orjson.Fragment]:
        if asked.visualize is False:
            return {}
        number = None if file.kind == "image" else page.number
        with reader.decoded_image(data, number, max(0.0, deadline - time.monotonic()), context) as image:
            return _pictures(asked, image, page, held, make_check(context, deadline, time.monotonic))

    with context.share.part() as held:
        results = [{"prunedResult": to_pruned(page, asked), **pictures_of(page, held)} for page in pages]
        result = {"ocrResults": results, "dataInfo": _info(file.kind, pages)}
        return orjson.dumps({"logId": _log_id(asked.log_id), "result": result, "errorCode": 0, "errorMsg": "Success"})


def _info(kind: str, pages: Sequence[Page]) -> dict[str, object]:
    """Sizes in pixels; for a document, as in PaddleX, the number of pages that were read."""
    sizes = [{"width": page.width, "height": page.height} for page in pages]
    if kind == "image":
        return sizes[0] | {"type": kind}
    return {"numPages": len(pages), "pages": sizes, "type": kind.lower()}


def failure_envelope(error: Exception, failure: OcrsvcError, log_id: object = None) -> tuple[int, Envelope]:
    """HTTP status and answer for an exception and its `failure_of`; `log_id` is the caller's own."""
    status, message = failure.status, str(failure)
    if isinstance(error, NO_IMAGE):
        status, message = UNPROCESSABLE, f"{INVALID_FILE}. {message}"
    elif type(error) is CallerError:
        status, message = UNPROCESSABLE, json.dumps([validation_error("json_invalid", "body", message)])
    elif responses.is_wrong_path(failure):
        message = failure.title
    return status, {"logId": _log_id(log_id), "errorCode": status, "errorMsg": message}


def to_pruned(page: Page, asked: Members) -> dict[str, object]:
    """The lines as PaddleX has them, with the settings that its answer repeats."""
    lines, boxes, turns = page.lines, to_boxes(page.lines), asked.use_doc_orientation_classify is True
    corners, frames = whole(boxes).tolist(), whole(to_frames(boxes)).tolist()
    settings = {"use_doc_preprocessor": turns, "use_textline_orientation": asked.use_textline_orientation}
    pruned: dict[str, object] = {"model_settings": settings}
    if turns:
        own = {"use_doc_orientation_classify": True, "use_doc_unwarping": False}
        # PaddleX reports by how much the page was turned anticlockwise to be upright.
        pruned["doc_preprocessor_res"] = {"model_settings": own, "angle": -page.angle % 360}
    pruned |= {
        "dt_polys": corners,
        # The requested ones, else PaddleX's defaults; the engine has parameters of its own.
        "text_det_params": {
            "limit_side_len": asked.text_det_limit_side_len or 64,
            "limit_type": asked.text_det_limit_type or "min",
            "thresh": asked.text_det_thresh or 0.3,
            "max_side_limit": 4000,
            "box_thresh": asked.text_det_box_thresh or 0.6,
            "unclip_ratio": asked.text_det_unclip_ratio or 1.5,
        },
        "text_type": "general",
        "textline_orientation_angles": [0 if asked.use_textline_orientation else -1] * len(lines),
        "text_rec_score_thresh": asked.text_rec_score_thresh or 0.0,
        "return_word_box": asked.return_word_box,
        "rec_texts": [line.text for line in lines],
        "rec_scores": to_scores(lines),
        "rec_polys": corners,
        "rec_boxes": frames,
    }
    return pruned | to_word_members(lines) if asked.return_word_box else pruned


def _pictures(asked: Members, image: Image, page: Page, held: Share, check: Check) -> dict[str, orjson.Fragment]:
    """The image with frames around its lines, or its words if requested, and the image as it is."""
    if asked.return_word_box:
        page = replace(page, lines=frame_lines(page.lines))
    text = drawn_page(image, replace(page, lines=()), held, check)
    plain = orjson.Fragment(text)
    pictures = {"ocrImage": orjson.Fragment(drawn_page(image, page, held, check))}
    if asked.use_doc_orientation_classify is True:
        held.take(len(text))
        pictures["docPreprocessingImage"] = plain
    return pictures | {"inputImage": plain}


def _log_id(sent: object) -> str:
    return sent if isinstance(sent, str) and len(sent) <= MAX_TEXT else str(uuid.uuid4())
