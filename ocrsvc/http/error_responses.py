"""Turns every failure into an HTTP response.

`Failure` is what every API adapter needs to know of one. The native API and every path that belongs to no adapter
answer it as RFC 9457 problem JSON; the adapters put it into their own shape.
"""

from __future__ import annotations

import logging
from typing import Final

import orjson
from flask import Flask, Response, current_app, has_request_context
from werkzeug.exceptions import HTTPException

from ocrsvc.errors import KeyRefused, OcrsvcError, QuotaExceeded, Refused
from ocrsvc.http.request import ID_HEADER, TIMING_HEADER, request
from ocrsvc.telemetry.ledger import server_timing
from ocrsvc.telemetry.loggable import loggable_error, loggable_path

LOGGER: Final = logging.getLogger("ocrsvc.web")
PROBLEM_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:problem-type:ocrsvc:"

# Asking would cost more than such a response holds, and the report of a refusal must not be refused.
_SMALL_RESPONSE_BYTES: Final = 1 << 14

_REALM: Final = "ocrsvc"

# What the router refuses: its code, and what the caller can do.
ROUTING: Final = {
    403: ("local_only", "Ask on the machine itself, or have the operator set OCRSVC_OPS=open."),
    404: ("not_found", "GET /openapi.json lists what there is."),
    405: ("method_not_allowed", "The header Allow lists the methods of this path."),
}


class RouterRefused(OcrsvcError):
    """There is nothing at this path, or not for this method or caller: what Flask's router refuses."""

    def __init__(self, error: HTTPException) -> None:
        self.status = error.code or OcrsvcError.status
        self.code, remedy = ROUTING.get(self.status, (f"http_{self.status}", ""))
        self.title = error.name
        self.allow = dict(error.get_headers()).get("Allow", "")
        super().__init__(f"{request.method} {request.path[:200]}: {error.name}.", remedy)


def failure_of(error: BaseException) -> OcrsvcError:
    """As what an exception that reaches the edge of the web is reported; what is our fault is logged, with the id."""
    if isinstance(error, OcrsvcError):
        failure = error
        if error.status == OcrsvcError.status:
            LOGGER.error(
                "failed id=%s %s %s code=%s: %s",
                *_id_method_path(),
                error.code,
                error.detail,
                exc_info=loggable_error(error),
            )
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
    """The members of a problem (RFC 9457), ready to become JSON."""
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
    response = _settled(_within_memory(response))
    if response.status_code >= 400 and request.failures:
        response.headers.update(_headers_of(request.failures[-1]))
        if response.status_code == 401:
            _challenge(response, request.failures[-1])
    response.headers[ID_HEADER] = request.id
    if (trace := request.trace) is not None:
        response.headers.extend(trace.headers())
    if request.wants_stages and not request.is_streaming:
        response.headers[TIMING_HEADER] = server_timing(request.ledger.seconds())
    response.headers.setdefault("Cache-Control", "no-store")
    request.response = response
    return response


def _within_memory(response: Response) -> Response:
    """The answer, once it is in the request's account of memory; one that does not fit becomes a refusal."""
    size_bytes = response.calculate_content_length() or 0
    if size_bytes <= _SMALL_RESPONSE_BYTES:
        return response
    try:
        request.share.take(size_bytes)
    except OcrsvcError as error:
        response.close()
        # In the shape of its adapter.
        return current_app.make_response(current_app.handle_user_exception(error))
    return response


def _settled(response: Response) -> Response:
    """The answer, once its pages are counted for its key; a refusal where they cannot be."""
    pages = request.pages
    if pages is None:
        return response
    if request.is_streaming:
        # They are counted at its end.
        response.headers.extend(pages.headers)
        return response
    try:
        pages.settle(succeeded=response.status_code < 400)
    except OcrsvcError as error:
        response.close()
        return current_app.make_response(current_app.handle_user_exception(error))
    response.headers.extend(pages.headers)
    return response


def install(app: Flask) -> None:
    """Answer every failure of the application; a blueprint's own handlers come first."""
    app.register_error_handler(Exception, problem)
    app.after_request(finish)


def _headers_of(failure: OcrsvcError) -> dict[str, str]:
    """What the status asks for."""
    if isinstance(failure, Refused):
        limits = failure.headers if isinstance(failure, QuotaExceeded) else {}
        return {"Retry-After": str(failure.retry_after_s), **limits}
    return {"Allow": failure.allow} if isinstance(failure, RouterRefused) and failure.allow else {}


def _challenge(response: Response, failure: OcrsvcError) -> None:
    """How a key may be sent: by programs, and by browsers, which ask a person for it. A field each, as they read it."""
    wrong = ', error="invalid_token"' if isinstance(failure, KeyRefused) else ""
    response.headers.add("WWW-Authenticate", f'Bearer realm="{_REALM}"{wrong}')
    response.headers.add("WWW-Authenticate", f'Basic realm="{_REALM}", charset="UTF-8"')


def _id_method_path() -> tuple[str, str, str]:
    """Id, method and path of the request; what comes by another way than HTTP has none."""
    if not has_request_context():
        return "-", "-", "-"
    return request.id, request.method[:20], loggable_path(request.path)
