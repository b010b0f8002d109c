"""Checks the API key of every gRPC call, and takes what each of its messages uses from the key's limits.

The key is checked in memory when a call begins, on the loop's thread. Each message that needs the engine is admitted in
a pool thread: a key that is revoked, or a secret that is replaced, ends a stream, too. What needs neither engine nor
time counts for nothing, as over HTTP, because the loop answers it and waits for no store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ocrsvc.access.credentials import credential_of
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.records import KeyEntry
from ocrsvc.access.request_pages import RequestPages
from ocrsvc.access.routes import Routes
from ocrsvc.access.secrets import id_of
from ocrsvc.grpc_server.method import Call, Method

# As its calls are counted; the registry has the name without it.
_PREFIX: Final = "grpc_"


class CallAccess:
    """What a server whose calls want keys asks.

    Args:
        gate: Knows the keys.
        routes: Which methods are open.
    """

    def __init__(self, gate: AccessGate, routes: Routes) -> None:
        self._gate, self._routes = gate, routes

    def is_open(self, path: str) -> bool:
        """Whether this method is answered without a key."""
        return self._routes.is_open(path)

    def check(self, sent: Mapping[str, str], method: Method, client_name: str | None = None) -> KeyEntry:
        """The key in a call's metadata, else the one that the client's certificate stands for; in the loop.

        Raises:
            OcrsvcError: KeyMissing, KeyRefused, ScopeMissing, KeysUnavailable.
        """
        credential = credential_of(sent.get("authorization", ""), sent.get("x-api-key", ""))
        if not credential.secret and client_name is not None:
            return self._gate.check_named(client_name, method.scope, _format_of(method))
        return self._gate.check(credential.secret, method.scope, _format_of(method))

    def secret_id(self, sent: Mapping[str, str]) -> str:
        """By what the gate knows the secret in a call's metadata again; empty where there is none."""
        return id_of(credential_of(sent.get("authorization", ""), sent.get("x-api-key", "")).secret)

    @contextmanager
    def admitted(self, name: str, secret_id: str, method: Method, call: Call) -> Iterator[Call]:
        """The call with one message admitted, in a pool thread; its pages count when the block ends well.

        Args:
            name: Of the key that the call began with.
            secret_id: Of its secret, which may be replaced meanwhile.
            method, call: As they began.

        Raises:
            OcrsvcError: As `AccessGate.admit`; KeysUnavailable at the end of the block, when the pages cannot be
                counted.
        """
        if method.scope == "operate":
            # What operators do counts for nothing.
            yield call
            return
        admission = self._gate.admit_named(name, method.scope, _format_of(method), 1, secret_id)
        pages = RequestPages(admission, 1)
        try:
            yield replace(call, pages=pages, priority=admission.entry.priority)
            pages.settle(succeeded=True)
        finally:
            pages.release()


def _format_of(method: Method) -> str | None:
    """The wire format, as keys name it; None where there is no such method."""
    return method.adapter.removeprefix(_PREFIX) if method.adapter.startswith(_PREFIX) else None
