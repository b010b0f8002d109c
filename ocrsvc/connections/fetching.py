"""Fetching files from callers' URLs, and posting callbacks, with `http.client` over checked connections.

A host name is resolved once, and the connection goes to one of the checked addresses, so that DNS rebinding, a change
of the name's address after the check, has no effect. All waiting has a deadline.
"""

import errno
import http.client
import io
import logging
import os
import re
import select
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPResponse
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote, urljoin

from ocrsvc.connections.policy import MAX_URL_CHARS, REDIRECTS, IpAddress, LookUp, OutgoingPolicy, Url, parse_url
from ocrsvc.errors import BodyTooLarge, DeadlineExceeded, ResourcesExhausted, UrlRefused, UrlUnavailable
from ocrsvc.results import Check, ignore, no_check

T = TypeVar("T")

LOGGER: Final = logging.getLogger("ocrsvc.connections")

# Limits the number of threads that a hanging resolver can occupy.
_PERMITS: Final = threading.BoundedSemaphore(16)
_MAX_ADDRESSES: Final = 4
_STEP_S: Final = 0.25
_OK: Final = 200
_REDIRECTING: Final = frozenset({301, 302, 303, 307, 308})
_PIECE_BYTES: Final = 1 << 16
_NAME_CHARS: Final = 200
_NAME_IN_HEADER: Final = re.compile(r"filename\s*=\s*(?:\"([^\"]*)\"|([^\s;]+))", re.IGNORECASE)
# zlib's window bits by content coding: some servers compress although the request accepts only identity.
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
# Received bytes that are allowed for headers. For the body, twice its limit is allowed: tiny chunks double its size.
_HEAD_BYTES: Final = 1 << 20


class Deadline:
    """The time limit of one exchange, redirects included: the caller's `limit_s` or the operator's `max_s`.

    `check` is called while waiting; it raises, for example ClientGone, to abort the exchange.
    """

    def __init__(self, limit_s: float, max_s: float, check: Check = no_check) -> None:
        self._check = check
        self._end_s = time.monotonic() + min(limit_s, max_s)
        self._is_callers = limit_s <= max_s

    def step_s(self) -> float:
        """Timeout of the next socket call. Raises as `check` does, also if no time is left."""
        self._check()
        left_s = self._end_s - time.monotonic()
        if left_s > 0:
            return min(left_s, _STEP_S)
        if self._is_callers:
            detail = "The deadline passed while the URL was fetched."
            raise DeadlineExceeded(detail, "Allow the request more time, or send the file itself.")
        raise UrlUnavailable("The URL could not be fetched in time.", "Send the file itself, or try again later.")

    def repeat(self, wire: socket.socket, act: Callable[[], T]) -> T:
        """Repeat a socket call while it times out; return its result. Raises as `step_s`, and OSError."""
        while True:
            wire.settimeout(self.step_s())
            try:
                return act()
            except TimeoutError:
                continue


def connect(url: Url, policy: OutgoingPolicy, deadline: Deadline) -> socket.socket:
    """Connect to the host of a URL, with TLS for https.

    Raises UrlRefused for a host that is not allowed, UrlUnavailable if its addresses are not allowed or not reachable
    (only the log tells the reason), ResourcesExhausted for too many look-ups, and as `Deadline.step_s`.
    """
    policy.check_host(url)
    addresses = [url.address] if url.address is not None else _look_up(url, policy.look_up, deadline)
    if not addresses or not all(map(policy.allows, addresses)):
        raise unavailable(url, "it has no address, or one that is not public")
    reason: OSError | None = None
    for address in addresses[:_MAX_ADDRESSES]:
        try:
            return _connect(address, url, policy, deadline)
        except OSError as error:
            reason = error
    raise unavailable(url, str(reason)) from reason


def unavailable(url: Url, reason: str) -> UrlUnavailable:
    """Log why a host cannot be reached; return the same error for all reasons, to hide internal networks."""
    LOGGER.info("not reached: host=%s port=%s: %s", url.host, url.port, reason)
    return UrlUnavailable("The host of the URL cannot be reached.", "Check the address, or send the file itself.")


def _look_up(url: Url, look_up: LookUp, deadline: Deadline) -> list[IpAddress]:
    """Resolve the host's addresses. Raises as `connect`."""
    future = _begin_look_up(look_up, url.host)
    while True:
        try:
            return future.result(deadline.step_s())
        except TimeoutError:
            continue
        except (OSError, UnicodeError) as error:
            raise unavailable(url, f"its name cannot be resolved: {error}") from error


def _begin_look_up(look_up: LookUp, host: str) -> Future[list[IpAddress]]:
    """Resolve a host name in a new thread, because resolvers cannot be interrupted. Raises ResourcesExhausted."""
    if not _PERMITS.acquire(blocking=False):
        raise ResourcesExhausted("Too many host names are being resolved.", "Send the request again in a moment.")
    future: Future[list[IpAddress]] = Future()

    def run() -> None:
        try:
            future.set_result(look_up(host))
        except BaseException as error:  # noqa: BLE001  raised in the waiting thread
            future.set_exception(error)
        finally:
            _PERMITS.release()

    try:
        threading.Thread(target=run, name="look-up", daemon=True).start()
    except RuntimeError as error:
        _PERMITS.release()
        raise ResourcesExhausted("No thread is left to resolve a name.", "Send the request again later.") from error
    return future


def _connect(address: IpAddress, url: Url, policy: OutgoingPolicy, deadline: Deadline) -> socket.socket:
    """Connect to this address, with TLS for https. Raises OSError, UrlUnavailable, or as `Deadline.step_s` does."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with ExitStack() as unfinished:
        wire = unfinished.enter_context(socket.socket(family, socket.SOCK_STREAM))
        wire.setblocking(False)
        code = wire.connect_ex((str(address), url.port))
        if code in (errno.EINPROGRESS, errno.EAGAIN):
            poll = select.poll()
            poll.register(wire, select.POLLOUT)
            while not poll.poll(1000 * deadline.step_s()):
                pass
            code = wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if url.scheme == "https":
            wire = secured = policy.tls().wrap_socket(wire, server_hostname=url.host, do_handshake_on_connect=False)
            unfinished.enter_context(secured)
            try:
                deadline.repeat(secured, secured.do_handshake)
            except ssl.CertificateError as error:
                LOGGER.info("not reached: host=%s port=%s: %s", url.host, url.port, error)
                raise UrlUnavailable(
                    "The certificate of the URL's host is not valid.", "Check the address, or send the file itself."
                ) from error
        unfinished.pop_all()
        return wire


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A fetched file, decompressed. `name` has no folders; name and media type are empty if unknown."""

    data: bytes
    name: str
    media_type: str


def fetch_file(
    url: str, policy: OutgoingPolicy, limit_s: float, check: Check = no_check, take: Callable[[int], object] = ignore
) -> FetchedFile:
    """Fetch the file at a URL, within `limit_s` and the policy's time limit.

    `check` is called at least four times a second; it raises to abort the fetch. `take` reserves memory for each piece:
    it is called with the size, and raises if memory runs out. Raises as `connect`, UrlRefused for a redirect to a host
    that is not allowed, and BodyTooLarge.
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
    """Post a body with ASCII headers; return the response's status. Follows no redirects. Raises as `connect`."""
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
    """The response's body in pieces, not decompressed. Raises BodyTooLarge, UrlUnavailable, and as `_exchange`."""
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
    """The response's body, decompressed, in pieces of bounded size. Raises as `_received`."""
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
    """Decompress a piece into pieces of at most `_PIECE_BYTES`. Raises zlib.error."""
    while True:
        piece = decoder.decompress(packed, _PIECE_BYTES)
        if decoder.unused_data:
            raise zlib.error("data after the end")
        yield piece
        packed = decoder.unconsumed_tail
        # A piece of less than the full size shows that the decoder holds no more output.
        if not packed and len(piece) < _PIECE_BYTES:
            return


def _name_of(response: HTTPResponse, at: Url) -> str:
    """The file's name, from Content-Disposition or else from the URL's path."""
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
    """Send a request, yield the response for the block to read, and close the connection.

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
