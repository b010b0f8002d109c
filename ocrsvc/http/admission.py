"""Admission: one function that every request passes before its view, whose steps are read from top to bottom.

Host, route, key, caller, queue, body. The event loop has checked a large body's head for its key already, by the same
KeyCheck, and takes memory for each piece of the body as it comes (`received_body.py`). Only the request's thread
admits: it knows the adapter that shapes a refusal, and may wait for the store of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import Any, Final, Protocol
from urllib.parse import unquote

from flask import Flask
from werkzeug.wsgi import ClosingIterator, get_path_info

from ocrsvc.access.api_keys import Credential, KeyEntry, Scope, credential_of
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_routes import Routes
from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.http.origins import ANY, check_host, check_origin
from ocrsvc.http.request import Environ, Request, current_request
from ocrsvc.http.response_stream import STREAMS
from ocrsvc.http.responses import is_reported_in_a_200
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.memory_budget import Budget, Callers, SharedLimits
from ocrsvc.serving.request_guard import RequestGuard
from ocrsvc.settings.group import Percentage, bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.telemetry.loggable import loggable_path

WITHOUT_ENGINE: Final = "is_without_engine"
"""A view function with this attribute, true, answers without the engine, so that no free place is needed."""

HeadCheck = Callable[[Any, str | None], OcrsvcError | None]
"""Why the body of gunicorn's request is not received; None if it is. The text names the certificate's key, if any."""

# A page of 50 million pixels in colour, twice while it is turned, and a body of 64 MiB.
_MAX_REQUEST_BYTES: Final = 384 * 2**20
_MAX_ACCEPT_CHARS: Final = 4096
# The service's own routes belong to no wire format that a key could be for; `api` is one.
_NO_FORMAT: Final = frozenset({"", "operators", "ops", "page"})


class Router(Protocol):
    """Chooses among adapters that share a path, see `ocrsvc.url_routes.Router`."""

    def by_head(self, request: Request) -> None:
        """By the port, the headers, and the key once it is known."""

    def by_body(self, request: Request) -> None:
        """By the content of the body, if several adapters are left."""


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
        request, keys = current_request(), self._keys
        _truncate_accept_headers(request.environ)
        # First, for a refusal needs its adapter.
        self._router.by_head(request)
        check_host(request, self._hosts)
        if keys is not None:
            keys.check_head(request)
            self._router.by_head(request)
            keys.check_format(request)
        takes_place = request.method == "POST" and request.routing_exception is None
        if takes_place:
            self._enter(request)
        # Only the body of a request that is admitted so far is parsed, which some formats need for the steps below.
        if keys is not None:
            keys.check_body(request)
        self._router.by_body(request)
        # Last, for it may wait for a store.
        if keys is not None and takes_place:
            keys.enter(request, pages=int(self._needs_engine(request)))

    def leave(self, _error: BaseException | None) -> None:
        """Give back the pages that the request did not use, and its caller's place."""
        request = current_request()
        if request.pages is not None:
            request.pages.release()
        if self._callers is not None and request.admitted_caller is not None:
            self._callers.leave(request.admitted_caller)

    def _enter(self, request: Request) -> None:
        """A place of the caller, and one in the queue. Raises BadOption, TooManyAtOnce, QueueFull."""
        priority = request.priority
        if self._callers is not None:
            self._callers.enter(request.caller)
            request.admitted_caller = request.caller
        if self._needs_engine(request):
            self._reader.check_capacity(priority)

    def _needs_engine(self, request: Request) -> bool:
        return not getattr(self._views.get(request.endpoint or ""), WITHOUT_ENGINE, False)


class KeyCheck:
    """Checks requests for the keys that the gate knows; pages of `sites` may ask browsers' questions without one."""

    def __init__(self, gate: AccessGate, routes: Routes, sites: Collection[str] = ()) -> None:
        self._gate, self._routes, self._sites = gate, routes, sites

    def refusal_of_head(self, request: Any, client_name: str | None) -> OcrsvcError | None:
        """Event loop: why the body of gunicorn's request is not received; see HeadCheck. In memory, without waiting."""
        # As the application will see it.
        path, sent = "/" + unquote(request.path).lstrip("/"), dict(request.headers)
        names = ("AUTHORIZATION", "X-API-KEY", *self._routes.key_headers)
        credential = credential_of(*(sent.get(name, "") for name in names))
        in_body = self._routes.may_have_key_in_body(path, request.method, sent.get("CONTENT-TYPE", ""))
        if in_body and not credential.secret and not client_name:
            return None
        try:
            self._entry_of(credential, client_name, self._routes.scope_of(path))
        except OcrsvcError as error:
            return error.without_frames()
        return None

    def check_head(self, request: Request) -> None:
        """Refuse a request without a key that is good for its route, unless it may be in the body. Raises OcrsvcError.

        Health needs no key, nor does a browser that asks what a page may send: it never sends one with that.
        """
        if self._routes.is_open(request.environ.get("PATH_INFO", "")) or self._is_preflight(request):
            return
        credential = _key_in_head(request, self._routes.key_field_of(request.blueprint))
        if credential.secret or request.client_name or not self._may_come_in_body(request):
            self._check(request, credential)

    def check_body(self, request: Request) -> None:
        """Parse the body for its key where it may have one. Raises OcrsvcError."""
        if request.key is None and self._may_come_in_body(request):
            self._check(request, credential_of("", _key_in_body(request, self._routes.key_field_of(request.blueprint))))
            self.check_format(request)

    def check_format(self, request: Request) -> None:
        """Raises ScopeMissing when a request's key is not for the format that was chosen for it."""
        if request.key is not None and request.key.adapters is not None:
            self._gate.check_named(request.key.name, None, _format_of(request))

    def enter(self, request: Request, pages: int) -> None:
        """Count a POST, except an operator's, among the requests of its key, with the pages that it takes at least.

        Raises OcrsvcError.
        """
        is_counted = (
            request.key is not None and _format_of(request) and self._routes.scope_of(_rule_of(request)) != "operate"
        )
        if request.key is not None and is_counted:
            request.pages = self._gate.enter(request.key, pages)

    def _check(self, request: Request, credential: Credential) -> None:
        """Raises KeyMissing, KeyRefused, ScopeMissing, KeysUnavailable, HostNotAllowed."""
        # For the service's own description, its web page, and missing paths any valid key will do.
        any_key_will_do = request.url_rule is None or request.blueprint in {"ops", "page"}
        scope = None if any_key_will_do else self._routes.scope_of(_rule_of(request))
        entry = self._entry_of(credential, request.client_name, scope)
        if credential.by_browser or not credential.secret:
            # A browser sends it by itself, also when a page of another site makes it ask.
            check_origin()
        request.key = entry

    def _entry_of(self, credential: Credential, client_name: str | None, scope: Scope | None) -> KeyEntry:
        """The key that is sent, before the one that the client's certificate stands for. Raises OcrsvcError."""
        if credential.secret or client_name is None:
            return self._gate.check(credential.secret, scope)
        return self._gate.check_named(client_name, scope)

    def _may_come_in_body(self, request: Request) -> bool:
        sent = (request.environ.get(name, "") for name in ("PATH_INFO", "REQUEST_METHOD", "CONTENT_TYPE"))
        return self._routes.may_have_key_in_body(*sent)

    def _is_preflight(self, request: Request) -> bool:
        if not self._sites or request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return False
        return ANY in self._sites or request.headers.get("Origin", "") in self._sites


def _key_in_head(request: Request, field: str) -> Credential:
    """The key in a header, or of a GET in the query where its format, which calls it so, has it there."""
    environ = request.environ
    sent = [environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_API_KEY", "")]
    if field:
        sent.append(environ.get("HTTP_" + field.upper().replace("-", "_"), ""))
        sent.append(request.args.get(field, "") if request.method == "GET" else "")
    return credential_of(*sent)


def _key_in_body(request: Request, field: str) -> str:
    """A field of the body; empty where the body is malformed, which is not told without a key. Raises OcrsvcError."""
    try:
        return request.content.text(field) or ""
    except CallerError as error:
        if is_reported_in_a_200(error):
            return ""
        raise


def _rule_of(request: Request) -> str:
    """The path as it was routed; as it was sent where there is no such route."""
    return request.url_rule.rule if request.url_rule is not None else request.path


def _format_of(request: Request) -> str | None:
    """The wire format of the request, as keys name it; None where it is none."""
    name = request.blueprint or ""
    return None if name in _NO_FORMAT else name


def _truncate_accept_headers(environ: Environ) -> None:
    """Keep the first types of what a client accepts: 64 KiB of them would take 0.2 s."""
    for name in ("HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING"):
        sent = environ.get(name, "")
        if len(sent) > _MAX_ACCEPT_CHARS:
            environ[name] = sent[:_MAX_ACCEPT_CHARS].rpartition(",")[0]


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
    """What the settings leave to the requests of one of `workers` processes, but room for one of the largest."""
    memory_bytes = memory_of_requests(settings.request_memory_bytes, workers, read_memory_bytes())
    return SharedLimits(Budget(max(memory_bytes, settings.max_body_bytes)), Callers(settings.caller_requests), guard)


def memory_of_requests(given: int | Percentage | None, workers: int, whole_bytes: int) -> int:
    """Bytes that the requests of one worker may hold together; the whole is 0 where it is not known."""
    known = bytes_of(given, whole_bytes)
    if known is not None:
        return known
    return min(_MAX_REQUEST_BYTES, whole_bytes // (4 * workers)) if whole_bytes else _MAX_REQUEST_BYTES
