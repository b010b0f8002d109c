"""The Python client: `Client` waits for each response, `AsyncClient` awaits it.

Both keep their connections, send again what a busy service refused when it says so (429 and 503 with Retry-After) and
what a broken connection lost, and never go on past the deadline. Needs the extra `client`; loads no numeric library.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self, Unpack

import httpx

from ocrsvc.client.model_list import MODELS_PATH, ModelList, model_list_of
from ocrsvc.client.request import PATH, ImageInput, Options, address_of, body_of, headers_of, own_headers, query_of
from ocrsvc.client.response import Answer, answer_of
from ocrsvc.client.retry_policy import Tries
from ocrsvc.errors import DeadlineExceeded, OcrsvcError, Unreachable
from ocrsvc.tls.client_context import client_context

TIMEOUT_S: Final = 120.0
AT_ONCE: Final = 4
_CONNECT_S: Final = 5.0

Outcome = Answer | OcrsvcError


class Client:
    """A service, for a program that waits. May be used by several threads at once; closes with its block.

    Args:
        url: Of the service, such as http://127.0.0.1:8000, with a path if it lies behind one.
        timeout_s: How long one image may take, tries and waits included.
        headers: Sent with every request, for what stands before the service.
        api_key: The service's key; None takes what the environment's OCRSVC_API_KEY holds, if anything.
        ca: File with the authority of the service's certificate, in PEM; by default those that httpx trusts.
        certificate: Files with the client's own certificate and its key, in PEM, for services that want one.

    Raises:
        BadOption: The address, or the key, cannot be one.
        OperatorError: A file cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        ca: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._http = httpx.Client(**_service_of(url, headers, api_key, ca, certificate))

    def read(self, picture: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Answer:
        """What is on one image.

        Args:
            picture: A path, the bytes of an image file, or an array: (H, W) gray or (H, W, 3) BGR, uint8.
            timeout_s: Instead of the client's.
            options: As docs/api.md describes them.

        Raises:
            DeadlineExceeded: No answer came in time.
            Unreachable: The connection failed, several times.
            OcrsvcError: What the service says is wrong, in the class of its code.
        """
        return self._read(picture, timeout_s, options, threading.Event())

    def read_many(
        self,
        pictures: Iterable[ImageInput],
        *,
        at_once: int = AT_ONCE,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generator[Outcome, None, None]:
        """The answer for each image, in order, as it comes; in place of one that failed, its error.

        Args:
            pictures: Taken from as needed: there may be more than fit into memory.
            at_once: How many are under way at a time.
            timeout_s, options: As for `read`; the time holds for each image.
        """
        left = threading.Event()

        def outcome(picture: ImageInput) -> Outcome:
            try:
                return self._read(picture, timeout_s, options, left)
            except OcrsvcError as error:
                return error

        source, pool = iter(pictures), ThreadPoolExecutor(at_once, thread_name_prefix="ocrsvc-client")
        try:
            under_way = deque(pool.submit(outcome, picture) for picture in islice(source, at_once))
            while under_way:
                answer = under_way.popleft().result()
                # The next image is taken before an answer is handed out.
                under_way.extend(pool.submit(outcome, picture) for picture in islice(source, 1))
                yield answer
        finally:
            left.set()
            pool.shutdown(cancel_futures=True)

    def models(self, *, timeout_s: float | None = None) -> ModelList:
        """The models that the service has. Raises as `read`."""
        tries = Tries(timeout_s or self._timeout_s)
        while True:
            try:
                return self._ask_for_models(tries.left_s())
            except OcrsvcError as error:
                time.sleep(tries.pause_s(error))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _ask_for_models(self, left_s: float) -> ModelList:
        """One try. Raises OcrsvcError."""
        with _translated(left_s):
            response = self._http.get(MODELS_PATH, timeout=_timeout_of(left_s))
        return model_list_of(response.status_code, response.headers.get("Retry-After"), response.content)

    def _read(self, picture: ImageInput, timeout_s: float | None, options: Options, left: threading.Event) -> Answer:
        """See `read`; no further try once nobody waits any more."""
        body, tries = body_of(picture), Tries(timeout_s or self._timeout_s)
        while True:
            try:
                return self._send(body, options, tries.left_s())
            except OcrsvcError as error:
                if left.wait(tries.pause_s(error)):
                    raise

    def _send(self, body: bytes, options: Options, left_s: float) -> Answer:
        """One try. Raises OcrsvcError."""
        end_s = time.monotonic() + left_s
        request = self._http.build_request("POST", PATH, content=body, **_arguments(options, left_s))
        with _translated(left_s), closing(self._http.send(request, stream=True)) as response:
            pieces = []
            for piece in response.iter_bytes():
                pieces.append(piece)
                # httpx bounds each wait, not their sum.
                if time.monotonic() > end_s:
                    raise TimeoutError
        return answer_of(response.status_code, response.headers.get("Retry-After"), b"".join(pieces))


class AsyncClient:
    """A service, for a program that awaits; see `Client`, whose arguments and errors it has."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        ca: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(**_service_of(url, headers, api_key, ca, certificate))

    async def read(self, picture: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Answer:
        """What is on one image; see `Client.read`."""
        tries = Tries(timeout_s or self._timeout_s)
        # A path may lie on a slow disk.
        body = await asyncio.to_thread(body_of, picture)
        while True:
            try:
                return await self._send(body, options, tries.left_s())
            except OcrsvcError as error:
                await asyncio.sleep(tries.pause_s(error))

    async def read_many(
        self,
        pictures: Iterable[ImageInput],
        *,
        at_once: int = AT_ONCE,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Outcome, None]:
        """The answer for each image, in order, as it comes; see `Client.read_many`."""

        async def outcome(picture: ImageInput) -> Outcome:
            try:
                return await self.read(picture, timeout_s=timeout_s, **options)
            except OcrsvcError as error:
                return error

        source = iter(pictures)
        under_way = deque(asyncio.ensure_future(outcome(picture)) for picture in islice(source, at_once))
        try:
            while under_way:
                answer = await under_way[0]
                under_way.popleft()
                under_way.extend(asyncio.ensure_future(outcome(picture)) for picture in islice(source, 1))
                yield answer
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def models(self, *, timeout_s: float | None = None) -> ModelList:
        """The models that the service has. Raises as `Client.read`."""
        tries = Tries(timeout_s or self._timeout_s)
        while True:
            try:
                return await self._ask_for_models(tries.left_s())
            except OcrsvcError as error:
                await asyncio.sleep(tries.pause_s(error))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

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


# As many connections as there are readings under way: at_once decides, and nobody waits for a connection.
_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=AT_ONCE * 4)


def _service_of(
    url: str,
    headers: Mapping[str, str] | None,
    api_key: str | None,
    ca: Path | None,
    certificate: tuple[Path, Path] | None,
) -> dict[str, Any]:
    """What httpx takes of a service; see Client. Raises BadOption, OperatorError."""
    return {
        "base_url": address_of(url),
        "headers": own_headers(headers, api_key),
        "limits": _LIMITS,
        # True is httpx's own way.
        "verify": client_context(ca, *(certificate or ())) or True,
    }


def _arguments(options: Options, left_s: float) -> dict[str, Any]:
    """What httpx takes besides the body; no single wait outlasts the deadline."""
    return {"params": query_of(options), "headers": headers_of(left_s), "timeout": _timeout_of(left_s)}


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
            f"The service cannot be reached: {error or type(error).__name__}.", _remedy_of(str(error))
        ) from error


def _remedy_of(reason: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "Name the authority of its certificate with ca= (--ca), and the host as the certificate does."
    if "CERTIFICATE_REQUIRED" in reason:
        return "It asks for a certificate of yours: certificate= (--cert)."
    return "Check its address and that it runs."
