"""Checks the API key of every request over HTTP, and takes what it uses from the key's limits.

In three steps: the key is checked in memory before anything else of the request is looked at (`install_key_check`);
once the request is admitted, a key that its format has in the body is read (`install_body_key`), and the request is
counted as one of the key's (`install_key_limits`). The adapters answer a refusal in their own shape.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from flask import Flask

from ocrsvc.access.api_keys import Credential, credential_of
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_routes import Routes
from ocrsvc.errors import CallerError
from ocrsvc.http.admission import WITHOUT_ENGINE
from ocrsvc.http.origins import ANY, check_origin
from ocrsvc.http.request import Request, current_request, request
from ocrsvc.http.responses import is_reported_in_a_200
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
        asked = current_request()
        if routes.is_open(asked.environ.get("PATH_INFO", "")) or _is_preflight(asked, settings.cors):
            return
        credential = sent_in_head(asked, routes.key_field_of(asked.blueprint))
        if credential.secret or asked.client_name or not _may_have_key_in_body(routes, asked):
            _check(gate, routes, asked, credential)


def install_body_key(app: Flask, gate: AccessGate, routes: Routes) -> None:
    """Check the keys that come in the body, which is taken apart for it; called when the request has been admitted."""

    @app.before_request
    def check_key_in_body() -> None:
        asked = current_request()
        if asked.key is None and _may_have_key_in_body(routes, asked):
            field = routes.key_field_of(asked.blueprint)
            _check(gate, routes, asked, credential_of("", _text_in_body(asked, field)))
            check_format(gate, asked)


def install_key_limits(app: Flask, gate: AccessGate, routes: Routes) -> None:
    """Count a POST among the requests of its key, and give back at its end what it did not use; called last.

    What needs neither the engine nor time is answered by two threads, health among it, which wait for no store: it
    counts for nothing, nor does what operators do.
    """

    @app.before_request
    def enter() -> None:
        asked = current_request()
        if asked.key is None or asked.method != "POST" or asked.routing_exception is not None:
            return
        if _format_of(asked) is None or routes.scope_of(_rule_of(asked)) == "operate":
            return
        pages = int(not getattr(app.view_functions.get(asked.endpoint or ""), WITHOUT_ENGINE, False))
        asked.pages = gate.enter(asked.key, pages)

    @app.teardown_request
    def leave(_error: BaseException | None) -> None:
        if request.pages is not None:
            request.pages.release()


def check_format(gate: AccessGate, asked: Request) -> None:
    """Raises ScopeMissing when a request's key is not for the format that was chosen for it."""
    if asked.key is not None and asked.key.adapters is not None:
        gate.check_named(asked.key.name, None, _format_of(asked))


def sent_in_head(asked: Request, field: str) -> Credential:
    """The key in the head of a request: in a header, or of a GET in the query where its format has it there.

    Args:
        asked: The request.
        field: What the format calls it; empty where it has no place of its own for a key.
    """
    environ = asked.environ
    authorization, other = environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_API_KEY", "")
    if not field:
        return credential_of(authorization, other)
    in_query = asked.args.get(field, "") if asked.method == "GET" else ""
    return credential_of(authorization, other, environ.get("HTTP_" + field.upper().replace("-", "_"), ""), in_query)


def _text_in_body(asked: Request, field: str) -> str:
    """A field of the body; empty where the body is wrong: nobody without a key is told so. Raises OcrsvcError."""
    try:
        return asked.content.text(field) or ""
    except CallerError as error:
        if is_reported_in_a_200(error):
            return ""
        raise


def _may_have_key_in_body(routes: Routes, asked: Request) -> bool:
    environ = asked.environ
    return routes.may_have_key_in_body(environ.get("PATH_INFO", ""), asked.method, environ.get("CONTENT_TYPE", ""))


def _check(gate: AccessGate, routes: Routes, asked: Request, credential: Credential) -> None:
    """Raises KeyMissing, KeyRefused, ScopeMissing, KeysUnavailable, HostNotAllowed."""
    # What the service says of itself, its web page, and what is not there: any valid key will do.
    anyone = asked.url_rule is None or asked.blueprint in {"ops", "page"}
    scope = None if anyone else routes.scope_of(_rule_of(asked))
    # A key that is sent comes before the one that the client's certificate stands for.
    name = None if credential.secret else asked.client_name
    entry = gate.check(credential.secret, scope) if name is None else gate.check_named(name, scope)
    if credential.by_browser or name is not None:
        # A browser sends it by itself, also when a page of another site makes it ask.
        check_origin()
    asked.key = entry


def _rule_of(asked: Request) -> str:
    """The path as it was routed; as it was sent where there is nothing."""
    return asked.url_rule.rule if asked.url_rule is not None else asked.path


def _format_of(asked: Request) -> str | None:
    """The wire format of the request, as keys name it; None where it is none."""
    name = asked.blueprint or ""
    return None if name in _NO_FORMAT else name


def _is_preflight(asked: Request, sites: Collection[str]) -> bool:
    """Whether a browser asks what a page of one of these sites may send; it never sends a key with that."""
    if not sites or asked.method != "OPTIONS" or "Access-Control-Request-Method" not in asked.headers:
        return False
    return ANY in sites or asked.headers.get("Origin", "") in sites
