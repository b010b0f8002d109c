"""PaddleX's basic serving (PaddleOCR 3.x, port 8080) over HTTP.

`infer` is for its "high-stability serving", where the same JSON travels inside a tensor of a Triton model.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import orjson
from flask import Blueprint, Response, g

from ocrsvc.adapters.context import AdapterContext, make_blueprint
from ocrsvc.adapters.paddlex import members as paddlex
from ocrsvc.adapters.paddlex.members import Members, WrongMembers, file_of, parse_members, validation_error
from ocrsvc.adapters.paddlex.word_boxes import frame_lines, to_word_members
from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.formats.boxes import to_boxes, to_frames, to_scores, whole
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.json_body import parse_any_json
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, NO_IMAGE, as_json, drawn_page, is_wrong_path, read_pages
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Check, Image, Page
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, RequestContext, make_check

# PaddleX's own default; it leaves out the other pages without a message.
MOST_PAGES: Final = 10
Envelope = dict[str, object]


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
    file = read_pages(reader, data, options, limit_s, context, most=MOST_PAGES)
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
        status, message = paddlex.UNPROCESSABLE, f"{paddlex.INVALID_FILE}. {message}"
    elif type(error) is CallerError:
        status, message = paddlex.UNPROCESSABLE, json.dumps([validation_error("json_invalid", "body", message)])
    elif is_wrong_path(failure):
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
    return sent if isinstance(sent, str) and len(sent) <= paddlex.MAX_TEXT else str(uuid.uuid4())
