"""What an API adapter is made from, over HTTP and gRPC; `ocrsvc.registry` lists the adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.connections.fetching import FetchedFile
from ocrsvc.errors import BadOption
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.http.request import request
from ocrsvc.http.responses import read_pages
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.job_requests import ResultFiles, job_view, owner_of_request, store_of
from ocrsvc.jobs.intake import JobRequest, add_job, find_job
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.records import ReadOptions
from ocrsvc.settings.settings import Settings

PLAIN: Final = ReadOptions()
NO_ADDRESSES: Final = "Addresses are not fetched here."
Route = tuple[str, str, Callable[..., ResponseReturnValue]]
"""Method, path, and the view, which is called with the names in the path."""


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What the factory of a blueprint gets; without `jobs` no document is taken in to be read later."""

    settings: Settings
    reader: Reader
    model: OcrModel
    jobs: JobStore | None = None
    url_files: UrlFiles = field(default_factory=UrlFiles)

    def read(self, data: bytes, options: ReadOptions = PLAIN) -> Reading:
        """Read an image of this thread's request. Raises as `Reader.read`."""
        return self.reader.read(data, options, request.left_s, request.context)

    def read_pages(self, data: bytes, options: ReadOptions, most: int | None = None) -> FileRead:
        """Read the pages of a file of this thread's request, see `read_pages`."""
        return read_pages(self.reader, data, options, request.left_s, request.context, most)

    def fetch(self, url: str, remedy: str) -> FetchedFile:
        """The file at a URL. Raises BadOption with this remedy where URLs are not fetched; as `UrlFiles.fetch`."""
        if not self.url_files.is_on:
            raise BadOption(NO_ADDRESSES, remedy)
        return self.url_files.fetch(url)


@dataclass(frozen=True, slots=True)
class GrpcService:
    """The gRPC services of an adapter: the .proto files of their messages, and the factory of the methods by path."""

    files: tuple[str, ...]
    make: Callable[[Messages, OcrModel], Methods]


def make_blueprint(name: str, failure: Callable[[Exception], Response], routes: Iterable[Route] = ()) -> Blueprint:
    """The blueprint of an adapter, whose errors `failure` answers."""
    blueprint = Blueprint(name, __name__)
    blueprint.register_error_handler(Exception, failure)
    add_routes(blueprint, routes)
    return blueprint


def add_routes(blueprint: Blueprint, routes: Iterable[Route]) -> None:
    """Add routes, each under a name of its own."""
    for method, path, view in routes:
        blueprint.add_url_rule(path, f"{method} {path}", view, methods=[method])


class StoredDocuments:
    """The jobs of one adapter; for any thread that serves a request. Raises JobsOff where there are none."""

    def __init__(self, context: AdapterContext, source: str) -> None:
        self._context, self._source = context, source

    @property
    def jobs(self) -> JobStore:
        """The job store."""
        return store_of(self._context.jobs)

    @property
    def files(self) -> ResultFiles:
        """The files of their results."""
        return ResultFiles(self.jobs, self._context.reader)

    def add(
        self,
        data: bytes,
        options: ReadOptions,
        pages: Any,
        asked: Mapping[str, Any],
        name: str = "",
        formats: Sequence[str] = (),
    ) -> Job:
        """Take a document in; `pages` as in a JobRequest, `asked` is kept for the answer. Raises as `add_job`."""
        record = Record(*owner_of_request(), self._source, name, asked=dict(asked), formats=tuple(formats))
        job_request, context = JobRequest(data, options, record, pages), self._context
        return add_job(self.jobs, context.reader, context.settings, job_request, request.context, request.left_s)

    @contextmanager
    def found(self, sent_id: object, missing: Exception) -> Iterator[Job]:
        """The job with this id. Raises `missing` where there is none, or it came with another key."""
        job = find_job(self.jobs, sent_id, owner_of_request(), self._source)
        if job is None:
            raise missing
        try:
            yield job
        except FileNotFoundError as error:
            raise missing from error


def add_job_routes(blueprint: Blueprint, *routes: Route) -> None:
    """Add routes of stored documents, which take no place in front of the engine."""
    add_routes(blueprint, [(method, path, job_view(view)) for method, path, view in routes])
