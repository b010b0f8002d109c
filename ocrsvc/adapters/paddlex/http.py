"""PaddleX basic serving (PaddleOCR 3.x, port 8080); `infer` serves the same JSON in a Triton tensor."""

import time
from dataclasses import replace
from typing import Final

import orjson
from flask import Blueprint, Response, g

from ocrsvc.adapters.context import AdapterContext, all_pages, make_blueprint
from ocrsvc.adapters.paddlex.answers import data_info, failure_envelope, success_envelope
from ocrsvc.adapters.paddlex.layout_parsing import LayoutMembers, answer_layout
from ocrsvc.adapters.paddlex.members import M, Members, WrongMembers, file_of, parse_members, validation_error
from ocrsvc.adapters.paddlex.word_boxes import frame_lines, to_word_members
from ocrsvc.errors import OcrsvcError
from ocrsvc.formats.boxes import to_boxes, to_frames, to_scores, whole
from ocrsvc.http import responses
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import parse_any_json
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, drawn_page
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Check, Image, Page
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, RequestContext, make_check

# PaddleX's default; as in PaddleX, further pages are ignored without an error.
MAX_PAGES: Final = 10


def make_paddlex(context: AdapterContext) -> Blueprint:
    """Create the blueprint of POST /ocr, POST /layout-parsing and GET /health."""
    url_files = context.url_files
    fetch = (lambda url: url_files.fetch(url).data) if url_files.is_on else None

    def parsed_request(kind: type[M]) -> tuple[bytes, M]:
        """The file and the members of this thread's request. Raises WrongMembers, and as `file_of`."""
        raw, members = request.content.raw, request.content.members
        g.log_id = members.get("logId")
        # If the body itself is an image, it replaces the member `file`.
        parsed = parse_members(members if raw is None else members | {"file": raw}, kind)
        return file_of(parsed, request.share, fetch), parsed

    def ocr() -> Response:
        data, members = parsed_request(Members)
        answer = success(data, members, context.reader, request.left_s, request.context)
        return Response(answer, content_type=JSON_TYPE)

    def layout_parsing() -> Response:
        return Response(answer_layout(*parsed_request(LayoutMembers), context), content_type=JSON_TYPE)

    def health() -> Response:
        # PaddleX has no member `status`; clients of other servers that also have the path /health read it.
        return as_json({"logId": request.id, "errorCode": 0, "errorMsg": "Healthy", "status": "ok"})

    routes = [("POST", "/ocr", ocr), ("POST", "/layout-parsing", layout_parsing), ("GET", "/health", health)]
    return make_blueprint("paddlex", _failure, routes)


def _failure(failure: OcrsvcError) -> Response:
    status, envelope = failure_envelope(failure, g.get("log_id"))
    return as_json(envelope, status)


def infer(
    body: bytes, reader: Reader, limit_s: float, context: RequestContext = DEFAULT_CONTEXT, model: str | None = None
) -> tuple[int, bytes]:
    """Serve a JSON request; return the HTTP status and the response. `model` replaces the request's model."""
    log_id: object = None
    try:
        members = parse_any_json(body, context.share)
        if not isinstance(members, dict):
            message = "Input should be a valid dictionary or object"
            raise WrongMembers(validation_error("model_attributes_type", "body", message))
        log_id = members.get("logId")
        parsed = parse_members(members, Members)
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
    pages = all_pages(file)

    def pictures_of(page: Page, held: Share) -> dict[str, orjson.Fragment]:
        if members.visualize is False:
            return {}
        number = None if file.kind == "image" else page.number
        with reader.decoded_image(data, number, max(0.0, deadline - time.monotonic()), context) as image:
            return _pictures(members, image, page, held, make_check(context, deadline, time.monotonic))

    with context.share.part() as held:
        results = [{"prunedResult": to_pruned(page, members), **pictures_of(page, held)} for page in pages]
        result: dict[str, object] = {"ocrResults": results, "dataInfo": data_info(file.kind, pages)}
        return success_envelope(result, members.log_id)


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
