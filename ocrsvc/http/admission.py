"""Request admission: checks a request's host, route, API key, caller, queue and body before its view runs.

Runs in the request's thread. For large bodies the event loop has already checked the key in the head, with the same
KeyCheck, and counted the body's memory as it arrived (`received_body.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import Any, Final
from urllib.parse import unquote

from flask import Flask
from werkzeug.wsgi import ClosingIterator, get_path_info

from ocrsvc.access.api_keys import Credential, KeyEntry, KeyRequest, Scope, credential_of, no_value
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_routes import Routes
from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.http.origins import ANY, check_host, check_origin
from ocrsvc.http.request import Environ, Request, current_request
from ocrsvc.http.responses import STREAMS, is_reported_in_a_200
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.memory_budget import Budget, Callers, SharedLimits
from ocrsvc.serving.request_guard import RequestGuard
from ocrsvc.settings.group import Percentage, bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.telemetry.loggable import loggable_path

# Views with this attribute set to true do not use the engine, so they are admitted when its queue is full.
WITHOUT_ENGINE: Final = "is_without_engine"
HeadCheck = Callable[[Any, str | None], OcrsvcError | None]
"""Gets gunicorn's request and the client certificate's key name; returns an error to refuse the body, or None."""

# Largest default memory of a worker's requests: a 50 megapixel colour page twice (for rotation), and a 64 MiB body.
_MAX_REQUEST_BYTES: Final = 384 * 2**20
_MAX_ACCEPT_CHARS: Final = 4096
# Blueprints that are not wire formats. API keys can be restricted to wire formats; the native one is `api`.
_NO_FORMAT: Final = frozenset({"", "operators", "ops", "page"})
# Methods of requests that may send a file to read; only these count in the limits of callers and keys.
_COUNTED: Final = frozenset({"POST", "PUT"})


class Admission:
    """Admits or refuses every request of an application. Create it after all adapters are registered.

    Where several adapters share a path, `route_by_head` chooses one, and `route_by_body` if several are left.
    """

    def __init__(
        self,
        app: Flask,
        settings: Settings,
        reader: Reader,
        callers: Callers,
        keys: KeyCheck | None,
        route_by_head: Callable[[Request], None],
        route_by_body: Callable[[Request], None],
    ) -> None:
        self._views, self._reader, self._keys = app.view_functions, reader, keys
        self._route_by_head, self._route_by_body = route_by_head, route_by_body
        self._hosts = frozenset(settings.hosts)
        self._callers = callers if settings.caller_requests else None
        app.before_request(self.admit)
        app.teardown_request(self.leave)

    def admit(self) -> None:
        """Run all checks on this thread's request. Raises OcrsvcError."""
        request, keys = current_request(), self._keys
        for name in ("HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING"):
            # Truncate oversized Accept headers, because parsing 64 KiB takes 0.2 s.
            if len(value := request.environ.get(name, "")) > _MAX_ACCEPT_CHARS:
                request.environ[name] = value[:_MAX_ACCEPT_CHARS].rpartition(",")[0]
        # Choose the adapter first, because it formats the errors of the checks below.
        self._route_by_head(request)
        check_host(request, self._hosts)
        if keys is not None:
            keys.check_head(request)
            self._route_by_head(request)
            keys.check_format(request)
        is_counted = request.method in _COUNTED and request.routing_exception is None
        if is_counted:
            self._enter(request)
        # The steps below may parse the body, so they come after the checks that need only the head.
        if keys is not None:
            keys.check_body(request)
        self._route_by_body(request)
        # Count the request in its key's limits last, because this may wait for the key store.
        if keys is not None and is_counted:
            keys.enter(request, pages=int(self._needs_engine(request)))

    def leave(self, _error: BaseException | None) -> None:
        """Return the pages that the request reserved but did not read, and stop counting it as an open request."""
        request = current_request()
        if request.pages is not None:
            request.pages.release()
        if self._callers is not None and request.admitted_caller is not None:
            self._callers.leave(request.admitted_caller)

    def _enter(self, request: Request) -> None:
        """Count the caller's request and check the engine's queue. Raises BadOption, TooManyAtOnce, QueueFull."""
        priority = request.priority
        if self._callers is not None:
            self._callers.enter(request.caller)
            request.admitted_caller = request.caller
        if self._needs_engine(request):
            self._reader.check_capacity(priority)

    def _needs_engine(self, request: Request) -> bool:
        return not getattr(self._views.get(request.endpoint or ""), WITHOUT_ENGINE, False)


class KeyCheck:
    """Checks the API keys of requests. CORS preflight requests from `sites` need none."""

    def __init__(self, gate: AccessGate, routes: Routes, sites: Collection[str] = ()) -> None:
        self._gate, self._routes, self._sites = gate, routes, sites

    def refusal_of_head(self, request: Any, client_name: str | None) -> OcrsvcError | None:
        """A HeadCheck: check the key before the body arrives. For the event loop: uses keys in memory, never blocks."""
        # Percent-decode the path, so that the key is checked for the path that the application will see.
        path, headers = "/" + unquote(request.path).lstrip("/"), dict(request.headers)
        sent = KeyRequest(request.method, path, request.query, lambda name: headers.get(name.upper(), ""))
        own = (find(sent) for find in self._routes.credentials.values())
        credential = credential_of(headers.get("AUTHORIZATION", ""), headers.get("X-API-KEY", ""), *own)
        in_body = self._routes.may_have_key_in_body(path, request.method, headers.get("CONTENT-TYPE", ""))
        if in_body and not credential.secret and not client_name:
            return None
        try:
            self._entry_of(credential, client_name, self._routes.scope_of(path))
        except OcrsvcError as error:
            return error.without_frames()
        return None

    def check_head(self, request: Request) -> None:
        """Check the key in headers or query; leave one that may be in the body to `check_body`. Raises OcrsvcError."""
        # Health checks need no key. CORS preflight requests need none because browsers never send one in them.
        is_preflight = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        is_from_site = ANY in self._sites or request.headers.get("Origin", "") in self._sites
        if self._routes.is_open(request.environ.get("PATH_INFO", "")) or (is_preflight and is_from_site):
            return
        own = self._routes.credentials_of(request.blueprint)(_key_request(request))
        standard = (request.environ.get(name, "") for name in ("HTTP_AUTHORIZATION", "HTTP_X_API_KEY"))
        credential = credential_of(*standard, own)
        if credential.secret or request.client_name or not self._may_come_in_body(request):
            self._check(request, credential)

    def check_body(self, request: Request) -> None:
        """Check the API key in a form's body, for wire formats that allow one there. Raises OcrsvcError."""
        if request.key is not None or not self._may_come_in_body(request):
            return
        try:
            content = request.content
            sent = _key_request(request, lambda name: content.text(name) or "")
            secret = self._routes.credentials_of(request.blueprint)(sent)
        except CallerError as error:
            # Hide that the body is malformed from callers without a key: they get the error for a missing key instead.
            if not is_reported_in_a_200(error):
                raise
            secret = ""
        self._check(request, credential_of("", secret))
        self.check_format(request)

    def check_format(self, request: Request) -> None:
        """Raise ScopeMissing if the request's API key does not allow the chosen wire format."""
        if request.key is not None and request.key.adapters is not None:
            self._gate.check_named(request.key.name, None, _format_of(request))

    def enter(self, request: Request, pages: int) -> None:
        """Count a request in its key's limits and reserve pages, except on operators' routes. Raises OcrsvcError."""
        is_counted = _format_of(request) and self._routes.scope_of(_rule_of(request)) != "operate"
        if request.key is not None and is_counted:
            request.pages = self._gate.enter(request.key, pages)

    def _check(self, request: Request, credential: Credential) -> None:
        """Check a credential, and set `request.key`. Raises KeyMissing, KeyRefused, ScopeMissing and so on."""
        # Any valid key suffices for the service's description, its web page, and unknown paths.
        any_key_will_do = request.url_rule is None or request.blueprint in {"ops", "page"}
        scope = None if any_key_will_do else self._routes.scope_of(_rule_of(request))
        entry = self._entry_of(credential, request.client_name, scope)
        if credential.by_browser or not credential.secret:
            # Browsers send Basic credentials and client certificates even with requests from other sites' pages.
            check_origin()
        request.key = entry

    def _entry_of(self, credential: Credential, client_name: str | None, scope: Scope | None) -> KeyEntry:
        """The entry of the key that was sent, or else of the client certificate's key. Raises OcrsvcError."""
        if credential.secret or client_name is None:
            return self._gate.check(credential.secret, scope)
        return self._gate.check_named(client_name, scope)

    def _may_come_in_body(self, request: Request) -> bool:
        values = (request.environ.get(name, "") for name in ("PATH_INFO", "REQUEST_METHOD", "CONTENT_TYPE"))
        return self._routes.may_have_key_in_body(*values)


def _key_request(request: Request, field: Callable[[str], str] = no_value) -> KeyRequest:
    """The request as a wire format's `credentials` function sees it; `field` returns a form field of the body."""
    environ = request.environ

    def header(name: str) -> str:
        return str(environ.get("HTTP_" + name.upper().replace("-", "_"), ""))

    return KeyRequest(request.method, environ.get("PATH_INFO", ""), environ.get("QUERY_STRING", ""), header, field)


def _rule_of(request: Request) -> str:
    """The URL rule of the matched route, or the path as sent if no route matched."""
    return request.url_rule.rule if request.url_rule is not None else request.path


def _format_of(request: Request) -> str | None:
    """The name of the request's wire format, to which API keys can be restricted; None for routes that have none."""
    name = request.blueprint or ""
    return None if name in _NO_FORMAT else name


def guarded(application: Callable[..., Iterable[bytes]], guard: RequestGuard) -> Callable[..., Iterable[bytes]]:
    """Wrap the WSGI application: each request is registered in `guard` while it runs; see serving.request_guard."""

    def run(environ: Environ, start_response: Any) -> Iterable[bytes]:
        with ExitStack() as stack:
            stack.enter_context(guard.request(loggable_path(get_path_info(environ))))
            answer = application(environ, start_response)
            # A streamed response is produced while it is sent, so guard the request until the response is closed.
            return ClosingIterator(answer, stack.pop_all().close) if environ.get(STREAMS) else answer

    return run


def shared_limits_of(settings: Settings, workers: int = 1, guard: RequestGuard | None = None) -> SharedLimits:
    """The memory and caller limits of one of `workers` processes; the memory limit is at least the body limit."""
    memory_bytes = memory_of_requests(settings.request_memory_bytes, workers, read_memory_bytes())
    return SharedLimits(Budget(max(memory_bytes, settings.max_body_bytes)), Callers(settings.caller_requests), guard)


def memory_of_requests(given: int | Percentage | None, workers: int, whole_bytes: int) -> int:
    """Memory limit of one worker's requests, in bytes; `whole_bytes` is the machine's memory, 0 if unknown."""
    known = bytes_of(given, whole_bytes)
    if known is not None:
        return known
    return min(_MAX_REQUEST_BYTES, whole_bytes // (4 * workers)) if whole_bytes else _MAX_REQUEST_BYTES
