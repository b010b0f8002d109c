"""Checks the key in the head of a request whose body is still to come, so that nothing is received for a wrong one.

Runs on the worker's event loop: in memory, without a lock, and without waiting. What passes here is decided again when
the request is whole; what does not gets the same refusal then, in its adapter's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from ocrsvc.access.api_keys import credential_of
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_routes import Routes
from ocrsvc.errors import OcrsvcError

HeadCheck = Callable[[Any, str | None], OcrsvcError | None]
"""Why the body of gunicorn's request is not received; None where it is. The name is that of the key for which the
client's certificate stands."""


def make_head_check(gate: AccessGate, routes: Routes) -> HeadCheck:
    """The check of a worker whose requests want keys."""
    names = ("AUTHORIZATION", "X-API-KEY", *routes.key_headers)

    def check(request: Any, client_name: str | None) -> OcrsvcError | None:
        # As the application will see it.
        path = "/" + unquote(request.path).lstrip("/")
        sent = {name: value for name, value in request.headers if name in names}
        kind = next((value for name, value in request.headers if name == "CONTENT-TYPE"), "")
        credential = credential_of(*(sent.get(name, "") for name in names))
        if not credential.secret and client_name is None and routes.may_have_key_in_body(path, request.method, kind):
            return None
        try:
            if credential.secret or client_name is None:
                gate.check(credential.secret, routes.scope_of(path))
            else:
                gate.check_named(client_name, routes.scope_of(path))
        except OcrsvcError as error:
            return error.without_frames()
        return None

    return check
