"""What an API adapter is made from, over HTTP and over gRPC; `ocrsvc.registry` lists the adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

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
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.records import ReadOptions
from ocrsvc.settings.settings import Settings

PLAIN: Final = ReadOptions()
Route = tuple[str, str, Callable[..., ResponseReturnValue]]
"""Method, path, and the view, which is called with the names in the path."""


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What the factory of a blueprint is given.

    `model` is the same reader as a model with tensors, whose requests are counted apart. Without `jobs` no document is
    taken in to be read later.
    """

    settings: Settings
    reader: Reader
    model: OcrModel
    jobs: JobStore | None = None
    url_files: UrlFiles = field(default_factory=UrlFiles)

    def read(self, data: bytes, options: ReadOptions = PLAIN) -> Reading:
        """What is read of an image of this thread's request. Raises as `Reader.read`."""
        return self.reader.read(data, options, request.left_s, request.context)

    def read_pages(self, data: bytes, options: ReadOptions, most: int | None = None) -> FileRead:
        """The pages of a file of this thread's request, see `read_pages`."""
        return read_pages(self.reader, data, options, request.left_s, request.context, most)

    def fetch(self, url: str, remedy: str) -> FetchedFile:
        """The file at a URL. Raises BadOption with this remedy where none is fetched; as `UrlFiles.fetch`."""
        if not self.url_files.is_on:
            raise BadOption("Addresses are not fetched here.", remedy)
        return self.url_files.fetch(url)


@dataclass(frozen=True, slots=True)
class GrpcService:
    """The gRPC services of an adapter: the .proto files of their messages, and what makes the methods by path."""

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
