"""One HTTP/1.1 request and the response to it, over a connection that was checked; http.client speaks the protocol."""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

from ocrsvc.connections.connecting import connect, unavailable
from ocrsvc.connections.deadline import Deadline
from ocrsvc.connections.policy import OutgoingPolicy
from ocrsvc.connections.url import Url
from ocrsvc.errors import UrlUnavailable

_BUFFER_BYTES: Final = 1 << 16
# For the head, and beside as many bytes again as the body for what chunks cost.
_HEAD_BYTES: Final = 1 << 20
_SEND_BYTES: Final = 1 << 18


class _Input(io.RawIOBase):
    """What a server sends, until the deadline and up to so many bytes."""

    def __init__(self, wire: socket.socket, deadline: Deadline, most_bytes: int) -> None:
        self._wire, self._deadline, self._left_bytes = wire, deadline, most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left_bytes <= 0:
            raise http.client.HTTPException("more was sent than a file of the largest size takes")
        size_bytes = min(len(buffer), self._left_bytes)
        received = self._deadline.repeat(self._wire, lambda: self._wire.recv_into(buffer, size_bytes))
        self._left_bytes -= received
        return received


class _Wire:
    """What http.client takes for its socket."""

    def __init__(self, wire: socket.socket, deadline: Deadline, most_bytes: int) -> None:
        self._wire, self._deadline = wire, deadline
        self._input = _Input(wire, deadline, most_bytes)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._input, _BUFFER_BYTES)

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            piece = left[:_SEND_BYTES]
            left = left[self._deadline.repeat(self._wire, partial(self._wire.send, piece)) :]

    def close(self) -> None:
        """http.client does so while the body is still to be read; `exchange` closes the connection."""


@contextmanager
def exchange(
    method: str,
    url: Url,
    headers: Mapping[str, str],
    body: bytes,
    policy: OutgoingPolicy,
    deadline: Deadline,
) -> Iterator[http.client.HTTPResponse]:
    """The response to a request, whose body is read inside the block; the connection is closed at its end.

    Raises:
        UrlRefused: The host is not on the list.
        UrlUnavailable: No connection came about, or it broke, or what came is not HTTP.
        OcrsvcError: As the deadline.
    """
    wire = connect(url, policy, deadline)
    try:
        connection = http.client.HTTPConnection(url.host, url.port)
        connection.sock = cast(Any, _Wire(wire, deadline, 2 * policy.most_bytes + _HEAD_BYTES))
        yield _response(connection, method, url, headers, body)
    except OSError as error:
        raise unavailable(url, f"the connection broke: {error}") from error
    except (http.client.HTTPException, ValueError) as error:
        raise UrlUnavailable(
            "What the host of the URL answers is not HTTP, or is cut off.", "Check the address."
        ) from (error)
    finally:
        wire.close()


def _response(
    connection: http.client.HTTPConnection, method: str, url: Url, headers: Mapping[str, str], body: bytes
) -> http.client.HTTPResponse:
    """Raises OSError, HTTPException, ValueError."""
    own = {"Host": url.authority, "User-Agent": "ocrsvc", "Accept-Encoding": "identity", "Connection": "close"}
    if body or method == "POST":
        own["Content-Length"] = str(len(body))
    connection.putrequest(method, url.target, skip_host=True, skip_accept_encoding=True)
    for name, value in {**own, **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(body or None)
    return connection.getresponse()
