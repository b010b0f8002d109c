"""API keys over gRPC: checked in memory when a call begins, and charged per message.

Each message that needs the engine is checked again in a pool thread, so that revoking a key or replacing its secret
also ends open streams. Quick methods are not charged, as over HTTP.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from ocrsvc.access.api_keys import KeyEntry, credential_of, id_of
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_routes import Routes
from ocrsvc.grpc_server.method import Call, Method


class CallAccess:
    """Checks the API keys of calls; `routes` knows the methods that need none."""

    def __init__(self, gate: AccessGate, routes: Routes) -> None:
        self._gate, self._routes = gate, routes

    def check(self, metadata: Mapping[str, str], method: Method, client_name: str | None) -> KeyEntry | None:
        """The call's API key; None if the method needs none. Raises KeyMissing, KeyRefused, ScopeMissing and so on."""
        if self._routes.is_open(metadata.get(":path", "")):
            return None
        secret = _secret_of(metadata)
        if not secret and client_name is not None:
            return self._gate.check_named(client_name, method.scope, _format_of(method))
        return self._gate.check(secret, method.scope, _format_of(method))

    def secret_id(self, metadata: Mapping[str, str]) -> str:
        """The id that the access gate gives to the secret in a call's metadata; empty without a secret."""
        return id_of(_secret_of(metadata))

    @contextmanager
    def admitted(self, name: str, secret_id: str, method: Method, call: Call) -> Iterator[Call]:
        """In a pool thread: check the key for one message; yield the call with the key's page quota and priority.

        Charges the key for the pages if the block succeeds. Raises as `AccessGate.check`, `enter` and `settle`.
        """
        if method.scope == "operate":
            # Operators' methods read no pages: the key is not charged for them.
            yield call
            return
        key = self._gate.check_named(name, method.scope, _format_of(method), secret_id)
        pages = self._gate.enter(key, 1)
        try:
            yield replace(call, pages=pages, priority=key.priority)
            pages.settle(succeeded=True)
        finally:
            pages.release()


def _secret_of(metadata: Mapping[str, str]) -> str:
    return credential_of(metadata.get("authorization", ""), metadata.get("x-api-key", "")).secret


def _format_of(method: Method) -> str | None:
    """The method's adapter as `AccessGate.check` names it, without the prefix "grpc_"; None for an unknown method."""
    return method.adapter.removeprefix("grpc_") if method.adapter.startswith("grpc_") else None
