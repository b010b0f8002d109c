"""The beginning of a call: its headers, its limits, and whose it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ocrsvc.access.records import caller_of
from ocrsvc.grpc_server.method import Call, Method
from ocrsvc.grpc_server.status_codes import CallFailed, Code
from ocrsvc.grpc_server.stream import Stream
from ocrsvc.grpc_server.wire import MessageReader, timeout_s
from ocrsvc.masking.kinds import HEADER, kinds_of_header
from ocrsvc.serving.memory_budget import Share, network_of
from ocrsvc.telemetry.trace_context import PARENT_HEADER, STATE_HEADER

if TYPE_CHECKING:
    from ocrsvc.grpc_server.connection import Connection
    from ocrsvc.grpc_server.server import RpcServer

_MASK: Final = HEADER.lower()
_JOINED: Final = frozenset({PARENT_HEADER, STATE_HEADER, _MASK})
# The metadata in which proxies name their caller.
_FORWARDED: Final = frozenset({"forwarded", "x-forwarded-for", "x-real-ip", "via"})
_NO_METHOD: Final = Method(None, lambda _message, _call: None)


def headers_by_name(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers by name; of several with one name all, with commas between them (RFC 9110 section 5.3)."""
    sent: dict[str, str] = {}
    for name, value in headers:
        known, text = name.decode("latin-1"), value.decode("latin-1")
        sent[known] = f"{sent[known]},{text}" if known in _JOINED and known in sent else text
    return sent


def open_stream(
    number: int,
    sent: Mapping[str, str],
    connection: Connection,
    server: RpcServer,
    now_s: float,
    *,
    may_be_exempt: bool,
) -> Stream:
    """A call that has just begun, before anything of it is checked; it is counted.

    Args:
        number: Of its stream in HTTP/2.
        sent: Its headers.
        connection, server: Where it came.
        now_s: On the monotonic clock.
        may_be_exempt: Whether it is answered where no memory is left, if its method is quick.
    """
    method = server.methods.get(sent.get(":path", ""), _NO_METHOD)
    # A stream of requests may stay open; each of them has the limit of a call.
    limit_s = math.inf if method.streaming else server.limit_s
    record = server.call_metrics.begin(sent, method, connection.caller)
    return Stream(
        number,
        method,
        Call(
            now_s + limit_s,
            ledger=record.ledger,
            client_name=connection.client_name,
            address=connection.caller,
            is_forwarded=not _FORWARDED.isdisjoint(sent),
        ),
        MessageReader(sent.get("grpc-encoding", "identity"), server.most_bytes),
        Share(server.memory),
        Share(server.arriving),
        record,
        exempt=method.quick and may_be_exempt,
        active_s=now_s,
    )


def check_beginning(
    stream: Stream, sent: Mapping[str, str], size_bytes: int, connection: Connection, server: RpcServer
) -> None:
    """Take what the call holds from its beginning, and what its headers ask for. Raises CallFailed, OcrsvcError.

    Args:
        stream: The call.
        sent: Its headers.
        size_bytes: That it holds.
        connection, server: Where it came.
    """
    stream.hold(size_bytes)
    if "grpc-timeout" in sent:
        limit_s = min(timeout_s(sent["grpc-timeout"]), stream.call.deadline - stream.active_s)
        stream.call = replace(stream.call, deadline=stream.active_s + limit_s)
    caller = _check_key(stream, sent, connection, server)
    if _MASK in sent:
        stream.call = replace(stream.call, mask=kinds_of_header(sent[_MASK]))
    if stream.method is _NO_METHOD:
        raise CallFailed(Code.UNIMPLEMENTED, f"There is no method {sent.get(':path', '')[:200]}.")
    if not stream.method.quick:
        server.callers.enter(caller)
        stream.caller = caller


def _check_key(stream: Stream, sent: Mapping[str, str], connection: Connection, server: RpcServer) -> str:
    """Whose call it is: its key's, or where none is wanted that of an address. Raises OcrsvcError."""
    access = server.access
    if access is None or access.is_open(sent.get(":path", "")):
        return network_of(connection.caller)
    key = access.check(sent, stream.method, stream.call.client_name)
    stream.call = replace(stream.call, key=key.name)
    stream.record.key, stream.secret_id = key.name, access.secret_id(sent)
    return caller_of(key)
