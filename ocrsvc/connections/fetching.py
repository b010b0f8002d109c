"""Fetching files from callers' URLs, and posting callbacks, with `http.client` over checked connections."""

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
from urllib.parse import unquote, urljoin

from ocrsvc.connections.connecting import Deadline, connect, unavailable
from ocrsvc.connections.policy import REDIRECTS, OutgoingPolicy
from ocrsvc.connections.url import MAX_URL_CHARS, Url, parse_url
from ocrsvc.errors import BodyTooLarge, UrlRefused, UrlUnavailable
from ocrsvc.results import Check, no_check

_OK: Final = 200
_REDIRECTING: Final = frozenset({301, 302, 303, 307, 308})
_PIECE_BYTES: Final = 1 << 16
_NAME_CHARS: Final = 200
_NAME_IN_HEADER: Final = re.compile(r"filename\s*=\s*(?:\"([^\"]*)\"|([^\s;]+))", re.IGNORECASE)
# zlib's window bits by content coding; some servers compress although only identity is accepted.
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
# Allowance for the response head; chunk sizes may double the body's bytes.
_HEAD_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A fetched file, decompressed. The name, without folders, and the media type may be empty."""

    data: bytes
    name: str
    media_type: str


def fetch_file(
    url: str, policy: OutgoingPolicy, limit_s: float, check: Check = no_check, take: Callable[[int], object] = bool
) -> FetchedFile:
    """Fetch the file at a URL, within `limit_s` and the policy's own time limit.

    `check` is called at least four times a second, and raises to end the fetch. `take` is called with each piece's size
    before the piece is kept, and raises without memory. Raises as `connect`, UrlRefused for a redirect to a host that
    is not allowed, and BodyTooLarge.
    """
    deadline = Deadline(limit_s, policy.max_s, check)
    at = policy.check_url(url)
    for _ in range(REDIRECTS + 1):
        with _exchange("GET", at, {"Accept": "*/*"}, b"", policy, deadline) as response:
            if response.status not in _REDIRECTING:
                return _file_of(response, at, policy, take)
            at = _next_url(at, response)
    raise UrlUnavailable(f"The URL redirects more than {REDIRECTS} times.", "Send the file's own URL.")


def post(
    url: str, body: bytes, headers: Mapping[str, str], policy: OutgoingPolicy, limit_s: float, check: Check = no_check
) -> int:
    """Post a body with ASCII headers; returns the response's status. Follows no redirects. Raises as `connect`."""
    deadline = Deadline(limit_s, policy.max_s, check)
    with _exchange("POST", policy.check_url(url), headers, body, policy, deadline) as response:
        return response.status


def _next_url(at: Url, response: HTTPResponse) -> Url:
    """The target of a redirect; `connect` checks its host. Raises UrlRefused, UrlUnavailable."""
    location = response.getheader("Location")
    if not location:
        raise UrlUnavailable("The URL redirects without a Location.", "Send the file's own URL.")
    if len(location) > MAX_URL_CHARS:
        raise UrlRefused("The URL redirects to a URL that is too long.", "Send the file's own URL.")
    try:
        target = parse_url(urljoin(str(at), location))
    except ValueError as error:
        raise UrlRefused("The URL redirects to a malformed URL.", "Send the file's own URL.") from error
    if at.scheme == "https" and target.scheme == "http":
        raise UrlRefused("The URL redirects from https to http.", "Send the file's own URL.")
    return target


def _file_of(response: HTTPResponse, at: Url, policy: OutgoingPolicy, take: Callable[[int], object]) -> FetchedFile:
    if response.status != _OK:
        raise UrlUnavailable(
            f"The host of the URL answered with status {response.status}.", "Check the URL, and that it is public."
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
    """The decompressed body in pieces, which bound the memory. Raises as `_received`."""
    encoding = (response.getheader("Content-Encoding") or "identity").strip().lower()
    if encoding == "identity":
        yield from _received(response, max_bytes)
        return
    if encoding not in _WINDOW_BITS:
        raise UrlUnavailable(
            "The file at the URL has a Content-Encoding that was not accepted.", "Send the file itself."
        )
    decoder = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        for packed in _received(response, max_bytes):
            yield from _decompressed(decoder, packed)
    except zlib.error as error:
        raise UrlUnavailable("The file at the URL cannot be decompressed.", "Send the file itself.") from error
    if not decoder.eof:
        raise UrlUnavailable("The file at the URL is cut off.", "Try again, or send the file itself.")


def _decompressed(decoder: Any, packed: bytes) -> Iterator[bytes]:
    """Decompress a piece, in pieces of bounded size. Raises zlib.error."""
    while True:
        piece = decoder.decompress(packed, _PIECE_BYTES)
        if decoder.unused_data:
            raise zlib.error("data after the end")
        yield piece
        packed = decoder.unconsumed_tail
        # After a full piece the decoder may hold more output.
        if not packed and len(piece) < _PIECE_BYTES:
            return


def _name_of(response: HTTPResponse, at: Url) -> str:
    """The file name in Content-Disposition, or else in the path."""
    match = _NAME_IN_HEADER.search((response.getheader("Content-Disposition") or "")[:2000])
    in_header = (match[1] or match[2] or "") if match else ""
    name = re.split(r"[/\\]", in_header or unquote(at.file_name))[-1]
    return "".join(filter(str.isprintable, name))[:_NAME_CHARS].strip(". ")


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The file at the URL is larger than the limit of {max_bytes} bytes (OCRSVC_URL_BYTES).",
        "Send a smaller file, or ask the operator to raise the limit.",
    )


class _Wire(io.RawIOBase):
    """A socket for http.client that enforces the deadline and a limit on received bytes."""

    def __init__(self, wire: socket.socket, deadline: Deadline, max_bytes: int) -> None:
        self._wire, self._deadline, self._left_bytes = wire, deadline, max_bytes

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, _PIECE_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left_bytes <= 0:
            raise http.client.HTTPException("the response is larger than the largest file")
        size_bytes = min(len(buffer), self._left_bytes)
        received = self._deadline.repeat(self._wire, lambda: self._wire.recv_into(buffer, size_bytes))
        self._left_bytes -= received
        return received

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._deadline.repeat(self._wire, partial(self._wire.send, left)) :]

    def close(self) -> None:
        """Do nothing: http.client calls this before the body is read; `_exchange` closes the connection."""


@contextmanager
def _exchange(
    method: str, url: Url, headers: Mapping[str, str], body: bytes, policy: OutgoingPolicy, deadline: Deadline
) -> Iterator[http.client.HTTPResponse]:
    """Send a request; the block reads the response's body, and the connection is closed after it.

    Raises as `connect`, and UrlUnavailable if the connection breaks or the response is not HTTP.
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
        raise UrlUnavailable("The host of the URL did not answer with valid HTTP.", "Check the URL.") from error
    finally:
        wire.close()
