"""Admission: one function that every request passes before its view, whose steps are read from top to bottom.

The event loop has checked a large body's key on its head already (`access.py`), and takes memory for each piece of the
body as it comes (`received_body.py`). The adapters answer a refusal in their own shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Final, Protocol

from flask import Flask
from werkzeug.wsgi import ClosingIterator, get_path_info

from ocrsvc.http.access import KeyCheck
from ocrsvc.http.origins import check_host
from ocrsvc.http.request import Environ, Request, current_request
from ocrsvc.http.response_stream import STREAMS
from ocrsvc.http.responses import cut_accepted
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.memory_budget import Callers, SharedLimits, make_shared_limits
from ocrsvc.serving.request_guard import RequestGuard
from ocrsvc.settings.group import Percentage, bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.telemetry.loggable import loggable_path

WITHOUT_ENGINE: Final = "is_without_engine"
"""A view function with this attribute, true, answers without the engine, so that no free place is needed."""

# A page of 50 million pixels in colour, twice while it is turned, and a body of 64 MiB.
_MOST_REQUEST_BYTES: Final = 384 * 2**20


class Router(Protocol):
    """Chooses among adapters that share a path; as `ocrsvc.routing.Router`."""

    def by_head(self, asked: Request) -> None:
        """By the port and the headers; before anything else, for a refusal needs its adapter."""

    def by_key(self, asked: Request) -> None:
        """By the formats that the key is for."""

    def by_body(self, asked: Request) -> None:
        """By what is in the body, if several are left."""


class Admission:
    """Admits or refuses every request of an application; made when all adapters are registered."""

    def __init__(
        self, app: Flask, settings: Settings, reader: Reader, callers: Callers, router: Router, keys: KeyCheck | None
    ) -> None:
        self._views, self._reader, self._router, self._keys = app.view_functions, reader, router, keys
        self._hosts = frozenset(settings.hosts)
        self._callers = callers if settings.caller_requests else None
        app.before_request(self.admit)
        app.teardown_request(self.leave)

    def admit(self) -> None:
        """The steps. Raises OcrsvcError."""
        asked, keys = current_request(), self._keys
        cut_accepted(asked.environ)
        self._router.by_head(asked)
        check_host(asked, self._hosts)
        if keys is not None:
            keys.check_head(asked)
            self._router.by_key(asked)
            keys.check_format(asked)
        takes_place = asked.method == "POST" and asked.routing_exception is None
        if takes_place:
            self._enter(asked)
        # Only what is admitted so far is taken apart, which some formats and shared paths need already here.
        if keys is not None:
            keys.check_body(asked)
        self._router.by_body(asked)
        # Last, for it may wait for a store.
        if keys is not None and takes_place:
            keys.enter(asked, pages=int(self._needs_engine(asked)))

    def leave(self, _error: BaseException | None) -> None:
        """Give back what the request did not use, and its caller's place."""
        asked = current_request()
        if asked.pages is not None:
            asked.pages.release()
        if self._callers is not None and asked.admitted_caller is not None:
            self._callers.leave(asked.admitted_caller)

    def _enter(self, asked: Request) -> None:
        """A place of the caller, and one in front of the engine. Raises BadOption, TooManyAtOnce, QueueFull."""
        priority = asked.priority
        if self._callers is not None:
            self._callers.enter(asked.caller)
            asked.admitted_caller = asked.caller
        if self._needs_engine(asked):
            self._reader.check_capacity(priority)

    def _needs_engine(self, asked: Request) -> bool:
        return not getattr(self._views.get(asked.endpoint or ""), WITHOUT_ENGINE, False)


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
