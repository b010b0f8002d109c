"""Sends requests to services with httpx, from tasks of an event loop: each until one answers or its time is over."""

from __future__ import annotations

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

from ocrsvc.client.address import Address, is_one, services_of
from ocrsvc.client.attempts import Attempts
from ocrsvc.client.balancer import Balancer, Place, Rules
from ocrsvc.client.request import Priority, Request, headers_of, own_headers
from ocrsvc.client.response import Response, StreamedPage, pages_of
from ocrsvc.connections.tls_contexts import client_context
from ocrsvc.errors import NotConnected, OcrsvcError, ServerError, Unreachable

T = TypeVar("T")

LONGEST_ANSWER_BYTES: Final = 1 << 28

# As many connections as there are requests under way; so many are kept while they are not in use.
_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=64)
_FOR_ONE: Final = Rules(connect_s=5.0, patience_s=3.0)
_LOOK_UP_AGAIN_S: Final = 5.0
# What a host that is cut off has not acknowledged for six seconds ends its connection, and so does its silence on one
# that is only waited on: an answer may take as long as it likes, but the host must be there.
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
    """The IP addresses of a name, by the system's resolver. Raises OSError."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Services:
    """Services that give the same answers; arguments and errors are those of `Client`.

    Connections, and what is known of the services, belong to one event loop: on another one, as after a fork, all of it
    begins anew.
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
        resolve: Callable[[str, int], Sequence[str]] = addresses_of_name,
    ) -> None:
        self._named, self._headers = services_of(urls), own_headers(headers, api_key, priority)
        self._rules, self._resolve = rules or (_FOR_ONE if is_one(urls) else Rules()), resolve
        # Reading the authorities of the system takes some milliseconds.
        is_secure = any(each.scheme == "https" for each in self._named)
        default = httpx.create_ssl_context() if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls = client_context(ca, *(certificate or ())) or default
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()

    async def ask(self, request: Request, parse: Callable[[Response], T], timeout_s: float) -> T:
        """Send a request until a service answers it; what `parse` makes of that. Raises OcrsvcError, as it does."""

        async def attempt(place: Place, left_s: float) -> T:
            async with asyncio.timeout(left_s), aclosing(await self._send(place, request, left_s)) as answer:
                return parse(await _received(answer, place.host.address))

        return await self._until_answered(self._attempts(timeout_s), attempt)

    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[StreamedPage, None]:
        """The pages of an answer, each as it comes; tried again until an answer has begun. Raises OcrsvcError."""

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
        # A proxy that the environment names would hide which service it is.
        transport = httpx.AsyncHTTPTransport(
            verify=self._tls, trust_env=False, limits=_LIMITS, socket_options=_SOCKET_OPTIONS
        )
        # An answer that is packed could be larger than it says.
        headers = {"user-agent": "ocrsvc-client", "accept-encoding": "identity"} | self._headers
        self._http = httpx.AsyncClient(transport=transport, trust_env=False, headers=headers)

    def _attempts(self, timeout_s: float) -> Attempts:
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            self._begin()
        self._loop = loop
        return Attempts(self.balancer, timeout_s, self._rules, time.monotonic, random.random)

    async def _until_answered(self, attempts: Attempts, attempt: Callable[[Place, float], Awaitable[T]]) -> T:
        """What the first attempt returns that does not fail. Raises OcrsvcError."""
        while True:
            place = await self._place(attempts)
            try:
                with _translated(place.host.address, attempts):
                    found = await attempt(place, attempts.left_s())
            except OcrsvcError as error:
                if not attempts.failed(place, error):
                    raise
            except BaseException:
                attempts.abandoned(place)
                raise
            else:
                attempts.answered(place)
                return found

    async def _place(self, attempts: Attempts) -> Place:
        """A place at a service, waited for. Raises OcrsvcError."""
        while True:
            try:
                await self._names.ready(attempts.left_s())
            except NotConnected as error:
                attempts.last = error
            step = attempts.next()
            if isinstance(step, Place):
                return step
            self._names.refresh(_LOOK_UP_AGAIN_S)
            await self.balancer.wait_for_room(min(step, attempts.left_s()))

    async def _send(self, place: Place, request: Request, left_s: float) -> httpx.Response:
        """The head of the response, to be closed."""
        address = place.host.address
        host = {"Host": self._headers.get("host", address.authority)}
        sent = self._http.build_request(
            request.method,
            address.url + request.path,
            params=dict(request.query) or None,
            content=request.body or None,
            headers={**host, **request.headers, **headers_of(left_s)},
            timeout=httpx.Timeout(None, connect=self._rules.connect_s),
            extensions={"sni_hostname": address.name},
        )
        return await self._http.send(sent, stream=True)


async def _received(answer: httpx.Response, address: Address) -> Response:
    """Raises ServerError for one that is larger than any of this service."""
    pieces, length = list[bytes](), 0
    async for piece in answer.aiter_raw():
        pieces.append(piece)
        length += len(piece)
        if length > LONGEST_ANSWER_BYTES:
            raise ServerError("The answer is larger than any of this service.", "Check the address.")
    return Response(answer.status_code, answer.headers.get("Retry-After"), b"".join(pieces), address.url)


async def _pieces(answer: httpx.Response, attempts: Attempts, address: Address) -> AsyncIterator[bytes]:
    """Those of an answer, until its deadline. Raises DeadlineExceeded, Unreachable."""
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
    """What httpx raises as one of our errors, and a deadline that has passed."""
    try:
        yield
    except httpx.RequestError as error:
        kind = NotConnected if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else Unreachable
        reason = _reason_of(error)
        raise kind(f"{address.url} cannot be reached: {reason}.", _remedy_of(reason)) from error
    except TimeoutError:
        raise attempts.too_late() from attempts.last


def _reason_of(error: BaseException) -> str:
    """What the system says, as far as it says anything."""
    if isinstance(error, httpx.ConnectTimeout):
        return "it does not answer"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ssl.SSLError):
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _remedy_of(reason: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "Name the authority of its certificate with ca= (--ca), and the host as the certificate does."
    if "CERTIFICATE_REQUIRED" in reason:
        return "It asks for a certificate of yours: certificate= (--cert)."
    return "Check its address and that it runs."


class NameLookup:
    """Gives the balancer the addresses of the names; one that cannot be looked up keeps those that it had.

    `resolve` gives the IP addresses of a name, for connections to a port; it may block, and raises OSError.
    """

    def __init__(
        self,
        services: Sequence[Address],
        balancer: Balancer,
        refresh_s: float,
        clock: Callable[[], float],
        resolve: Callable[[str, int], Sequence[str]],
    ) -> None:
        self._names = [each for each in services if each.is_looked_up]
        self._found = {each: [each] for each in services if not each.is_looked_up}
        self._balancer, self._refresh_s = balancer, refresh_s
        self._clock, self._resolve = clock, resolve
        self._begun_s = float("-inf")
        self._running: asyncio.Task[None] | None = None
        self._reason = "it has none"

    async def ready(self, most_s: float) -> None:
        """Have names looked up that are due, and wait for it where no address is known. Raises NotConnected."""
        self.refresh(self._refresh_s if self._found else 0.0)
        if self._running is not None and not self._found:
            # The look-up goes on when its caller gives up.
            await asyncio.wait([self._running], timeout=most_s)
        if not self._found:
            names = ", ".join(each.name for each in self._names)
            raise NotConnected(f"No address is known for {names}: {self._reason}.", "Check the name.")

    def refresh(self, older_than_s: float) -> None:
        """Begin to look names up, if the last time was so many seconds ago."""
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
                self._found[name] = [name.at(host) for host in hosts]
        if self._found:
            self._balancer.replace(dict.fromkeys(chain.from_iterable(self._found.values())))
