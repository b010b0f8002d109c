"""Turns every failure into an HTTP response: RFC 9457 problem JSON, where no adapter has a shape of its own."""

from __future__ import annotations

import logging
from typing import Final

import orjson
from flask import Flask, Response, current_app, has_request_context
from werkzeug.exceptions import HTTPException

from ocrsvc.errors import KeyRefused, OcrsvcError, QuotaExceeded, Refused
from ocrsvc.http.request import ID_HEADER, TIMING_HEADER, Request, current_request, request
from ocrsvc.telemetry.ledger import server_timing
from ocrsvc.telemetry.loggable import loggable_error, loggable_path

LOGGER: Final = logging.getLogger("ocrsvc.web")
PROBLEM_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:problem-type:ocrsvc:"

# A smaller response takes no memory of the account: the report of a refusal must not be refused.
_SMALL_RESPONSE_BYTES: Final = 1 << 14

# A status of Flask's router: its code, and the remedy.
ROUTING: Final = {
    403: ("local_only", "Ask on the machine itself, or have the operator set OCRSVC_OPS=open."),
    404: ("not_found", "GET /openapi.json lists what there is."),
    405: ("method_not_allowed", "The header Allow lists the methods of this path."),
}


class RouterRefused(OcrsvcError):
    """Flask's router refuses a path, its method, or its caller."""

    def __init__(self, error: HTTPException) -> None:
        self.status = error.code or OcrsvcError.status
        self.code, remedy = ROUTING.get(self.status, (f"http_{self.status}", ""))
        self.title = error.name
        self.allow = dict(error.get_headers()).get("Allow", "")
        super().__init__(f"{request.method} {request.path[:200]}: {error.name}.", remedy)


def failure_of(error: BaseException) -> OcrsvcError:
    """How an exception at the edge of the web is reported; the service's own faults are logged, with the id."""
    if isinstance(error, OcrsvcError):
        failure = error
        if error.status == OcrsvcError.status:
            line = (*_id_method_path(), error.code, error.detail)
            LOGGER.error("failed id=%s %s %s code=%s: %s", *line, exc_info=loggable_error(error))
    elif isinstance(error, HTTPException):
        failure = RouterRefused(error)
    else:
        LOGGER.error("unexpected error id=%s %s %s", *_id_method_path(), exc_info=loggable_error(error))
        failure = OcrsvcError(
            "Something went wrong here; it is in the service's log under the id of this answer.",
            "If it happens again, tell the operator the id.",
        )
    if has_request_context():
        request.failures.append(failure)
    return failure


def problem_dict(failure: OcrsvcError, answer_id: str) -> dict[str, object]:
    """The members of a problem (RFC 9457)."""
    members: dict[str, object] = {
        "type": TYPE_PREFIX + failure.code,
        "title": failure.title,
        "status": failure.status,
        "detail": failure.detail,
        "code": failure.code,
        "retryable": failure.retryable,
        "id": answer_id,
    }
    return members | ({"remedy": failure.remedy} if failure.remedy else {})


def problem(error: Exception) -> Response:
    """Any exception as problem JSON; for Flask's `errorhandler`."""
    failure = failure_of(error)
    body = orjson.dumps(problem_dict(failure, request.id))
    return Response(body, failure.status, content_type=PROBLEM_TYPE)


def finish(response: Response) -> Response:
    """Give every answer its id and its failure's headers, and keep caches from holding it; for `after_request`."""
    request = current_request()
    response = _settle(request, response)
    if response.status_code >= 400 and request.failures:
        _add_headers(response, request.failures[-1])
    response.headers[ID_HEADER] = request.id
    if request.trace is not None:
        response.headers.extend(request.trace.headers())
    if request.wants_stages and not request.is_streaming:
        response.headers[TIMING_HEADER] = server_timing(request.ledger.seconds())
    response.headers.setdefault("Cache-Control", "no-store")
    request.response = response
    return response


def _settle(request: Request, response: Response) -> Response:
    """The response, once there is memory for it and its pages are counted for its key; else a refusal.

    The pages of an answer in pieces are counted at its end.
    """
    size_bytes = response.calculate_content_length() or 0
    try:
        if size_bytes > _SMALL_RESPONSE_BYTES:
            request.share.take(size_bytes)
        if request.pages is not None and not request.is_streaming:
            request.pages.settle(succeeded=response.status_code < 400)
    except OcrsvcError as error:
        response.close()
        response = current_app.make_response(current_app.handle_user_exception(error))
    if request.pages is not None:
        response.headers.extend(request.pages.headers)
    return response


def install(app: Flask) -> None:
    """Answer every failure of the application; a blueprint's own handlers come first."""
    app.register_error_handler(Exception, problem)
    app.after_request(finish)


def _add_headers(response: Response, failure: OcrsvcError) -> None:
    """Retry-After, Allow, and how a key may be sent: by programs, and by browsers, which ask a person for it."""
    if isinstance(failure, Refused):
        response.headers["Retry-After"] = str(failure.retry_after_s)
        response.headers.update(failure.headers if isinstance(failure, QuotaExceeded) else {})
    elif isinstance(failure, RouterRefused) and failure.allow:
        response.headers["Allow"] = failure.allow
    if response.status_code == 401:
        # A field each, as browsers read it.
        wrong = ', error="invalid_token"' if isinstance(failure, KeyRefused) else ""
        response.headers.add("WWW-Authenticate", f'Bearer realm="ocrsvc"{wrong}')
        response.headers.add("WWW-Authenticate", 'Basic realm="ocrsvc", charset="UTF-8"')


def _id_method_path() -> tuple[str, str, str]:
    """Of the request, for the log; dashes outside of HTTP."""
    if not has_request_context():
        return "-", "-", "-"
    return request.id, request.method[:20], loggable_path(request.path)
