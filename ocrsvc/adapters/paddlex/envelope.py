"""Answers PaddleX's requests in JSON: a reading, or a failure in its envelope.

Two adapters use it: basic serving (POST /ocr) and "high-stability serving", where the same JSON travels inside a tensor
of a Triton model. `infer` is all that the second one calls.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from ocrsvc.adapters.paddlex.members import (
    INVALID_FILE,
    MAX_TEXT,
    UNPROCESSABLE,
    PaddlexRequest,
    WrongMembers,
    parse_members,
    validation_error,
)
from ocrsvc.adapters.paddlex.word_boxes import frame_lines, to_word_members
from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.formats.boxes import to_boxes, to_frames, to_scores, whole
from ocrsvc.http.annotated_pages import drawn_page
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.json_body import parse_any_json
from ocrsvc.http.responses import NO_IMAGE, is_wrong_path, read_pages
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Check, Image, Page
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, RequestContext, make_check

SUCCESS: Final = "Success"
# PaddleX's own default, at which it stops without a word.
MOST_PAGES: Final = 10

Envelope = dict[str, object]


def infer(
    body: bytes,
    reader: Reader,
    limit_s: float,
    context: RequestContext = DEFAULT_CONTEXT,
    model: str | None = None,
) -> tuple[int, bytes]:
    """Answer one request, from JSON to JSON; whatever goes wrong is in the answer's envelope.

    Args:
        body: A JSON object in UTF-8.
        reader: Reads the image.
        limit_s: Seconds within which the answer is worth having.
        context: Priority, and whether somebody still waits.
        model: As of ReadOptions, where the request's place says which is to read.

    Returns:
        The HTTP status of the answer, which is 200 or its errorCode, and the answer.
    """
    log_id: object = None
    try:
        members = _members(body, context.share)
        log_id = members.get("logId")
        asked = parse_members(members, context.share)
        if model is not None:
            asked = replace(asked, options=replace(asked.options, model=model))
        return 200, success(asked, reader, limit_s, context)
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
        if asked.members.get("visualize") is False:
            return {}
        number = None if file.kind == "image" else page.number
        with reader.decoded_image(asked.data, number, max(0.0, deadline - time.monotonic()), context) as image:
            return _pictures(asked, image, page, held, make_check(context, deadline, time.monotonic))

    with context.share.part() as held:
        results = [{"prunedResult": to_pruned(page, asked.members), **pictures_of(page, held)} for page in pages]
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


def failure_envelope(error: Exception, failure: OcrsvcError, log_id: object = None) -> tuple[int, Envelope]:
    """HTTP status and answer for an exception and what `failure_of` made of it; `log_id` is the caller's own."""
    status, message = failure.status, str(failure)
    if isinstance(error, NO_IMAGE):
        status, message = UNPROCESSABLE, f"{INVALID_FILE}. {message}"
    elif type(error) is CallerError:
        status, message = UNPROCESSABLE, json.dumps([validation_error("json_invalid", "body", message)])
    elif is_wrong_path(failure):
        message = failure.title
    return status, {"logId": _log_id(log_id), "errorCode": status, "errorMsg": message}


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
    pruned |= {
        "dt_polys": corners,
        "text_det_params": _det_params(members),
        "text_type": "general",
        "textline_orientation_angles": [0 if line_turns else -1] * len(lines),
        "text_rec_score_thresh": members.get("textRecScoreThresh") or 0.0,
        "return_word_box": members.get("returnWordBox") is True,
        "rec_texts": [line.text for line in lines],
        "rec_scores": to_scores(lines),
        "rec_polys": corners,
        "rec_boxes": frames,
    }
    return pruned | to_word_members(lines) if members.get("returnWordBox") else pruned


def _members(body: bytes, share: Share) -> Mapping[str, Any]:
    members = parse_any_json(body, share)
    if not isinstance(members, dict):
        message = "Input should be a valid dictionary or object"
        raise WrongMembers(validation_error("model_attributes_type", "body", message))
    return members


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
    """The image with its lines framed, or its words where they are asked for, and the image as it is."""
    if asked.members.get("returnWordBox"):
        page = replace(page, lines=frame_lines(page.lines))
    text = drawn_page(image, replace(page, lines=()), held, check)
    plain = orjson.Fragment(text)
    pictures = {"ocrImage": orjson.Fragment(drawn_page(image, page, held, check))}
    if asked.members.get("useDocOrientationClassify") is True:
        held.take(len(text))
        pictures["docPreprocessingImage"] = plain
    return pictures | {"inputImage": plain}


def _log_id(sent: object) -> str:
    return sent if isinstance(sent, str) and len(sent) <= MAX_TEXT else str(uuid.uuid4())
