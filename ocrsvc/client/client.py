"""The Python clients: `AsyncClient`, and `Client`, which runs an AsyncClient in a separate thread."""

import asyncio
import os
import threading
import uuid
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from itertools import islice
from pathlib import Path
from typing import Final, Self, TypedDict, TypeVar, Unpack

from ocrsvc.client.address import is_single
from ocrsvc.client.balancer import HostState, Rules
from ocrsvc.client.jobs import JOBS_PATH, Ask, Job, JobState, state_of
from ocrsvc.client.loop_thread import LoopThread, result_of
from ocrsvc.client.request import MODELS_PATH, PATH, ImageInput, Options, Priority, Request, body_of, query_of
from ocrsvc.client.response import Answer, ModelList, Response, StreamedPage, answer_of, model_list_of
from ocrsvc.client.services import Services
from ocrsvc.errors import BadOption, NotConnected, OcrsvcError

T = TypeVar("T")

TIMEOUT_S: Final = 120.0
AT_ONCE: Final = 4

Outcome = Answer | OcrsvcError


class Access(TypedDict, total=False):
    """Access to services.

    Attributes:
        headers: Headers sent with every request, for example for a proxy.
        api_key: The service's API key; None uses the environment variable OCRSVC_API_KEY.
        ca: PEM file with the CA of the service's certificate; by default the CAs that httpx trusts.
        certificate: PEM files with the client certificate and its key.
        priority: Priority of requests that do not set the option `priority`.
        rules: Load-balancing rules; None means `Rules()`, or with one service `Rules(connect_s=5, patience_s=3)`.
    """

    headers: Mapping[str, str] | None
    api_key: str | None
    ca: Path | None
    certificate: tuple[Path, Path] | None
    priority: Priority | None
    rules: Rules | None


class AsyncClient:
    """Asynchronous client of one or several services; arguments and errors are those of `Client`."""

    def __init__(self, url: str | Sequence[str], *, timeout_s: float = TIMEOUT_S, **access: Unpack[Access]) -> None:
        self.timeout_s, self.is_single = timeout_s, is_single(url)
        self.services = Services(url, **access)

    async def read(self, picture: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Answer:
        """Read one image; see `Client.read`."""
        request = Request("POST", PATH, query_of(options), await _body_of(picture))
        return await self.ask(request, answer_of, timeout_s)

    async def read_many(
        self,
        pictures: Iterable[ImageInput],
        *,
        at_once: int = AT_ONCE,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Outcome, None]:
        """Read many images; see `Client.read_many`."""
        source, in_flight = iter(pictures), deque[asyncio.Task[Outcome]]()

        def begin() -> None:
            for picture in islice(source, at_once - len(in_flight)):
                in_flight.append(asyncio.create_task(self.outcome(picture, timeout_s, options)))

        try:
            begin()
            while in_flight:
                answer = await in_flight.popleft()
                # Send the next image before the caller handles this answer.
                begin()
                yield answer
        finally:
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)

    def stream(
        self, file: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[StreamedPage, None]:
        """The pages of a file as they are read; see `Client.stream`.

        To stop reading early, close the generator, for example with `contextlib.aclosing`.
        """
        if not self.is_single:
            raise BadOption("Streaming needs a client of one service.", "Make a client with one address.")
        return self._stream(file, query_of(options) | {"format": "ndjson"}, timeout_s or self.timeout_s)

    async def models(self, *, timeout_s: float | None = None) -> ModelList:
        """The service's models. Raises as `Client.read`."""
        return await self.ask(Request("GET", MODELS_PATH), model_list_of, timeout_s)

    async def ask(self, request: Request, parse: Callable[[Response], T], timeout_s: float | None = None) -> T:
        """Send a request and parse its response; `parse` raises the service's errors."""
        return await self.services.ask(request, parse, timeout_s or self.timeout_s)

    async def outcome(self, picture: ImageInput, timeout_s: float | None, options: Options) -> Outcome:
        """Read an image; return its answer or error."""
        try:
            return await self.read(picture, timeout_s=timeout_s, **options)
        except OcrsvcError as error:
            return error

    def states(self) -> tuple[HostState, ...]:
        """The state of each service."""
        return self.services.balancer.states()

    async def close(self) -> None:
        """Close the connections."""
        await self.services.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    async def _stream(
        self, file: ImageInput, query: Mapping[str, str], timeout_s: float
    ) -> AsyncGenerator[StreamedPage, None]:
        request = Request("POST", PATH, query, await _body_of(file))
        async with aclosing(self.services.stream(request, timeout_s)) as pages:
            async for page in pages:
                yield page


class Client:
    """Synchronous, thread-safe client of one or several services; also a context manager.

    Args:
        url: The service's URL, such as http://127.0.0.1:8000, with a path if it has a prefix. For a list of equivalent
            services, requests are balanced; dns+http://name:8000 means a service at each IP address of the name.
        timeout_s: Time limit per image, including retries and waits.
        access: See `Access`.

    Raises:
        BadOption: An address, the API key or a header is invalid.
        OperatorError: A certificate file cannot be used.
    """

    def __init__(self, url: str | Sequence[str], *, timeout_s: float = TIMEOUT_S, **access: Unpack[Access]) -> None:
        self._client = AsyncClient(url, timeout_s=timeout_s, **access)
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def read(self, picture: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Answer:
        """Read one image: a path, the bytes of a file, or an array, (H, W) gray or (H, W, 3) BGR, uint8.

        docs/api.md describes the options. Raises DeadlineExceeded if no answer comes in time, Unreachable after
        several failed connections, and for an error response the error class of its code.
        """
        return self._loop().run(self._client.read(body_of(picture), timeout_s=timeout_s, **options))

    def read_many(
        self,
        pictures: Iterable[ImageInput],
        *,
        at_once: int = AT_ONCE,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generator[Outcome, None, None]:
        """Read many images; yield their answers in the order of the images, or the error of an image that failed.

        `pictures` is consumed lazily, with `at_once` requests in flight, so not all must fit into memory at once.
        `timeout_s` is per image.
        """
        loop, source, in_flight = self._loop(), iter(pictures), deque[Future[Outcome]]()

        def begin() -> None:
            for picture in islice(source, at_once - len(in_flight)):
                in_flight.append(loop.submit(self._client.outcome(picture, timeout_s, options)))

        try:
            begin()
            while in_flight:
                answer = result_of(in_flight.popleft())
                begin()
                yield answer
        finally:
            for reading in in_flight:
                reading.cancel()

    def stream(
        self, file: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Iterator[StreamedPage]:
        """The pages of a file as they are read; closing the generator early stops the reading.

        `timeout_s` is for all pages. Raises BadOption for several services, because another service cannot continue
        a response; otherwise as `read`.
        """
        return self._each(self._client.stream(body_of(file), timeout_s=timeout_s, **options))

    def models(self, *, timeout_s: float | None = None) -> ModelList:
        """The service's models. Raises as `read`."""
        return self._loop().run(self._client.models(timeout_s=timeout_s))

    def ask(self, request: Request, parse: Callable[[Response], T], timeout_s: float | None = None) -> T:
        """See `AsyncClient.ask`."""
        return self._loop().run(self._client.ask(request, parse, timeout_s))

    def submit_job(
        self,
        document: ImageInput,
        *,
        formats: Sequence[str] = (),
        name: str = "",
        callback: str = "",
        callback_secret: str = "",
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Job:
        """Submit a document as a background job; see docs/jobs.md.

        Args:
            formats: Result files to write after the last page.
            name: Name of the document.
            callback, callback_secret: URL that the service calls when the job ends, and the secret to sign the call.
            idempotency_key: Submitting again with the same key returns the same job; None generates a key, so that
                retries after a broken connection create no second job.
            timeout_s: Time limit for submitting, and for each request about the job.

        Raises BadOption for several services, because a job belongs to one; otherwise as `read`.
        """
        job_fields = {"format": ",".join(formats), "name": name, "callback": callback}
        query = query_of({**options, **{key: value for key, value in job_fields.items() if value}})
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        # Send secrets as headers, because proxies may log the URL.
        optional = {"Idempotency-Key": key, "X-Callback-Secret": callback_secret}
        headers = {name: value for name, value in optional.items() if value}
        limit_s = timeout_s or self._client.timeout_s
        answer = self._ask_one(Request("POST", JOBS_PATH, query, body_of(document), headers), Response.data, limit_s)
        return Job(str(answer["id"]), self._ask_one, limit_s)

    def job(self, job_id: str) -> Job:
        """A job submitted earlier. Raises BadOption as `submit_job`."""
        return Job(job_id, self._ask_one, self._client.timeout_s)

    def jobs(self, most: int = 20) -> list[JobState]:
        """The API key's newest jobs, at most a hundred. Raises as `submit_job`."""
        answer = self._ask_one(Request("GET", JOBS_PATH, {"limit": str(most)}), Response.data, self._client.timeout_s)
        return [state_of(job) for job in answer["jobs"]]

    def capacity(self) -> int:
        """The sum of the services' estimated limits of concurrent requests."""
        return self._client.services.balancer.capacity()

    def states(self) -> tuple[HostState, ...]:
        """The state of each service."""
        return self._client.states()

    def close(self) -> None:
        """Close the connections; requests in flight fail."""
        if self._thread is not None:
            self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    @property
    def _ask_one(self) -> Ask:
        """The method `ask`, for requests about jobs. Raises BadOption if the client has several services."""
        if self._client.is_single:
            return self.ask
        raise BadOption("A job belongs to one service, but this client has several.", "Make a client of that service.")

    def _loop(self) -> LoopThread:
        """The thread of the event loop; after a fork, a new one."""
        with self._lock:
            if self._thread is None or self._thread.pid != os.getpid():
                self._thread = LoopThread(self._client.close)
                weakref.finalize(self, self._thread.close).atexit = False
            return self._thread

    def _each(self, pages: AsyncGenerator[StreamedPage, None]) -> Iterator[StreamedPage]:
        loop = self._loop()
        try:
            while (page := loop.run(_next(pages))) is not None:
                yield page
        finally:
            with suppress(NotConnected):
                loop.submit(_close(pages))


async def _body_of(picture: ImageInput) -> bytes:
    # Read files in a thread, because reading may block.
    return picture if isinstance(picture, bytes) else await asyncio.to_thread(body_of, picture)


async def _next(pages: AsyncGenerator[T, None]) -> T | None:
    return await anext(pages, None)


async def _close(pages: AsyncGenerator[T, None]) -> None:
    await pages.aclose()
