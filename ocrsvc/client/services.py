"""Sends requests to services with httpx, and retries them; for tasks of an event loop."""

import asyncio
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

import httpx

from ocrsvc.client.address import Address, is_single, services_of
from ocrsvc.client.attempts import Attempts
from ocrsvc.client.balancer import Balancer, Clock, Place, Rules
from ocrsvc.client.request import Priority, Request, common_headers, headers_of
from ocrsvc.client.response import Response, StreamedPage, pages_of
from ocrsvc.connections.client_tls import client_context
from ocrsvc.errors import NotConnected, OcrsvcError, ServerError, Unreachable

T = TypeVar("T")
Resolve = Callable[[str, int], Sequence[str]]
Receive = Callable[[httpx.Response, Address], Awaitable[T]]

MAX_RESPONSE_BYTES: Final = 1 << 28

# Each request in flight has its own connection; at most 64 idle ones are kept.
_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=64)
_SINGLE_SERVICE_RULES: Final = Rules(connect_s=5.0, patience_s=3.0)
_LOOKUP_RETRY_S: Final = 5.0
# The kernel closes a connection after six seconds without TCP acknowledgements. So a request ends soon if the host
# becomes unreachable, although a response may take long.
_TCP_OPTIONS: Final = (
    ("TCP_KEEPIDLE", 3),
    ("TCP_KEEPALIVE", 3),
    ("TCP_KEEPINTVL", 1),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 6000),
)
_SOCKET_OPTIONS: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TCP_OPTIONS if hasattr(socket, name)),
]


def addresses_of_name(name: str, port: int) -> list[str]:
    """Look up the IP addresses of a name with the system's resolver. Raises OSError."""
    infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in infos))


class Services:
    """Equivalent services; arguments and errors are those of `Client`.

    Connections and state belong to one event loop; they are created again on another loop, for example after a fork.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        ca: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        priority: Priority | None = None,
        rules: Rules | None = None,
        resolve: Resolve = addresses_of_name,
    ) -> None:
        self._named, self._headers = services_of(urls), common_headers(headers, api_key, priority)
        self._rules, self._resolve = rules or (_SINGLE_SERVICE_RULES if is_single(urls) else Rules()), resolve
        # Loading the system's CAs takes milliseconds, so do it only for https.
        is_secure = any(each.scheme == "https" for each in self._named)
        default = httpx.create_ssl_context() if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls = client_context(ca, *(certificate or ())) or default
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()

    async def ask(self, request: Request, parse: Callable[[Response], T], timeout_s: float) -> T:
        """Send a request until a service answers, and parse the response. Raises OcrsvcError, and as `parse`."""

        async def receive(answer: httpx.Response, address: Address) -> T:
            return parse(await _received(answer, address))

        return await self.exchange(request, receive, timeout_s)

    async def exchange(self, request: Request, receive: Receive[T], timeout_s: float) -> T:
        """Send a request until a service answers; `receive` reads the body. Raises OcrsvcError, and as `receive`."""

        async def attempt(place: Place, left_s: float) -> T:
            async with asyncio.timeout(left_s), aclosing(await self._send(place, request, left_s)) as answer:
                return await receive(answer, place.host.address)

        return await self._until_answered(self._attempts(timeout_s), attempt)

    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[StreamedPage, None]:
        """Stream the pages of a response; retry only until a response has started. Raises OcrsvcError."""

        async def attempt(place: Place, left_s: float) -> tuple[httpx.Response, Address]:
            async with asyncio.timeout(left_s):
                answer = await self._send(place, request, left_s)
                if answer.status_code != httpx.codes.OK:
                    async with aclosing(answer):
                        (await _received(answer, place.host.address)).content()
            return answer, place.host.address

        attempts = self._attempts(timeout_s)
        answer, address = await self._until_answered(attempts, attempt)
        async with aclosing(answer):
            async for page in pages_of(_pieces(answer, attempts, address)):
                yield page

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _begin(self) -> None:
        rules, clock = self._rules, time.monotonic
        fixed = [each for each in self._named if not each.is_looked_up]
        self.balancer = Balancer(fixed, rules, clock, random.random)
        self._names = NameLookup(self._named, self.balancer, rules.refresh_s, clock, self._resolve)
        # Ignore proxies in the environment, because balancing needs direct connections.
        transport = httpx.AsyncHTTPTransport(
            verify=self._tls, trust_env=False, limits=_LIMITS, socket_options=_SOCKET_OPTIONS
        )
        # A compressed response could exceed the size limit after decompression.
        headers = {"user-agent": "ocrsvc-client", "accept-encoding": "identity"} | self._headers
        self._http = httpx.AsyncClient(transport=transport, trust_env=False, headers=headers)

    def _attempts(self, timeout_s: float) -> Attempts:
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            self._begin()
        self._loop = loop
        return Attempts(self.balancer, timeout_s, self._rules, time.monotonic, random.random)

    async def _until_answered(self, attempts: Attempts, attempt: Callable[[Place, float], Awaitable[T]]) -> T:
        """The result of the first successful attempt. Raises OcrsvcError."""
        while True:
            place = await self._place(attempts)
            try:
                with _translated(place.host.address, attempts):
                    result = await attempt(place, attempts.left_s())
            except OcrsvcError as error:
                if not attempts.failed(place, error):
                    raise
            except BaseException:
                attempts.abandoned(place)
                raise
            else:
                attempts.answered(place)
                return result

    async def _place(self, attempts: Attempts) -> Place:
        """Wait for a slot at a service. Raises OcrsvcError."""
        while True:
            try:
                await self._names.ready(attempts.left_s())
            except NotConnected as error:
                attempts.last = error
            step = attempts.next()
            if isinstance(step, Place):
                return step
            self._names.refresh(_LOOKUP_RETRY_S)
            await self.balancer.wait_for_room(min(step, attempts.left_s()))

    async def _send(self, place: Place, request: Request, left_s: float) -> httpx.Response:
        """Send the request; return the response before its body is read. The caller must close it."""
        address = place.host.address
        host = {"Host": self._headers.get("host", address.authority)}
        http_request = self._http.build_request(
            request.method,
            address.url + request.path,
            params=dict(request.query) or None,
            content=request.body or None,
            headers={**host, **headers_of(left_s), **request.headers},
            timeout=httpx.Timeout(None, connect=self._rules.connect_s),
            extensions={"sni_hostname": address.name},
        )
        return await self._http.send(http_request, stream=True)


async def _received(answer: httpx.Response, address: Address) -> Response:
    """Receive the body. Raises ServerError for a body above MAX_RESPONSE_BYTES."""
    pieces, length = list[bytes](), 0
    async for piece in answer.aiter_raw():
        pieces.append(piece)
        length += len(piece)
        if length > MAX_RESPONSE_BYTES:
            raise ServerError("The response is too large for this service.", "Check the address.")
    return Response(answer.status_code, answer.headers.get("Retry-After"), b"".join(pieces), address.url)


async def _pieces(answer: httpx.Response, attempts: Attempts, address: Address) -> AsyncIterator[bytes]:
    """The pieces of the body until the deadline. Raises DeadlineExceeded, Unreachable."""
    pieces = answer.aiter_raw()
    while True:
        with _translated(address, attempts):
            async with asyncio.timeout(attempts.left_s()):
                piece = await anext(pieces, None)
        if piece is None:
            return
        yield piece


@contextmanager
def _translated(address: Address, attempts: Attempts) -> Iterator[None]:
    """Convert httpx errors and timeouts in the block to OcrsvcError."""
    try:
        yield
    except httpx.RequestError as error:
        kind = NotConnected if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else Unreachable
        reason = _reason_of(error)
        raise kind(f"{address.url} cannot be reached: {reason}.", _remedy_of(reason)) from error
    except TimeoutError:
        raise attempts.too_late() from attempts.last


def _reason_of(error: BaseException) -> str:
    """The operating system's reason for an error, else the error's text."""
    if isinstance(error, httpx.ConnectTimeout):
        return "it does not answer"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ssl.SSLError):
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _remedy_of(reason: str) -> str:
    if "WRONG_VERSION_NUMBER" in reason:
        return "It speaks no TLS: use http://."
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "Name the certificate's CA with ca= (--ca), and use the certificate's host name."
    if "CERTIFICATE_REQUIRED" in reason:
        return "It requires a client certificate: certificate= (--cert)."
    return "Check its address and that it runs."


class NameLookup:
    """Keeps the balancer's list of IP addresses up to date; a failed lookup keeps the previous ones.

    `resolve` returns the IP addresses of a name and port; it may block and raise OSError.
    """

    def __init__(
        self, services: Sequence[Address], balancer: Balancer, refresh_s: float, clock: Clock, resolve: Resolve
    ) -> None:
        self._names = [each for each in services if each.is_looked_up]
        self._addresses = {each: [each] for each in services if not each.is_looked_up}
        self._balancer, self._refresh_s = balancer, refresh_s
        self._clock, self._resolve = clock, resolve
        self._begun_s = float("-inf")
        self._running: asyncio.Task[None] | None = None
        self._reason = "it has none"

    async def ready(self, timeout_s: float) -> None:
        """Start DNS lookups that are due; wait for them only while no address is known. Raises NotConnected."""
        self.refresh(self._refresh_s if self._addresses else 0.0)
        if self._running is not None and not self._addresses:
            # The lookup continues even if this caller's timeout ends.
            await asyncio.wait([self._running], timeout=timeout_s)
        if not self._addresses:
            names = ", ".join(each.name for each in self._names)
            raise NotConnected(f"No address is known for {names}: {self._reason}.", "Check the name.")

    def refresh(self, older_than_s: float) -> None:
        """Start DNS lookups if the last ones are older than `older_than_s`."""
        is_running = self._running is not None and not self._running.done()
        if self._names and not is_running and self._clock() - self._begun_s >= older_than_s:
            self._begun_s = self._clock()
            self._running = asyncio.create_task(self._look_up())

    async def _look_up(self) -> None:
        for name in self._names:
            try:
                hosts = await asyncio.to_thread(self._resolve, name.host, name.port)
            except (OSError, UnicodeError) as error:
                self._reason = getattr(error, "strerror", None) or str(error)
                continue
            if hosts:
                self._addresses[name] = [name.at(host) for host in hosts]
        if self._addresses:
            self._balancer.replace(dict.fromkeys(chain.from_iterable(self._addresses.values())))
