"""Error responses: every failure becomes RFC 9457 problem JSON, unless the adapter formats errors itself."""

import logging
from difflib import get_close_matches
from typing import Final

import orjson
from flask import Flask, Response, current_app, has_request_context
from werkzeug.exceptions import HTTPException

from ocrsvc.errors import KeyRefused, OcrsvcError, QuotaExceeded, Refused
from ocrsvc.http.request import ID_HEADER, TIMING_HEADER, current_request, request
from ocrsvc.telemetry.ledger import server_timing
from ocrsvc.telemetry.loggable import loggable_error, loggable_path

LOGGER: Final = logging.getLogger("ocrsvc.web")
PROBLEM_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:problem-type:ocrsvc:"

# Responses up to this size need no memory budget, so that an error can be reported even if the budget is used up.
_SMALL_RESPONSE_BYTES: Final = 1 << 14

# Error code and remedy for each status of Flask's router.
ROUTING: Final = {
    403: ("local_only", "Send it from the machine itself, or have the operator set OCRSVC_OPS=open."),
    404: ("not_found", "GET /openapi.json lists all paths."),
    405: ("method_not_allowed", ""),
}
_OWN_PATHS: Final = ("/v1/ocr", "/v1/jobs", "/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/version")


class RouterRefused(OcrsvcError):
    """Flask's router found no route for the path or method, or a view aborted with a status."""

    def __init__(self, error: HTTPException) -> None:
        self.status = error.code or OcrsvcError.status
        self.code, remedy = ROUTING.get(self.status, (f"http_{self.status}", ""))
        self.title = error.name
        self.allow = dict(error.get_headers()).get("Allow", "")
        if self.allow:
            remedy = f"Accepted here: {', '.join(sorted(self.allow.split(', ')))}."
        elif self.status == 404 and (near := get_close_matches(request.path[:40], _OWN_PATHS, n=1, cutoff=0.7)):
            remedy = f"Did you mean {near[0]}? {remedy}"
        super().__init__(f"{request.method} {request.path[:200]}: {error.name}.", remedy)


def failure_of(error: BaseException) -> OcrsvcError:
    """Convert any exception of a request to the error to report; log the service's own faults with the request id."""
    is_in_request = has_request_context()
    where = (request.id, request.method[:20], loggable_path(request.path)) if is_in_request else ("-", "-", "-")
    if isinstance(error, OcrsvcError):
        failure = error
        if error.status == OcrsvcError.status:
            line = (*where, error.code, error.detail)
            LOGGER.error("failed id=%s %s %s code=%s: %s", *line, exc_info=loggable_error(error))
    elif isinstance(error, HTTPException):
        failure = RouterRefused(error)
    else:
        LOGGER.error("unexpected error id=%s %s %s", *where, exc_info=loggable_error(error))
        failure = OcrsvcError(
            "An unexpected error occurred; the service's log has it under this response's id.",
            "If it happens again, send the operator the id.",
        )
    if is_in_request:
        request.failures.append(failure)
    return failure


def problem_dict(failure: OcrsvcError, request_id: str) -> dict[str, object]:
    """The members of the problem JSON object (RFC 9457)."""
    names = ("title", "status", "detail", "code", "retryable")
    members = {"type": TYPE_PREFIX + failure.code, **{name: getattr(failure, name) for name in names}, "id": request_id}
    return members | ({"remedy": failure.remedy} if failure.remedy else {})


def problem(error: Exception) -> Response:
    """Flask error handler: respond to any exception with problem JSON."""
    return problem_response(failure_of(error))


def problem_response(failure: OcrsvcError) -> Response:
    """The response to an error with problem JSON."""
    body = orjson.dumps(problem_dict(failure, request.id))
    return Response(body, failure.status, content_type=PROBLEM_TYPE)


def finish(response: Response) -> Response:
    """Flask `after_request` hook: count memory and pages, answer with an error if either is refused, add headers."""
    request = current_request()
    size_bytes = response.calculate_content_length() or 0
    try:
        if size_bytes > _SMALL_RESPONSE_BYTES:
            request.share.take(size_bytes)
        # The pages of a streamed response are counted at its end.
        if request.pages is not None and not request.is_streaming:
            request.pages.settle(succeeded=response.status_code < 400)
    except OcrsvcError as error:
        response.close()
        response = current_app.make_response(current_app.handle_user_exception(error))
    if request.pages is not None:
        response.headers.extend(request.pages.headers)
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


def install(app: Flask) -> None:
    """Register handlers for every exception of the application; a blueprint's own handlers take precedence."""
    app.register_error_handler(Exception, problem)
    app.after_request(finish)


def _add_headers(response: Response, failure: OcrsvcError) -> None:
    """Add Retry-After, Allow, and for 401 WWW-Authenticate: Bearer for programs, Basic for browsers."""
    if isinstance(failure, Refused):
        response.headers["Retry-After"] = str(failure.retry_after_s)
        response.headers.update(failure.headers if isinstance(failure, QuotaExceeded) else {})
    elif isinstance(failure, RouterRefused) and failure.allow:
        response.headers["Allow"] = failure.allow
    if response.status_code == 401:
        wrong = ', error="invalid_token"' if isinstance(failure, KeyRefused) else ""
        # Add two WWW-Authenticate headers, because browsers expect one per scheme.
        response.headers.add("WWW-Authenticate", f'Bearer realm="ocrsvc"{wrong}')
        response.headers.add("WWW-Authenticate", 'Basic realm="ocrsvc", charset="UTF-8"')
