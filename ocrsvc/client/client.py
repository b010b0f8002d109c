"""The Python client: `AsyncClient` awaits each response, `Client` has one on an event loop in a thread of its own."""

from __future__ import annotations

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

from ocrsvc.client.address import is_one
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
    """How services are reached.

    Attributes:
        headers: Sent with every request, for what stands before the service.
        api_key: The service's key; None takes what the environment's OCRSVC_API_KEY holds, if anything.
        ca: File with the authority of the service's certificate, in PEM; by default those that httpx trusts.
        certificate: Files with the client's own certificate and its key, in PEM, for services that want one.
        priority: Of all requests that do not name one as an option.
        rules: How requests are balanced; None is `Rules()`, and for one service five seconds for a connection and three
            of patience.
    """

    headers: Mapping[str, str] | None
    api_key: str | None
    ca: Path | None
    certificate: tuple[Path, Path] | None
    priority: Priority | None
    rules: Rules | None


class AsyncClient:
    """A service, or several, for a program that awaits; see `Client`, whose arguments and errors it has."""

    def __init__(self, url: str | Sequence[str], *, timeout_s: float = TIMEOUT_S, **access: Unpack[Access]) -> None:
        self.timeout_s, self.is_one = timeout_s, is_one(url)
        self.services = Services(url, **access)

    async def read(self, picture: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Answer:
        """What is on one image; see `Client.read`."""
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
        """The answer for each image, in order, as it comes; see `Client.read_many`."""
        source, under_way = iter(pictures), deque[asyncio.Task[Outcome]]()

        def begin() -> None:
            for picture in islice(source, at_once - len(under_way)):
                under_way.append(asyncio.create_task(self.outcome(picture, timeout_s, options)))

        try:
            begin()
            while under_way:
                answer = await under_way.popleft()
                # The next image is on its way before an answer is handed out.
                begin()
                yield answer
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def stream(
        self, file: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[StreamedPage, None]:
        """The pages of a file, each as soon as it is read; see `Client.stream`.

        Who leaves the loop early closes it, as `contextlib.aclosing` does: only then the reading stops at once.
        """
        if not self.is_one:
            raise BadOption("Pages are streamed by one service.", "Make a client with one address.")
        return self._stream(file, query_of(options) | {"format": "ndjson"}, timeout_s or self.timeout_s)

    async def models(self, *, timeout_s: float | None = None) -> ModelList:
        """The models that the service has. Raises as `Client.read`."""
        return await self.ask(Request("GET", MODELS_PATH), model_list_of, timeout_s)

    async def ask(self, request: Request, parse: Callable[[Response], T], timeout_s: float | None = None) -> T:
        """What `parse` makes of the response to a request; it raises what the service says is wrong."""
        return await self.services.ask(request, parse, timeout_s or self.timeout_s)

    async def outcome(self, picture: ImageInput, timeout_s: float | None, options: Options) -> Outcome:
        """The answer for an image, or its error."""
        try:
            return await self.read(picture, timeout_s=timeout_s, **options)
        except OcrsvcError as error:
            return error

    def states(self) -> tuple[HostState, ...]:
        """How each service is now."""
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
    """A service, or several, for a program that waits. May be used by several threads at once; closes with its block.

    Args:
        url: Of the service, such as http://127.0.0.1:8000, with a path if it lies behind one. A list is of services
            that give the same answers, over which requests are balanced; dns+http://name:8000 is all those that the
            name has addresses of.
        timeout_s: How long one image may take, tries and waits included.
        access: See `Access`.

    Raises:
        BadOption: The address, or the key, or a header, cannot be one.
        OperatorError: A file cannot be used.
    """

    def __init__(self, url: str | Sequence[str], *, timeout_s: float = TIMEOUT_S, **access: Unpack[Access]) -> None:
        self._client = AsyncClient(url, timeout_s=timeout_s, **access)
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def read(self, picture: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Answer:
        """What is on one image: a path, the bytes of a file, or an array, (H, W) gray or (H, W, 3) BGR, uint8.

        The options are those of docs/api.md. Raises DeadlineExceeded where no answer came in time, Unreachable where
        the connection failed several times, and what the service says is wrong, in the class of its code.
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
        """The answer for each image, in order, as it comes; in place of one that failed, its error.

        Pictures are taken as needed, `at_once` under way at a time: there may be more than fit into memory. The time
        holds for each.
        """
        loop, source, under_way = self._loop(), iter(pictures), deque[Future[Outcome]]()

        def begin() -> None:
            for picture in islice(source, at_once - len(under_way)):
                under_way.append(loop.submit(self._client.outcome(picture, timeout_s, options)))

        try:
            begin()
            while under_way:
                answer = result_of(under_way.popleft())
                begin()
                yield answer
        finally:
            for reading in under_way:
                reading.cancel()

    def stream(
        self, file: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Iterator[StreamedPage]:
        """The pages of a file, each as soon as it is read; to leave the loop early stops the reading.

        The time holds for all pages. Raises BadOption where there are several services, as an answer that has begun
        cannot go to another; otherwise as `read`.
        """
        return self._each(self._client.stream(body_of(file), timeout_s=timeout_s, **options))

    def models(self, *, timeout_s: float | None = None) -> ModelList:
        """The models that the service has. Raises as `read`."""
        return self._loop().run(self._client.models(timeout_s=timeout_s))

    def ask(self, request: Request, parse: Callable[[Response], T], timeout_s: float | None = None) -> T:
        """As `AsyncClient.ask`."""
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
        """Leave a document with the service, which reads it while nobody waits; see docs/jobs.md.

        Args:
            formats: Files that the service makes as soon as it has read the last page.
            name: What the document is called.
            callback, callback_secret: URL that is told the end of the job, and what signs that.
            idempotency_key: Who sends the same again with the same key gets the same job; None makes one up, so that
                a try that is sent again after a broken connection makes no second job.
            timeout_s: For leaving it there, and for each question of the job.

        Raises OcrsvcError as `read`, and BadOption where there are several services: a job lies with one.
        """
        own = {"format": ",".join(formats), "name": name, "callback": callback}
        query = query_of({**options, **{key: value for key, value in own.items() if value}})
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        # Not in the address, which logs of others keep.
        sent = {"Idempotency-Key": key, "X-Callback-Secret": callback_secret}
        headers = {name: value for name, value in sent.items() if value}
        limit_s = timeout_s or self._client.timeout_s
        answer = self._ask_one(Request("POST", JOBS_PATH, query, body_of(document), headers), Response.data, limit_s)
        return Job(str(answer["id"]), self._ask_one, limit_s)

    def job(self, job_id: str) -> Job:
        """A job that was left before. Raises BadOption as `submit_job`."""
        return Job(job_id, self._ask_one, self._client.timeout_s)

    def jobs(self, most: int = 20) -> list[JobState]:
        """The newest jobs of the API key, at most a hundred. Raises as `submit_job`."""
        answer = self._ask_one(Request("GET", JOBS_PATH, {"limit": str(most)}), Response.data, self._client.timeout_s)
        return [state_of(job) for job in answer["jobs"]]

    def capacity(self) -> int:
        """How many requests the services take at once, as far as is known."""
        return self._client.services.balancer.capacity()

    def states(self) -> tuple[HostState, ...]:
        """How each service is now."""
        return self._client.states()

    def close(self) -> None:
        """Close the connections; what is under way ends with an error."""
        if self._thread is not None:
            self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    @property
    def _ask_one(self) -> Ask:
        """Raises BadOption."""
        if self._client.is_one:
            return self.ask
        raise BadOption("This client asks several services, and a job lies with one.", "Make a client of that one.")

    def _loop(self) -> LoopThread:
        """The thread with the event loop; another one after a fork."""
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
    # A path may lie on a slow disk.
    return picture if isinstance(picture, bytes) else await asyncio.to_thread(body_of, picture)


async def _next(pages: AsyncGenerator[T, None]) -> T | None:
    return await anext(pages, None)


async def _close(pages: AsyncGenerator[T, None]) -> None:
    await pages.aclose()
