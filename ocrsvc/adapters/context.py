"""What API adapters are made from and do alike: context and routes, options, codes, corners, stored documents."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from flask import Blueprint, Response
from flask.typing import ResponseReturnValue
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.connections.fetching import FetchedFile
from ocrsvc.errors import BadOption, CallerError
from ocrsvc.formats.boxes import Boxed, to_boxes, to_scores, whole
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.http.field_values import as_text, shown
from ocrsvc.http.request import request
from ocrsvc.http.responses import read_pages
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.job_requests import ResultFiles, job_view, owner_of_request, store_of
from ocrsvc.jobs.intake import JobRequest, add_job, find_job
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Reading, ReadOptions
from ocrsvc.serving.memory_budget import Share
from ocrsvc.settings.settings import Settings

B = TypeVar("B", bound=BaseModel)

_SHOWN_CHARACTERS: Final = 40
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


class Coded(CallerError):
    """An error with a code of the original that our classes do not tell apart."""

    def __init__(self, code: int | str, detail: str, remedy: str = "") -> None:
        super().__init__(detail, remedy)
        self.original_code: Any = code


def code_in(codes: Sequence[tuple[type[Exception], Any]], error: BaseException, not_json: Any) -> Any:
    """The original's code for an error: the first that fits; None where `codes` lack it."""
    if isinstance(error, Coded):
        return error.original_code
    if type(error) is CallerError:
        return not_json
    return next((code for kind, code in codes if isinstance(error, kind)), None)


class RequestValues(BaseModel):
    """Options by their names, or their aliases; unknown names are ignored. `message` tells of a wrong value."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=False)
    message: ClassVar[str] = "{name} is {value!r}: {why}."

    @classmethod
    def from_sent(cls, sent: Mapping[str, object]) -> Self:
        """The sent values as a model; empty ones count as not sent. Raises BadOption."""
        values: dict[str, Any] = {}
        for attribute, about in cls.model_fields.items():
            value = sent.get(name := about.alias or attribute)
            if value is not None and not isinstance(value, list | dict):
                # As a form has it, and bounded before pydantic looks at it.
                value = as_text(value).strip() or None
            if value is not None:
                values[name] = value
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False)[0]
            value = shown(sent.get(str(found["loc"][0])))[:_SHOWN_CHARACTERS]
            raise BadOption(cls.message.format(name=found["loc"][0], value=value, why=found["msg"])) from None


def _off(value: bool) -> bool:  # noqa: FBT001  pydantic calls it
    if value:
        raise PydanticCustomError("value_error", "This service cannot do that")
    return value


def _listed(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


NotServed = Annotated[bool, AfterValidator(_off)]
"""A flag for something that this service cannot do."""

Listed = BeforeValidator(_listed)
"""For a list whose values may be in one text, separated by commas."""


def parse_object(kind: type[B], sent: object, remedy: str) -> B:
    """A JSON object as a model. Raises CallerError, which names the wrong member."""
    try:
        return kind.model_validate(sent)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        why = "Input should be an object" if found["type"] == "model_type" else found["msg"]
        raise CallerError(f"{'.'.join(map(str, found['loc']))}: {why}.", remedy) from None


def placed_texts(
    texts: Sequence[Boxed], box_digits: int | None = None, score_digits: int = 5, scale: float = 1.0
) -> Iterator[tuple[str, float, list[list[Any]]]]:
    """Text, confidence and corners of each line or word; corners in whole pixels without `box_digits`."""
    boxes = to_boxes(texts) * scale
    corners = whole(boxes) if box_digits is None else boxes.round(box_digits)
    return zip([text.text for text in texts], to_scores(texts, score_digits), corners.tolist(), strict=True)


class HeldOutput(io.BytesIO):
    """An output in memory; its bytes and the copy that `taken` makes are counted in a share before they are kept."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self._share = share

    def write(self, data: Any, /) -> int:
        """Keep all of the bytes. Raises QueueFull, BodyTooLarge."""
        self._share.take(2 * len(data))
        return super().write(data)

    def taken(self) -> bytes:
        """All that was written; the share is free of it, because the response counts it again."""
        self._share.give_back(2 * self.tell())
        return self.getvalue()
