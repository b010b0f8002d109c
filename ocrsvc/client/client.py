"""The Python client: `Client` waits for each response, `AsyncClient` awaits it.

One service is asked with httpx, several by `balanced_services`. Both keep their connections, send again what a busy
service refused when it says so (429 and 503 with Retry-After) and what a broken connection lost, and never go on past
the deadline. Needs the extra `client`; loads no numeric library.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Final, Self, Unpack

from ocrsvc.client.balanced_services import AsyncBalancedServices, BalancedServices
from ocrsvc.client.balancing.address import is_one
from ocrsvc.client.balancing.balancer import HostState
from ocrsvc.client.balancing.changes import Left
from ocrsvc.client.balancing.rules import Rules
from ocrsvc.client.jobs import Job, JobFields, JobState, jobs_of, submit
from ocrsvc.client.model_list import ModelList
from ocrsvc.client.one_service import AsyncOneService, OneService
from ocrsvc.client.page_stream import StreamedPage
from ocrsvc.client.request import ImageInput, Options, Priority, body_of, own_headers
from ocrsvc.client.response import Answer
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.tls.client_context import client_context

TIMEOUT_S: Final = 120.0
AT_ONCE: Final = 4
_RULES: Final = Rules()
_SEVERAL_STREAMS: Final = ("Pages are streamed by one service.", "Make a client with one address.")

Outcome = Answer | OcrsvcError


class Client:
    """A service, or several, for a program that waits. May be used by several threads at once; closes with its block.

    Args:
        url: Of the service, such as http://127.0.0.1:8000, with a path if it lies behind one. A list is of services
            that give the same answers, over which requests are balanced; dns+http://name:8000 is all those that the
            name has addresses of.
        timeout_s: How long one image may take, tries and waits included.
        headers: Sent with every request, for what stands before the service.
        api_key: The service's key; None takes what the environment's OCRSVC_API_KEY holds, if anything.
        ca: File with the authority of the service's certificate, in PEM; by default those that httpx trusts.
        certificate: Files with the client's own certificate and its key, in PEM, for services that want one.
        priority: Of all requests that do not name one as an option.
        rules: How requests are balanced over several services.

    Raises:
        BadOption: The address, or the key, or a header, cannot be one.
        OperatorError: A file cannot be used.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        ca: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        priority: Priority | None = None,
        rules: Rules = _RULES,
    ) -> None:
        self._timeout_s = timeout_s
        sent, tls = own_headers(headers, api_key, priority), client_context(ca, *(certificate or ()))
        self._service = OneService(url, sent, tls) if is_one(url) else BalancedServices(url, sent, tls, rules)

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
        return self._service.read(body_of(picture), options, timeout_s or self._timeout_s, Left())

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
        left = Left()

        def outcome(picture: ImageInput) -> Outcome:
            try:
                return self._service.read(body_of(picture), options, timeout_s or self._timeout_s, left)
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

    def stream(
        self, file: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Iterator[StreamedPage]:
        """The pages of a file, each as soon as it is read; to leave the loop early stops the reading.

        Args:
            file, timeout_s, options: As for `read`; the time holds for all pages.

        Raises:
            BadOption: There are several services: an answer that has begun cannot go to another.
            OcrsvcError: As `read`; also what ends an answer that has begun.
        """
        if not isinstance(self._service, OneService):
            raise BadOption(*_SEVERAL_STREAMS)
        return self._service.stream(body_of(file), options, timeout_s or self._timeout_s)

    def models(self, *, timeout_s: float | None = None) -> ModelList:
        """The models that the service has. Raises as `read`."""
        return self._service.models(timeout_s or self._timeout_s)

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
            document: As the picture of `read`.
            formats: Files that the service makes as soon as it has read the last page.
            name: What the document is called.
            callback, callback_secret: URL that is told the end of the job, and what signs that.
            idempotency_key: Who sends the same again with the same key gets the same job; None makes one up, so that
                a try that is sent again after a broken connection makes no second job.
            timeout_s: For leaving it there, and for each question of the job.
            options: As of `read`.

        Raises:
            BadOption: The client is one of several services; a job lies with one.
            OcrsvcError: As `read`.
        """
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        own = JobFields(tuple(formats), name, callback, callback_secret, key)
        return submit(self._one.send, body_of(document), options, own, timeout_s or self._timeout_s)

    def job(self, job_id: str) -> Job:
        """A job that was left before. Raises BadOption as `submit_job`."""
        return Job(job_id, self._one.send, self._timeout_s)

    def jobs(self, most: int = 20) -> list[JobState]:
        """The newest jobs of the API key, at most a hundred. Raises as `submit_job`."""
        return jobs_of(self._one.send, self._timeout_s, most)

    @property
    def _one(self) -> OneService:
        """Raises BadOption."""
        if isinstance(self._service, OneService):
            return self._service
        raise BadOption("This client asks several services, and a job lies with one.", "Make a client of that one.")

    def states(self) -> tuple[HostState, ...]:
        """How each of several services is now; nothing is known of an only one."""
        return self._service.states()

    def close(self) -> None:
        """Close the connections."""
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class AsyncClient:
    """A service, for a program that awaits; see `Client`, whose arguments and errors it has."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        ca: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        priority: Priority | None = None,
        rules: Rules = _RULES,
    ) -> None:
        self._timeout_s = timeout_s
        sent, tls = own_headers(headers, api_key, priority), client_context(ca, *(certificate or ()))
        self._service = AsyncOneService(url, sent, tls) if is_one(url) else AsyncBalancedServices(url, sent, tls, rules)

    async def read(self, picture: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Answer:
        """What is on one image; see `Client.read`."""
        # A path may lie on a slow disk.
        body = await asyncio.to_thread(body_of, picture)
        return await self._service.read(body, options, timeout_s or self._timeout_s)

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

    def stream(
        self, file: ImageInput, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[StreamedPage, None]:
        """The pages of a file, each as soon as it is read; see `Client.stream`.

        Who leaves the loop early closes it, as `contextlib.aclosing` does: only then the reading stops at once.
        """
        if not isinstance(self._service, AsyncOneService):
            raise BadOption(*_SEVERAL_STREAMS)
        return _stream(self._service, file, options, timeout_s or self._timeout_s)

    async def models(self, *, timeout_s: float | None = None) -> ModelList:
        """The models that the service has. Raises as `Client.read`."""
        return await self._service.models(timeout_s or self._timeout_s)

    def states(self) -> tuple[HostState, ...]:
        """How each of several services is now; nothing is known of an only one."""
        return self._service.states()

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()


async def _stream(
    service: AsyncOneService, file: ImageInput, options: Options, timeout_s: float
) -> AsyncGenerator[StreamedPage, None]:
    # A path may lie on a slow disk.
    body = await asyncio.to_thread(body_of, file)
    async with aclosing(service.stream(body, options, timeout_s)) as pages:
        async for page in pages:
            yield page
