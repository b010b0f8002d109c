"""PaddleX's basic serving (PaddleOCR 3.x, port 8080) over HTTP."""

from __future__ import annotations

from flask import Blueprint, Response, g

from ocrsvc.adapters.context import AdapterContext, make_blueprint
from ocrsvc.adapters.paddlex.envelope import failure_envelope, success
from ocrsvc.adapters.paddlex.members import file_of, parse_members
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json


def make_paddlex(context: AdapterContext) -> Blueprint:
    """POST /ocr and GET /health over a reader."""
    url_files = context.url_files
    fetch = (lambda url: url_files.fetch(url).data) if url_files.is_on else None
    blueprint = make_blueprint("paddlex", _failure)

    @blueprint.post("/ocr")
    def ocr() -> Response:
        raw, members = request.content.raw, request.content.members
        g.log_id = members.get("logId")
        # A body that is the image itself is taken for the member `file`.
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
