"""Fetches files from URLs that callers name, and posts to them, with `http.client` over checked connections."""

from __future__ import annotations

import http.client
import io
import re
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPResponse
from typing import Any, Final, cast
from urllib.parse import unquote

from ocrsvc.connections.connecting import Deadline, connect, unavailable
from ocrsvc.connections.policy import REDIRECTS, OutgoingPolicy
from ocrsvc.connections.url import Url, join_url
from ocrsvc.errors import BodyTooLarge, UrlRefused, UrlUnavailable

_OK: Final = 200
_REDIRECTING: Final = frozenset({301, 302, 303, 307, 308})
_PIECE_BYTES: Final = 1 << 16
_NAME_CHARS: Final = 200
_NAME_IN_HEADER: Final = re.compile(r"filename\s*=\s*(?:\"([^\"]*)\"|([^\s;]+))", re.IGNORECASE)
# Servers send these also where they were asked for none: gzip, and zlib's deflate.
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
# For the head, beside twice the body's bytes for the sizes of chunks.
_HEAD_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file from a URL, decompressed; its name, without folders, and its media type may be empty."""

    data: bytes
    name: str
    media_type: str


def fetch_file(
    url: str,
    policy: OutgoingPolicy,
    limit_s: float,
    check: Callable[[], object] = bool,
    take: Callable[[int], object] = bool,
) -> FetchedFile:
    """The file at a URL, within `limit_s` and the policy's own limit.

    `check` is called at least four times a second, and raises what ends it; `take` is called with each piece's size
    before it is kept, and raises without memory. Raises as `connect`, UrlRefused also for a redirect, and BodyTooLarge.
    """
    deadline = Deadline(limit_s, policy.max_s, check)
    at = policy.check_url(url)
    for _ in range(REDIRECTS + 1):
        with _exchange("GET", at, {"Accept": "*/*"}, b"", policy, deadline) as response:
            if response.status not in _REDIRECTING:
                return _file_of(response, at, policy, take)
            at = _next_url(at, response)
    raise UrlUnavailable(f"The URL leads on more than {REDIRECTS} times.", "Send the address of the file itself.")


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    policy: OutgoingPolicy,
    limit_s: float,
    check: Callable[[], object] = bool,
) -> int:
    """Post a body, with headers in ASCII; the status of the answer. Redirects are not followed. Raises as `connect`."""
    deadline = Deadline(limit_s, policy.max_s, check)
    with _exchange("POST", policy.check_url(url), headers, body, policy, deadline) as response:
        return response.status


def _next_url(at: Url, response: HTTPResponse) -> Url:
    """Where a redirect leads; its host is checked when it is asked. Raises UrlRefused, UrlUnavailable."""
    location = response.getheader("Location")
    if not location:
        raise UrlUnavailable("The URL leads on, and not to anywhere.", "Send the address of the file itself.")
    found = join_url(at, location)
    if at.scheme == "https" and found.scheme == "http":
        raise UrlRefused("The URL leads from https to http.", "Send the address of the file itself.")
    return found


def _file_of(response: HTTPResponse, at: Url, policy: OutgoingPolicy, take: Callable[[int], object]) -> FetchedFile:
    if response.status != _OK:
        raise UrlUnavailable(
            f"The host of the URL answers with the status {response.status}.", "Check the address, or who may read it."
        )
    data = io.BytesIO()
    for piece in _decoded(response, policy.max_bytes):
        if data.tell() + len(piece) > policy.max_bytes:
            raise _too_large(policy.max_bytes)
        take(len(piece))
        data.write(piece)
    media_type = response.headers.get_content_type() if "Content-Type" in response.headers else ""
    return FetchedFile(data.getvalue(), _name_of(response, at), media_type)


def _received(response: HTTPResponse, max_bytes: int) -> Iterator[bytes]:
    """The body in pieces. Raises BodyTooLarge, UrlUnavailable, and as `_exchange`."""
    if response.length is not None and response.length > max_bytes:
        raise _too_large(max_bytes)
    left_bytes = max_bytes
    while piece := response.read(_PIECE_BYTES):
        left_bytes -= len(piece)
        if left_bytes < 0:
            raise _too_large(max_bytes)
        yield piece
    if response.length:
        raise UrlUnavailable("The file at the URL is cut off.", "Try again, or send the file itself.")


def _decoded(response: HTTPResponse, max_bytes: int) -> Iterator[bytes]:
    """The body in pieces, decompressed no further than needed. Raises as `_received`."""
    encoding = (response.getheader("Content-Encoding") or "identity").strip().lower()
    if encoding == "identity":
        yield from _received(response, max_bytes)
        return
    if encoding not in _WINDOW_BITS:
        raise UrlUnavailable(
            "The file at the URL comes in an encoding that was not asked for.", "Send the file itself."
        )
    decoder = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        for packed in _received(response, max_bytes):
            yield from _unpacked(decoder, packed)
    except zlib.error as error:
        raise UrlUnavailable("The file at the URL is packed wrongly.", "Send the file itself.") from error
    if not decoder.eof:
        raise UrlUnavailable("The file at the URL is cut off.", "Try again, or send the file itself.")


def _unpacked(decoder: Any, packed: bytes) -> Iterator[bytes]:
    """A piece, decompressed in pieces. Raises zlib.error."""
    while True:
        piece = decoder.decompress(packed, _PIECE_BYTES)
        if decoder.unused_data:
            raise zlib.error("more follows behind its end")
        yield piece
        packed = decoder.unconsumed_tail
        # A full piece may have left some behind inside.
        if not packed and len(piece) < _PIECE_BYTES:
            return


def _name_of(response: HTTPResponse, at: Url) -> str:
    """By the header Content-Disposition, else by the path."""
    match = _NAME_IN_HEADER.search((response.getheader("Content-Disposition") or "")[:2000])
    sent = (match[1] or match[2] or "") if match else ""
    name = re.split(r"[/\\]", sent or unquote(at.file_name))[-1]
    return "".join(letter for letter in name if letter.isprintable())[:_NAME_CHARS].strip(". ")


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The file at the URL is larger than the limit of {max_bytes} bytes (OCRSVC_URL_BYTES).",
        "Send a smaller file, or ask the operator to raise the limit.",
    )


class _Wire(io.RawIOBase):
    """The socket of an http.client connection, up to the deadline and to a number of received bytes."""

    def __init__(self, wire: socket.socket, deadline: Deadline, max_bytes: int) -> None:
        self._wire, self._deadline, self._left_bytes = wire, deadline, max_bytes

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, _PIECE_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left_bytes <= 0:
            raise http.client.HTTPException("more was sent than a file of the largest size takes")
        size_bytes = min(len(buffer), self._left_bytes)
        received = self._deadline.repeat(self._wire, lambda: self._wire.recv_into(buffer, size_bytes))
        self._left_bytes -= received
        return received

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._deadline.repeat(self._wire, partial(self._wire.send, left)) :]

    def close(self) -> None:
        """http.client closes it before the body is read; `_exchange` closes the connection."""


@contextmanager
def _exchange(
    method: str, url: Url, headers: Mapping[str, str], body: bytes, policy: OutgoingPolicy, deadline: Deadline
) -> Iterator[http.client.HTTPResponse]:
    """The response to a request, whose body is read inside the block; the connection is closed at its end.

    Raises as `connect`, and UrlUnavailable where the connection breaks or what comes is not HTTP.
    """
    wire = connect(url, policy, deadline)
    try:
        connection = http.client.HTTPConnection(url.host, url.port)
        connection.sock = cast(Any, _Wire(wire, deadline, 2 * policy.max_bytes + _HEAD_BYTES))
        own = {"Host": url.authority, "User-Agent": "ocrsvc", "Accept-Encoding": "identity", "Connection": "close"}
        connection.request(method, url.target, body or None, {**own, **headers})
        yield connection.getresponse()
    except OSError as error:
        raise unavailable(url, f"the connection broke: {error}") from error
    except (http.client.HTTPException, ValueError) as error:
        raise UrlUnavailable(
            "What the host of the URL answers is not HTTP, or is cut off.", "Check the address."
        ) from error
    finally:
        wire.close()
