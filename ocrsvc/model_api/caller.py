"""Who asks for what only operators may do, over HTTP or gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ocrsvc.grpc_server.method import Call
from ocrsvc.http.origins import check_origin, is_local, is_loopback_address
from ocrsvc.http.request import request


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        key: The name of the API key; empty where none is wanted. That it allows `operate` was checked before.
        address: Of the peer; empty on a Unix socket.
        is_local: Whether the peer is on this machine, and no proxy.
        limit_s: Seconds within which the answer is worth having.
        is_gone: Whether nobody waits for it any more.
    """

    key: str
    address: str
    is_local: bool
    limit_s: float
    is_gone: Callable[[], bool] = bool

    @property
    def name(self) -> str:
        """For the audit log."""
        return f"key:{self.key}" if self.key else f"address:{self.address or 'local'}"


def caller_of_call(call: Call) -> Caller:
    """Who makes a gRPC call."""
    is_local = not call.is_forwarded and (not call.address or is_loopback_address(call.address))
    return Caller(call.key, call.address, is_local, call.left_s, call.gone.is_set)


def caller_of_request() -> Caller:
    """Who sends this thread's request. Raises HostNotAllowed: a page of another site, as for all that operators do."""
    check_origin()
    key = request.key.name if request.key is not None else ""
    address = request.remote_addr or ""
    return Caller(key, address, is_local(request.environ), request.left_s, request.context.is_gone)
