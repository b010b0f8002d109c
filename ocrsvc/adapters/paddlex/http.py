"""PaddleX's basic serving (PaddleOCR 3.x, port 8080) over HTTP."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response, g

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.paddlex.envelope import failure_envelope, success
from ocrsvc.adapters.paddlex.members import parse_members
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json

HEALTHY: Final = "Healthy"


def make_paddlex(context: AdapterContext) -> Blueprint:
    """POST /ocr and GET /health over a reader."""
    reader, url_files = context.reader, context.url_files
    fetch = (lambda url: url_files.fetch(url).data) if url_files.is_on else None
    blueprint = Blueprint("paddlex", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post("/ocr")
    def ocr() -> Response:
        members = _members(request.content)
        g.log_id = members.get("logId")
        asked = parse_members(members, request.share, fetch)
        return Response(success(asked, reader, request.left_s, request.context), content_type=JSON_TYPE)

    @blueprint.get("/health")
    def health() -> Response:
        # `status` is for clients of other servers that have the same path.
        return as_json({"logId": request.id, "errorCode": 0, "errorMsg": HEALTHY, "status": "ok"})

    return blueprint


def _members(content: Content) -> dict[str, object]:
    """The JSON object; a body that is the image itself is taken for the member `file`."""
    return content.members if content.raw is None else content.members | {"file": content.raw}


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    status, envelope = failure_envelope(error, failure, g.get("log_id"))
    return as_json(envelope, status)
