"""Turns every failure into an HTTP response.

`Failure` is what every API adapter needs to know of one. The native API and every path that belongs to no adapter
answer it as RFC 9457 problem JSON; the adapters put it into their own shape.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import orjson
from flask import Flask, Response, current_app, has_request_context
from werkzeug.exceptions import HTTPException

from ocrsvc.errors import OcrsvcError, Refused
from ocrsvc.http.request import ID_HEADER, request

LOGGER: Final = logging.getLogger("ocrsvc.web")
PROBLEM_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:problem-type:ocrsvc:"

# Asking would cost more than such a response holds, and the report of a refusal must not be refused.
_SMALL_RESPONSE_BYTES: Final = 1 << 14

# What the router refuses: its code, and what the caller can do.
ROUTING: Final = {
    403: ("local_only", "Ask on the machine itself, or have the operator set OCRSVC_OPS=open."),
    404: ("not_found", "GET /openapi.json lists what there is."),
    405: ("method_not_allowed", "The header Allow lists the methods of this path."),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as an answer needs it.

    Attributes:
        status: HTTP status.
        code: Short and stable, for programs.
        title, detail, remedy: For people; remedy may be empty.
        retryable: Whether the same request may succeed later.
        headers: What the status asks for: Retry-After, Allow; every response with an error status gets them.
        is_refusal: Whether the service was healthy, and did not take the request now.
    """

    status: int
    code: str
    title: str
    detail: str
    remedy: str = ""
    retryable: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    is_refusal: bool = False

    def __str__(self) -> str:
        return f"{self.detail} {self.remedy}".rstrip()


def failure_of(error: BaseException) -> Failure:
    """The failure behind any exception that reaches the edge of the web; what is our fault is logged, with the id."""
    failure = _failure_of(error)
    if has_request_context():
        request.failures.append(failure)
    return failure


def _failure_of(error: BaseException) -> Failure:
    if isinstance(error, OcrsvcError):
        return _of_ocrsvc_error(error)
    if isinstance(error, HTTPException):
        return _of_http_exception(error)
    LOGGER.error("unexpected error id=%s %s %s", *_id_method_path(), exc_info=error)
    return Failure(
        OcrsvcError.status,
        OcrsvcError.code,
        OcrsvcError.title,
        "Something went wrong here; it is in the service's log under the id of this answer.",
        "If it happens again, tell the operator the id.",
    )


def problem_dict(failure: Failure, answer_id: str) -> dict[str, object]:
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
    response = _within_memory(response)
    if response.status_code >= 400 and request.failures:
        response.headers.update(request.failures[-1].headers)
    response.headers[ID_HEADER] = request.id
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


def install(app: Flask) -> None:
    """Answer every failure of the application; a blueprint's own handlers come first."""
    app.register_error_handler(Exception, problem)
    app.after_request(finish)


def _of_ocrsvc_error(error: OcrsvcError) -> Failure:
    retry = (("Retry-After", str(error.retry_after_s)),) if isinstance(error, Refused) else ()
    if error.status == OcrsvcError.status:
        LOGGER.error("failed id=%s %s %s code=%s: %s", *_id_method_path(), error.code, error.detail, exc_info=error)
    members = (error.status, error.code, error.title, error.detail, error.remedy, error.retryable)
    return Failure(*members, headers=retry, is_refusal=isinstance(error, Refused))


def _of_http_exception(error: HTTPException) -> Failure:
    """What Flask's router refuses."""
    status = error.code or OcrsvcError.status
    code, remedy = ROUTING.get(status, (f"http_{status}", ""))
    allow = tuple((key, value) for key, value in error.get_headers() if key == "Allow")
    detail = f"{request.method} {request.path[:200]}: {error.name}."
    return Failure(status, code, error.name, detail, remedy, headers=allow)


def _id_method_path() -> tuple[str, str, str]:
    """Id, method and path of the request; what comes by another way than HTTP has none."""
    if not has_request_context():
        return "-", "-", "-"
    return request.id, request.method, request.path
