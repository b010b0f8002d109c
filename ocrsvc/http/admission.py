"""Admission of POST requests: a caller's limit, memory for the body, and a free place in front of the engine.

Checked once the body has arrived, before anything is made of it. Only POST is checked: health checks are always
admitted. What a request holds is given back when it ends, whatever way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Final

from flask import Flask
from werkzeug.wsgi import ClosingIterator, get_path_info

from ocrsvc.http.request import Environ, request
from ocrsvc.http.response_stream import STREAMS
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.memory_budget import SharedLimits, make_shared_limits
from ocrsvc.serving.request_guard import RequestGuard
from ocrsvc.settings.group import Percentage, bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.telemetry.loggable import loggable_path

WITHOUT_ENGINE: Final = "is_without_engine"
"""A view function with this attribute, true, answers without the engine, so that no free place is needed."""

# A page of 50 million pixels in colour, twice while it is turned, and a body of 64 MiB.
_MOST_REQUEST_BYTES: Final = 384 * 2**20


def install_admission(app: Flask, settings: Settings, reader: Reader, limits: SharedLimits) -> None:
    """Admit or refuse every POST to a known path; the adapters answer a refusal in their own shape.

    Args:
        app: The application.
        settings: Used is caller_requests.
        reader: Knows whether a place in front of the engine is free.
        limits: For callers.
    """

    @app.before_request
    def admit() -> None:
        if request.method != "POST" or request.routing_exception is not None:
            return
        priority = request.priority
        if settings.caller_requests:
            caller = request.caller
            limits.callers.enter(caller)
            request.admitted_caller = caller
        if not getattr(app.view_functions.get(request.endpoint or ""), WITHOUT_ENGINE, False):
            reader.check_capacity(priority)

    @app.teardown_request
    def leave(_error: BaseException | None) -> None:
        if request.admitted_caller is not None:
            limits.callers.leave(request.admitted_caller)


def guarded(application: Callable[..., Iterable[bytes]], guard: RequestGuard) -> Callable[..., Iterable[bytes]]:
    """A WSGI application whose requests are on record while they are worked on; see serving.request_guard."""

    def run(environ: Environ, start_response: Any) -> Iterable[bytes]:
        with ExitStack() as stack:
            stack.enter_context(guard.request(loggable_path(get_path_info(environ))))
            answer = application(environ, start_response)
            # An answer in pieces is worked on until it is closed.
            return ClosingIterator(answer, stack.pop_all().close) if environ.get(STREAMS) else answer

    return run


def shared_limits_of(settings: Settings, workers: int = 1, guard: RequestGuard | None = None) -> SharedLimits:
    """What the settings leave to the requests of one process out of so many."""
    return make_shared_limits(
        memory_bytes=memory_of_requests(settings.request_memory_bytes, workers, read_memory_bytes()),
        most_bytes=settings.max_body_bytes,
        caller_requests=settings.caller_requests,
        guard=guard,
    )


def memory_of_requests(given: int | Percentage | None, workers: int, whole_bytes: int) -> int:
    """Bytes that the requests of one worker may hold together; the whole is 0 where it is not known."""
    known = bytes_of(given, whole_bytes)
    if known is not None:
        return known
    return min(_MOST_REQUEST_BYTES, whole_bytes // (4 * workers)) if whole_bytes else _MOST_REQUEST_BYTES
