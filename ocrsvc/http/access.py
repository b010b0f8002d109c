"""Checks the API key of every request over HTTP, and takes what it uses from the key's limits.

In three steps: the key is checked in memory before anything else of the request is looked at (`install_key_check`);
once the request is admitted, a key that its format has in the body is read (`install_body_key`), and the request is
counted as one of the key's (`install_key_limits`). The adapters answer a refusal in their own shape.
"""

from __future__ import annotations

from typing import Final

from flask import Flask

from ocrsvc.access.credentials import Credential, credential_of
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.records import KeyEntry
from ocrsvc.access.request_pages import RequestPages
from ocrsvc.access.routes import Routes
from ocrsvc.http.admission import WITHOUT_ENGINE
from ocrsvc.http.origins import check_origin
from ocrsvc.http.request import Environ, request
from ocrsvc.settings.settings import Settings

# The service's own routes belong to no wire format that a key could be for; `api` is one.
_NO_FORMAT: Final = frozenset({"", "operators", "ops", "page"})


def install_key_check(app: Flask, settings: Settings, gate: AccessGate, routes: Routes) -> None:
    """Refuse every request without a key that is good for its route, but those for health; called after routing.

    Args:
        app: The application.
        settings: Used is cors.
        gate: Knows the keys.
        routes: Which are open, and what the others want.
    """

    @app.before_request
    def check_key() -> None:
        if routes.is_open(request.path, request.method) or (settings.cors and _is_preflight()):
            return
        credential = sent_in_head(request.environ, routes.key_field_of(request.blueprint))
        if not credential.secret and routes.may_have_key_in_body(request.path, request.method):
            return
        _check(gate, routes, credential)


def install_body_key(app: Flask, gate: AccessGate, routes: Routes) -> None:
    """Check the keys that come in the body, which is taken apart for it; called when the request has been admitted."""

    @app.before_request
    def check_key_in_body() -> None:
        if request.key is None and routes.may_have_key_in_body(request.path, request.method):
            field = routes.key_field_of(request.blueprint)
            _check(gate, routes, credential_of("", request.content.text(field) or "" if field else ""))
            check_format(gate)


def install_key_limits(app: Flask, gate: AccessGate, routes: Routes) -> None:
    """Count a request among those of its key, and give back at its end what it did not use; called last.

    Requests for operators' routes, for the web page and for what the service says of itself count for nothing.
    """

    @app.before_request
    def enter() -> None:
        if request.key is None or request.routing_exception is not None or _format() is None:
            return
        reads = routes.scope_of(_rule()) == "read" and request.method == "POST"
        view = app.view_functions.get(request.endpoint or "")
        pages = int(reads and not getattr(view, WITHOUT_ENGINE, False))
        request.pages = RequestPages(gate.enter(request.key, pages), pages)

    @app.teardown_request
    def leave(_error: BaseException | None) -> None:
        if request.pages is not None:
            request.pages.release()


def check_format(gate: AccessGate) -> None:
    """Raises ScopeMissing when this request's key is not for the format that was chosen for it."""
    if request.key is not None:
        gate.check_named(request.key.name, None, _format())


def sent_in_head(environ: Environ, field: str) -> Credential:
    """The key in the head of a request: in a header, or of a GET in the query where its format has it there.

    Args:
        environ: Of WSGI.
        field: What the format calls it; empty where it has no place of its own for a key.
    """
    places = [environ.get("HTTP_X_API_KEY", "")]
    if field:
        places.append(environ.get(f"HTTP_{field.upper()}", ""))
    if field and request.method == "GET":
        places.append(request.args.get(field, ""))
    return credential_of(environ.get("HTTP_AUTHORIZATION", ""), *places)


def _check(gate: AccessGate, routes: Routes, credential: Credential) -> None:
    """Raises KeyMissing, KeyRefused, ScopeMissing, KeysUnavailable, HostNotAllowed."""
    # What the service says of itself, its web page, and what is not there: any valid key will do.
    anyone = request.url_rule is None or request.blueprint in {"ops", "page"}
    entry: KeyEntry = gate.check(credential.secret, None if anyone else routes.scope_of(_rule()))
    if credential.by_browser:
        # It sends the key by itself, also when a page of another site makes it ask.
        check_origin()
    request.key = entry


def _rule() -> str:
    """The path as it was routed; as it was sent where there is nothing."""
    return request.url_rule.rule if request.url_rule is not None else request.path


def _format() -> str | None:
    """The wire format of the request, as keys name it; None where it is none."""
    name = request.blueprint or ""
    return None if name in _NO_FORMAT else name


def _is_preflight() -> bool:
    """Whether a browser asks what a page of another site may send; it never sends a key with that."""
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
