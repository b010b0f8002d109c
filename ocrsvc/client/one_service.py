"""Sends requests to one service, with httpx, until it answers: for a thread that waits, and for an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import closing, contextmanager
from ssl import SSLContext
from typing import Any, Final

import httpx

from ocrsvc.client.balancing.balancer import HostState
from ocrsvc.client.model_list import MODELS_PATH, ModelList, model_list_of
from ocrsvc.client.page_stream import FORMAT, PageParser, StreamedPage, pages_of
from ocrsvc.client.request import PATH, Options, address_of, headers_of, query_of
from ocrsvc.client.response import Answer, answer_of, parsed
from ocrsvc.client.retry_policy import Tries
from ocrsvc.client.transport.opening import remedy_of
from ocrsvc.errors import DeadlineExceeded, OcrsvcError, Unreachable

KEPT: Final = 16
"""Connections that are kept while they are not in use."""

_CONNECT_S: Final = 5.0
# As many connections as there are readings under way: the caller decides, and nobody waits for a connection.
_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=KEPT)


class OneService:
    """A service; for any thread.

    Args:
        url: Of the service.
        headers: Sent with every request.
        tls: What its certificate is checked with; None is httpx's own way.

    Raises:
        BadOption: The address cannot be one.
    """

    def __init__(self, url: str, headers: Mapping[str, str], tls: SSLContext | None) -> None:
        self._http = httpx.Client(**_arguments_of(url, headers, tls))

    def read(self, body: bytes, options: Options, timeout_s: float, left: threading.Event) -> Answer:
        """As `Client.read`; no further try once nobody waits any more."""
        tries = Tries(timeout_s)
        while True:
            try:
                return self._send(body, options, tries.left_s())
            except OcrsvcError as error:
                if left.wait(tries.pause_s(error)):
                    raise

    def stream(self, body: bytes, options: Options, timeout_s: float) -> Iterator[StreamedPage]:
        """As `Client.stream`; tried again until an answer has begun."""
        tries = Tries(timeout_s)
        while True:
            try:
                response = self._begin_stream(body, options, tries.left_s())
                break
            except OcrsvcError as error:
                time.sleep(tries.pause_s(error))
        with _translated(timeout_s), closing(response):
            yield from pages_of(_within(response.iter_bytes(), tries.left_s()))

    def models(self, timeout_s: float) -> ModelList:
        """As `Client.models`."""
        tries = Tries(timeout_s)
        while True:
            try:
                return self._ask_for_models(tries.left_s())
            except OcrsvcError as error:
                time.sleep(tries.pause_s(error))

    def send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        timeout_s: float,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of the answer to one request, sent again as `read` is. Raises OcrsvcError."""
        tries = Tries(timeout_s)
        while True:
            try:
                return self._exchange(method, path, params, tries.left_s(), body, headers or {})
            except OcrsvcError as error:
                time.sleep(tries.pause_s(error))

    def states(self) -> tuple[HostState, ...]:
        """Nothing is known of an only one."""
        return ()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _exchange(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        left_s: float,
        body: bytes,
        headers: Mapping[str, str],
    ) -> bytes:
        """One try. Raises OcrsvcError."""
        sent, timeout = {**headers_of(left_s), **headers}, _timeout_of(left_s)
        with _translated(left_s):
            response = self._http.request(
                method, path, params=dict(params), content=body or None, headers=sent, timeout=timeout
            )
        if response.status_code // 100 != 2:
            parsed(response.status_code, response.headers.get("Retry-After"), response.content)
        return response.content

    def _ask_for_models(self, left_s: float) -> ModelList:
        """One try. Raises OcrsvcError."""
        with _translated(left_s):
            response = self._http.get(MODELS_PATH, timeout=_timeout_of(left_s))
        return model_list_of(response.status_code, response.headers.get("Retry-After"), response.content)

    def _send(self, body: bytes, options: Options, left_s: float) -> Answer:
        """One try. Raises OcrsvcError."""
        request = self._http.build_request("POST", PATH, content=body, **_arguments(options, left_s))
        with _translated(left_s), closing(self._http.send(request, stream=True)) as response:
            data = b"".join(_within(response.iter_bytes(), left_s))
        return answer_of(response.status_code, response.headers.get("Retry-After"), data)

    def _begin_stream(self, body: bytes, options: Options, left_s: float) -> httpx.Response:
        """One try: an answer in pieces that has begun. Raises OcrsvcError."""
        request = self._http.build_request("POST", PATH, content=body, **_stream_arguments(options, left_s))
        with _translated(left_s):
            response = self._http.send(request, stream=True)
            if response.status_code != httpx.codes.OK:
                with closing(response):
                    data = b"".join(_within(response.iter_bytes(), left_s))
                parsed(response.status_code, response.headers.get("Retry-After"), data)
        return response


class AsyncOneService:
    """The same for tasks of an event loop."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: SSLContext | None) -> None:
        self._http = httpx.AsyncClient(**_arguments_of(url, headers, tls))

    async def read(self, body: bytes, options: Options, timeout_s: float) -> Answer:
        """As `Client.read`."""
        tries = Tries(timeout_s)
        while True:
            try:
                return await self._send(body, options, tries.left_s())
            except OcrsvcError as error:
                await asyncio.sleep(tries.pause_s(error))

    async def stream(self, body: bytes, options: Options, timeout_s: float) -> AsyncGenerator[StreamedPage, None]:
        """As `Client.stream`; tried again until an answer has begun."""
        tries = Tries(timeout_s)
        while True:
            try:
                response = await self._begin_stream(body, options, tries.left_s())
                break
            except OcrsvcError as error:
                await asyncio.sleep(tries.pause_s(error))
        parser, end_s = PageParser(), asyncio.get_running_loop().time() + tries.left_s()
        with _translated(timeout_s):
            try:
                pieces = response.aiter_bytes()
                while not parser.has_ended and (piece := await _next_piece(pieces, end_s)) is not None:
                    for page in parser.take(piece):
                        yield page
                parser.check_ended()
            finally:
                await response.aclose()

    async def models(self, timeout_s: float) -> ModelList:
        """As `Client.models`."""
        tries = Tries(timeout_s)
        while True:
            try:
                return await self._ask_for_models(tries.left_s())
            except OcrsvcError as error:
                await asyncio.sleep(tries.pause_s(error))

    def states(self) -> tuple[HostState, ...]:
        """Nothing is known of an only one."""
        return ()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _ask_for_models(self, left_s: float) -> ModelList:
        """One try. Raises OcrsvcError."""
        with _translated(left_s):
            async with asyncio.timeout(left_s):
                response = await self._http.get(MODELS_PATH, timeout=_timeout_of(left_s))
        return model_list_of(response.status_code, response.headers.get("Retry-After"), response.content)

    async def _send(self, body: bytes, options: Options, left_s: float) -> Answer:
        """One try. Raises OcrsvcError."""
        with _translated(left_s):
            async with asyncio.timeout(left_s):
                response = await self._http.post(PATH, content=body, **_arguments(options, left_s))
        return answer_of(response.status_code, response.headers.get("Retry-After"), response.content)

    async def _begin_stream(self, body: bytes, options: Options, left_s: float) -> httpx.Response:
        """One try: an answer in pieces that has begun. Raises OcrsvcError."""
        request = self._http.build_request("POST", PATH, content=body, **_stream_arguments(options, left_s))
        with _translated(left_s):
            async with asyncio.timeout(left_s):
                response = await self._http.send(request, stream=True)
                if response.status_code != httpx.codes.OK:
                    data = await response.aread()
                    parsed(response.status_code, response.headers.get("Retry-After"), data)
        return response


async def _next_piece(pieces: AsyncIterator[bytes], end_s: float) -> bytes | None:
    """The next piece, None for no more; httpx bounds each wait, not their sum. Raises TimeoutError."""
    if asyncio.get_running_loop().time() > end_s:
        raise TimeoutError
    async with asyncio.timeout_at(end_s):
        return await anext(pieces, None)


def _within(pieces: Iterator[bytes], left_s: float) -> Iterator[bytes]:
    """The same pieces; httpx bounds each wait, not their sum. Raises TimeoutError."""
    end_s = time.monotonic() + left_s
    for piece in pieces:
        yield piece
        if time.monotonic() > end_s:
            raise TimeoutError


def _arguments_of(url: str, headers: Mapping[str, str], tls: SSLContext | None) -> dict[str, Any]:
    """What httpx takes of a service. Raises BadOption."""
    # True is httpx's own way.
    return {"base_url": address_of(url), "headers": dict(headers), "limits": _LIMITS, "verify": tls or True}


def _arguments(options: Options, left_s: float) -> dict[str, Any]:
    """What httpx takes besides the body; no single wait outlasts the deadline."""
    return {"params": query_of(options), "headers": headers_of(left_s), "timeout": _timeout_of(left_s)}


def _stream_arguments(options: Options, left_s: float) -> dict[str, Any]:
    """The same for an answer in pieces."""
    arguments = _arguments(options, left_s)
    return {**arguments, "params": {**arguments["params"], "format": FORMAT}}


def _timeout_of(left_s: float) -> httpx.Timeout:
    return httpx.Timeout(left_s, connect=min(left_s, _CONNECT_S))


@contextmanager
def _translated(left_s: float) -> Iterator[None]:
    """What httpx raises as one of our errors."""
    try:
        yield
    except (httpx.ReadTimeout, httpx.WriteTimeout, TimeoutError) as error:
        raise DeadlineExceeded(
            f"No answer came within {left_s:.1f} seconds.", "Allow more time, or try later."
        ) from error
    except httpx.RequestError as error:
        raise Unreachable(
            f"The service cannot be reached: {error or type(error).__name__}.", remedy_of(str(error))
        ) from error
