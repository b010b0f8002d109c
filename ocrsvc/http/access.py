"""API keys of requests over HTTP: checked in memory, on the head in the event loop and again on the thread.

What the loop refuses is decided again by the same function on the thread, where the adapter is known that shapes the
answer; the thread alone admits. What a request uses of its key is counted there, too, for that may wait for a store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final
from urllib.parse import unquote

from ocrsvc.access.api_keys import Credential, KeyEntry, Scope, credential_of
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_routes import Routes
from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.http.origins import ANY, check_origin
from ocrsvc.http.request import Request
from ocrsvc.http.responses import is_reported_in_a_200

HeadCheck = Callable[[Any, str | None], OcrsvcError | None]
"""Why the body of gunicorn's request is not received; None where it is. The name is that of the key for which the
client's certificate stands."""

# The service's own routes belong to no wire format that a key could be for; `api` is one.
_NO_FORMAT: Final = frozenset({"", "operators", "ops", "page"})


class KeyCheck:
    """Checks requests for the keys that the gate knows; pages of `sites` may ask browsers' questions without one."""

    def __init__(self, gate: AccessGate, routes: Routes, sites: Collection[str] = ()) -> None:
        self._gate, self._routes, self._sites = gate, routes, sites

    def check_head(self, asked: Request) -> None:
        """Refuse a request without a key that is good for its route, unless it may be in the body. Raises OcrsvcError.

        Health needs no key, nor does a browser that asks what a page may send: it never sends one with that.
        """
        if self._routes.is_open(asked.environ.get("PATH_INFO", "")) or self._is_preflight(asked):
            return
        credential = _sent_in_head(asked, self._routes.key_field_of(asked.blueprint))
        if credential.secret or asked.client_name or not self._may_come_in_body(asked.environ):
            self._check(asked, credential)

    def check_body(self, asked: Request) -> None:
        """Take the body apart for its key where it may have one. Raises OcrsvcError."""
        if asked.key is None and self._may_come_in_body(asked.environ):
            self._check(asked, credential_of("", _text_in_body(asked, self._routes.key_field_of(asked.blueprint))))
            self.check_format(asked)

    def check_format(self, asked: Request) -> None:
        """Raises ScopeMissing when a request's key is not for the format that was chosen for it."""
        if asked.key is not None and asked.key.adapters is not None:
            self._gate.check_named(asked.key.name, None, _format_of(asked))

    def enter(self, asked: Request, pages: int) -> None:
        """Count a POST among the requests of its key, with the pages that it takes at least. Raises OcrsvcError.

        What operators do counts for nothing.
        """
        if asked.key is None or _format_of(asked) is None or self._routes.scope_of(_rule_of(asked)) == "operate":
            return
        asked.pages = self._gate.enter(asked.key, pages)

    def refusal_of_head(self, request: Any, client_name: str | None) -> OcrsvcError | None:
        """Event loop: why the body of gunicorn's request is not received; see HeadCheck. In memory, without waiting."""
        # As the application will see it.
        path, sent = "/" + unquote(request.path).lstrip("/"), dict(request.headers)
        credential = credential_of(*(sent.get(name, "") for name in _header_names(self._routes)))
        content_type = sent.get("CONTENT-TYPE", "")
        if not (credential.secret or client_name) and self._routes.may_have_key_in_body(
            path, request.method, content_type
        ):
            return None
        try:
            self._entry_of(credential, client_name, self._routes.scope_of(path))
        except OcrsvcError as error:
            return error.without_frames()
        return None

    def _check(self, asked: Request, credential: Credential) -> None:
        """Raises KeyMissing, KeyRefused, ScopeMissing, KeysUnavailable, HostNotAllowed."""
        # What the service says of itself, its web page, and what is not there: any valid key will do.
        anyone = asked.url_rule is None or asked.blueprint in {"ops", "page"}
        scope = None if anyone else self._routes.scope_of(_rule_of(asked))
        entry = self._entry_of(credential, asked.client_name, scope)
        if credential.by_browser or not credential.secret:
            # A browser sends it by itself, also when a page of another site makes it ask.
            check_origin()
        asked.key = entry

    def _entry_of(self, credential: Credential, client_name: str | None, scope: Scope | None) -> KeyEntry:
        """The key that is sent, before the one that the client's certificate stands for. Raises OcrsvcError."""
        if credential.secret or client_name is None:
            return self._gate.check(credential.secret, scope)
        return self._gate.check_named(client_name, scope)

    def _may_come_in_body(self, environ: Mapping[str, str]) -> bool:
        sent = (environ.get(name, "") for name in ("PATH_INFO", "REQUEST_METHOD", "CONTENT_TYPE"))
        return self._routes.may_have_key_in_body(*sent)

    def _is_preflight(self, asked: Request) -> bool:
        if not self._sites or asked.method != "OPTIONS" or "Access-Control-Request-Method" not in asked.headers:
            return False
        return ANY in self._sites or asked.headers.get("Origin", "") in self._sites


def make_head_check(gate: AccessGate, routes: Routes) -> HeadCheck:
    """The check of a worker whose requests want keys."""
    return KeyCheck(gate, routes).refusal_of_head


def _header_names(routes: Routes) -> tuple[str, ...]:
    return ("AUTHORIZATION", "X-API-KEY", *routes.key_headers)


def _sent_in_head(asked: Request, field: str) -> Credential:
    """The key in a header, or of a GET in the query where its format, which calls it so, has it there."""
    environ = asked.environ
    sent = [environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_API_KEY", "")]
    if field:
        sent.append(environ.get("HTTP_" + field.upper().replace("-", "_"), ""))
        sent.append(asked.args.get(field, "") if asked.method == "GET" else "")
    return credential_of(*sent)


def _text_in_body(asked: Request, field: str) -> str:
    """A field of the body; empty where the body is wrong: nobody without a key is told so. Raises OcrsvcError."""
    try:
        return asked.content.text(field) or ""
    except CallerError as error:
        if is_reported_in_a_200(error):
            return ""
        raise


def _rule_of(asked: Request) -> str:
    """The path as it was routed; as it was sent where there is nothing."""
    return asked.url_rule.rule if asked.url_rule is not None else asked.path


def _format_of(asked: Request) -> str | None:
    """The wire format of the request, as keys name it; None where it is none."""
    name = asked.blueprint or ""
    return None if name in _NO_FORMAT else name
