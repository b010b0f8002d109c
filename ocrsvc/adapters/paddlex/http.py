"""PaddleX's basic serving (PaddleOCR 3.x, port 8080) over HTTP."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response, g, request

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.paddlex.envelope import failure_envelope, success
from ocrsvc.adapters.paddlex.members import parse_members
from ocrsvc.http.body import share_of
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import ParsedRequest, context_of, deadline_of, left_s, receive, request_id
from ocrsvc.http.responses import JSON_TYPE, as_json, with_headers

HEALTHY: Final = "Healthy"


def make_paddlex(context: AdapterContext) -> Blueprint:
    """POST /ocr and GET /health over a reader."""
    settings, reader = context.settings, context.reader
    blueprint = Blueprint("paddlex", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post("/ocr")
    def ocr() -> Response:
        deadline = deadline_of(request.environ, settings.deadline_s)
        members = _members(receive(request.environ, settings.max_body_bytes, deadline))
        g.log_id = members.get("logId")
        asked = parse_members(members, share_of(request.environ))
        answer = success(asked, reader, left_s(deadline), context_of(request.environ))
        return Response(answer, content_type=JSON_TYPE)

    @blueprint.get("/health")
    def health() -> Response:
        # `status` is for clients of other servers that have the same path.
        answer = {"logId": request_id(request.environ), "errorCode": 0, "errorMsg": HEALTHY, "status": "ok"}
        return as_json(answer)

    return blueprint


def _members(parsed: ParsedRequest) -> dict[str, object]:
    """The JSON object; a body that is the image itself is taken for the member `file`."""
    members = dict(parsed.fields)
    return members if parsed.raw is None else members | {"file": parsed.raw}


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    status, envelope = failure_envelope(error, failure, g.get("log_id"))
    return with_headers(as_json(envelope, status), failure)
