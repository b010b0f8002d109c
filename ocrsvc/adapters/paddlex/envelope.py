"""PaddleX's JSON: parses its requests, and writes readings as its responses.

Two adapters use it: basic serving (POST /ocr) and "high-stability serving", where the same JSON travels inside a tensor
of a Triton model. `infer` is all that the second one calls.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from ocrsvc.errors import BadOption, CallerError
from ocrsvc.formats.box_values import to_boxes, to_frames, to_scores, whole
from ocrsvc.http.drawn_pages import drawn_page
from ocrsvc.http.error_responses import Failure, failure_of
from ocrsvc.http.json_body import parse_any_json
from ocrsvc.http.request import as_text, is_image, left_s
from ocrsvc.http.responses import NO_IMAGE, clamp_side_px, is_url, parse_flag, read_pages, rotate_option
from ocrsvc.imaging.base64text import decode_base64
from ocrsvc.imaging.document import is_pdf
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Check, Image, Page, ReadOptions
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, RequestContext, make_check

MODEL: Final = "ocr"
"""The name under which Triton clients ask: input `input`, output `output`, each BYTES [1, 1]."""

SUCCESS: Final = "Success"
PDF, IMAGE = 0, 1
# PaddleX's own default, at which it stops without a word.
MOST_PAGES: Final = 10
INVALID_FILE: Final = "Invalid input file"
UNKNOWN_TYPE: Final = "File type cannot be determined"
UNPROCESSABLE: Final = 422

MAX_TEXT: Final = 1024
"""Letters of a member that is not the file."""

# What JSON can carry exactly.
_LARGEST: Final = 2.0**53

ValidationError = dict[str, str]
Envelope = dict[str, object]


class WrongMembers(BadOption):
    """Members of the JSON object that PaddleX would refuse: its text is a list of them, as JSON."""

    status = UNPROCESSABLE

    def __init__(self, validation_errors: list[ValidationError]) -> None:
        super().__init__(_written(validation_errors))


class WrongFile(CallerError):
    """The member `file` cannot be what it should be."""

    status = UNPROCESSABLE
    code = "bad_file"
    title = "The file cannot be read"


@dataclass(frozen=True, slots=True)
class PaddlexRequest:
    """What one request asks for.

    Attributes:
        data: The bytes of the file.
        options: How it is to be read.
        visualize: Whether the answer holds drawn pages too.
        members: What was sent besides, for those members that the answer repeats.
    """

    data: bytes
    options: ReadOptions
    visualize: bool
    members: Mapping[str, Any]


def infer(body: bytes, reader: Reader, limit_s: float, context: RequestContext = DEFAULT_CONTEXT) -> tuple[int, bytes]:
    """Answer one request, from JSON to JSON; whatever goes wrong is in the answer's envelope.

    Args:
        body: A JSON object in UTF-8.
        reader: Reads the image.
        limit_s: Seconds within which the answer is worth having.
        context: Priority, and whether somebody still waits.

    Returns:
        The HTTP status of the answer, which is 200 or its errorCode, and the answer.
    """
    log_id: object = None
    try:
        members = _members(body, context.share)
        log_id = members.get("logId")
        return 200, success(parse_members(members, context.share), reader, limit_s, context)
    except Exception as error:  # noqa: BLE001  an edge of the web: what comes out here is an answer
        status, envelope = failure_envelope(error, failure_of(error), log_id)
        return status, orjson.dumps(envelope)


def success(asked: PaddlexRequest, reader: Reader, limit_s: float, context: RequestContext = DEFAULT_CONTEXT) -> bytes:
    """The answer to what was asked, as JSON. Raises what `Reader.read` and `Reader.decoded_image` raise."""
    deadline = time.monotonic() + limit_s
    file = read_pages(reader, asked.data, asked.options, limit_s, context, most=MOST_PAGES)
    if file.errors:
        # The format has no place for a page that failed.
        raise file.errors[0][1]
    pages = [reading.page for reading in file.readings]

    def pictures_of(page: Page, held: Share) -> dict[str, orjson.Fragment]:
        number = None if file.kind == "image" else page.number
        with reader.decoded_image(asked.data, number, left_s(deadline), context) as image:
            return _pictures(asked, image, page, held, make_check(context, deadline, time.monotonic))

    with context.share.part() as held:
        results = [
            {"prunedResult": to_pruned(page, asked.members), **(pictures_of(page, held) if asked.visualize else {})}
            for page in pages
        ]
        envelope = {
            "logId": _log_id(asked.members.get("logId")),
            "result": {"ocrResults": results, "dataInfo": _info(file.kind, pages)},
            "errorCode": 0,
            "errorMsg": SUCCESS,
        }
        return orjson.dumps(envelope)


def _info(kind: str, pages: Sequence[Page]) -> dict[str, object]:
    """Sizes in pixels; of a document, as PaddleX, the number of pages that were read."""
    sizes = [{"width": page.width, "height": page.height} for page in pages]
    if kind == "image":
        return sizes[0] | {"type": kind}
    return {"numPages": len(pages), "pages": sizes, "type": kind.lower()}


def failure_envelope(error: Exception, failure: Failure, log_id: object = None) -> tuple[int, Envelope]:
    """HTTP status and answer for an exception and what `failure_of` made of it; `log_id` is the caller's own."""
    status, message = failure.status, str(failure)
    if isinstance(error, NO_IMAGE):
        status, message = UNPROCESSABLE, f"{INVALID_FILE}. {message}"
    elif type(error) is CallerError:
        status, message = UNPROCESSABLE, _written([_validation_error("json_invalid", "body", message)])
    elif status in {404, 405}:
        message = failure.title
    return status, {"logId": _log_id(log_id), "errorCode": status, "errorMsg": message}


def parse_members(members: Mapping[str, Any], share: Share) -> PaddlexRequest:
    """What a JSON object asks for; its file is counted in the share.

    Raises:
        QueueFull: Other requests hold the memory that the file needs.
        WrongMembers: Members are missing or of the wrong type.
        WrongFile: The file is an address, or not what `fileType` says.
        CallerError: The file is not base64.
    """
    values, validation_errors = _checked(members)
    if validation_errors:
        raise WrongMembers(validation_errors)
    _refuse_what_cannot_be(values)
    data = _file(values, share)
    del values["file"]
    return PaddlexRequest(data, _options(values), values.get("visualize") is not False, values)


def to_pruned(page: Page, members: Mapping[str, Any]) -> dict[str, object]:
    """The lines in PaddleX's words, with the settings that its answer repeats."""
    lines, boxes = page.lines, to_boxes(page.lines)
    corners, frames = whole(boxes).tolist(), whole(to_frames(boxes)).tolist()
    line_turns = members.get("useTextlineOrientation") is True
    pruned: dict[str, object] = {"model_settings": _model_settings(members)}
    if members.get("useDocOrientationClassify") is True:
        own = {"use_doc_orientation_classify": True, "use_doc_unwarping": False}
        # PaddleX reports by how much the page was turned anticlockwise to be upright.
        pruned["doc_preprocessor_res"] = {"model_settings": own, "angle": -page.angle % 360}
    return pruned | {
        "dt_polys": corners,
        "text_det_params": _det_params(members),
        "text_type": "general",
        "textline_orientation_angles": [0 if line_turns else -1] * len(lines),
        "text_rec_score_thresh": members.get("textRecScoreThresh") or 0.0,
        "return_word_box": False,
        "rec_texts": [line.text for line in lines],
        "rec_scores": to_scores(lines),
        "rec_polys": corners,
        "rec_boxes": frames,
    }


def _members(body: bytes, share: Share) -> Mapping[str, Any]:
    members = parse_any_json(body, share)
    if not isinstance(members, dict):
        raise WrongMembers(
            [_validation_error("model_attributes_type", "body", "Input should be a valid dictionary or object")]
        )
    return members


def _as_text(value: object) -> str:
    if not isinstance(value, str | bytes):
        raise ValueError("Input should be a valid string")  # noqa: TRY004  what `_checked` collects
    if len(value) > MAX_TEXT:
        raise ValueError(f"String should have at most {MAX_TEXT} characters")
    return as_text(value)


def _as_flag(value: object) -> bool:
    try:
        return value if isinstance(value, bool) else parse_flag(as_text(value))
    except ValueError as error:
        raise ValueError("Input should be a valid boolean, unable to interpret input") from error


def _as_number(value: object) -> float:
    try:
        number = float(value) if type(value) in {int, float} else float(_as_text(value))  # type: ignore[arg-type]  # it is one
    except ValueError as error:
        raise ValueError("Input should be a valid number, unable to parse string as a number") from error
    if abs(number) <= _LARGEST:
        return number
    raise ValueError("Input should be a finite number")


def _as_whole(value: object) -> int:
    number = _as_number(value)
    if number != number // 1:
        raise ValueError("Input should be a valid integer")
    return int(number)


def _as_file_type(value: object) -> int:
    if type(value) is not int or value not in {PDF, IMAGE}:
        raise ValueError("Input should be 0 or 1")
    return value


def _as_limit_type(value: object) -> str:
    if not isinstance(value, str) or value not in {"min", "max"}:
        raise ValueError("Input should be 'min' or 'max'")
    return value


Parse = Callable[[object], object]
# Each member: what it is, and what PaddleX calls a value that it is not.
MEMBERS: Final[Mapping[str, tuple[Parse, str]]] = {
    "file": (_as_text, "string_type"),
    "fileType": (_as_file_type, "literal_error"),
    "useDocOrientationClassify": (_as_flag, "bool_parsing"),
    "useDocUnwarping": (_as_flag, "bool_parsing"),
    "useTextlineOrientation": (_as_flag, "bool_parsing"),
    "textDetLimitSideLen": (_as_whole, "int_parsing"),
    "textDetLimitType": (_as_limit_type, "literal_error"),
    "textDetThresh": (_as_number, "float_parsing"),
    "textDetBoxThresh": (_as_number, "float_parsing"),
    "textDetUnclipRatio": (_as_number, "float_parsing"),
    "textRecScoreThresh": (_as_number, "float_parsing"),
    "returnWordBox": (_as_flag, "bool_parsing"),
    "visualize": (_as_flag, "bool_parsing"),
    "logId": (_as_text, "string_type"),
}


def _checked(members: Mapping[str, Any]) -> tuple[dict[str, Any], list[ValidationError]]:
    """The members that have a meaning, as their types, and an error for each that cannot be."""
    values: dict[str, Any] = {}
    validation_errors: list[ValidationError] = []
    for name, (parse, kind) in MEMBERS.items():
        sent = members.get(name)
        try:
            if sent is not None:
                # Text of megabytes is not checked again.
                values[name] = sent if name == "file" and isinstance(sent, str | bytes) else parse(sent)
        except (ValueError, OverflowError) as error:
            validation_errors.append(_validation_error(kind, f"body.{name}", str(error)))
    if members.get("file") is None:
        validation_errors.insert(0, _validation_error("missing", "body.file", "Field required"))
    return values, validation_errors


def _refuse_what_cannot_be(values: Mapping[str, Any]) -> None:
    """Raises WrongMembers for what no engine here can do, rather than answer without it."""
    wanted = [name for name in ("useDocUnwarping", "returnWordBox") if values.get(name)]
    if wanted:
        raise WrongMembers(
            [_validation_error("value_error", f"body.{name}", "This service cannot do that") for name in wanted]
        )


def _file(values: Mapping[str, Any], share: Share) -> bytes:
    """The bytes in `file`, whose kind is read from themselves. Raises WrongFile, CallerError."""
    sent, kind = values["file"], values.get("fileType")
    if is_url(sent):
        raise WrongFile(f"{INVALID_FILE}. Addresses are not fetched.", "Send the file itself, in base64.")
    data = sent if isinstance(sent, bytes) and is_image(sent) else decode_base64(sent, share)
    if kind is None and not is_image(data):
        raise WrongFile(f"{UNKNOWN_TYPE}.", "Send an image.")
    if kind == PDF and not is_pdf(data):
        raise WrongFile(f"{INVALID_FILE}. It is no PDF.", "Send an image with fileType 1.")
    return data


def _options(values: Mapping[str, Any]) -> ReadOptions:
    side = values.get("textDetLimitSideLen")
    longest = clamp_side_px(side) if side is not None and values.get("textDetLimitType") == "max" else None
    return ReadOptions(
        rotate=rotate_option(values.get("useDocOrientationClassify")),
        max_side=longest,
        min_confidence=values.get("textRecScoreThresh"),
    )


def _model_settings(members: Mapping[str, Any]) -> dict[str, bool]:
    return {
        "use_doc_preprocessor": members.get("useDocOrientationClassify") is True,
        "use_textline_orientation": members.get("useTextlineOrientation") is True,
    }


def _det_params(members: Mapping[str, Any]) -> dict[str, object]:
    """What was asked for, else PaddleX's own defaults; the engine has parameters of its own."""
    return {
        "limit_side_len": members.get("textDetLimitSideLen") or 64,
        "limit_type": members.get("textDetLimitType") or "min",
        "thresh": members.get("textDetThresh") or 0.3,
        "max_side_limit": 4000,
        "box_thresh": members.get("textDetBoxThresh") or 0.6,
        "unclip_ratio": members.get("textDetUnclipRatio") or 1.5,
    }


def _pictures(asked: PaddlexRequest, image: Image, page: Page, held: Share, check: Check) -> dict[str, orjson.Fragment]:
    """The image with its lines framed, and the image as it is."""
    text = drawn_page(image, replace(page, lines=()), held, check)
    plain = orjson.Fragment(text)
    pictures = {"ocrImage": orjson.Fragment(drawn_page(image, page, held, check))}
    if asked.members.get("useDocOrientationClassify") is True:
        held.take(len(text))
        pictures["docPreprocessingImage"] = plain
    return pictures | {"inputImage": plain}


def _validation_error(kind: str, where: str, message: str) -> ValidationError:
    return {"type": kind, "loc": where, "msg": message}


def _written(validation_errors: list[ValidationError]) -> str:
    """The errors as PaddleX writes them: with blanks between."""
    return json.dumps(validation_errors)


def _log_id(sent: object) -> str:
    return sent if isinstance(sent, str) and len(sent) <= MAX_TEXT else str(uuid.uuid4())
