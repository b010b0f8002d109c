"""Shared parts of the API adapters: context, routes, options, error codes, box corners, stored documents."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self, TypeVar

from flask import Blueprint, Response
from flask.typing import ResponseReturnValue
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.connections.fetching import FetchedFile
from ocrsvc.errors import BadOption, CallerError, OcrsvcError
from ocrsvc.formats.boxes import Boxed, to_boxes, to_scores, whole
from ocrsvc.grpc_server.method import Methods
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.field_values import as_text, shown
from ocrsvc.http.request import request
from ocrsvc.http.responses import read_pages
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.job_requests import ResultFiles, job_view, owner_of_request
from ocrsvc.jobs.intake import JobRequest, add_job, find_job
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Check, Page, Reading, ReadOptions
from ocrsvc.serving.memory_budget import Share
from ocrsvc.settings.settings import Settings

if TYPE_CHECKING:
    # Imports protobuf, which takes 2 MB.
    from ocrsvc.grpc_server.protobuf import Messages

T = TypeVar("T")

_SHOWN_CHARACTERS: Final = 40
_MAX_NAME_CHARACTERS: Final = 200
DEFAULT_OPTIONS: Final = ReadOptions()
URLS_NOT_FETCHED: Final = "URLs are not fetched here."
Route = tuple[str, str, Callable[..., ResponseReturnValue]]
"""Method, path, and the view, whose arguments are the variables in the path."""


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """Settings and services that an adapter's factory receives; `jobs` is None without a job store."""

    settings: Settings
    reader: Reader
    model: OcrModel
    jobs: JobStore | None = None
    url_files: UrlFiles = field(default_factory=UrlFiles)

    def read(self, data: bytes, options: ReadOptions = DEFAULT_OPTIONS) -> Reading:
        """Read an image before the deadline of this thread's request. Raises as `Reader.read`."""
        return self.reader.read(data, options, request.left_s, request.context)

    def read_pages(self, data: bytes, options: ReadOptions, max_pages: int | None = None) -> FileRead:
        """Read a file's pages before the deadline of this thread's request. Raises as `responses.read_pages`."""
        return read_pages(self.reader, data, options, request.left_s, request.context, max_pages)

    def fetch(self, url: str, remedy: str) -> FetchedFile:
        """Fetch the file at a URL. Raises BadOption with this remedy if fetching is off, and as `UrlFiles.fetch`."""
        if not self.url_files.is_on:
            raise BadOption(URLS_NOT_FETCHED, remedy)
        return self.url_files.fetch(url)


@dataclass(frozen=True, slots=True)
class GrpcService:
    """The gRPC services of an adapter: their .proto files, and the function that makes their methods."""

    files: tuple[str, ...]
    make: "Callable[[Messages, OcrModel], Methods]"


def make_blueprint(
    name: str, answer: Callable[[OcrsvcError], Response], routes: Iterable[Route] = (), job_routes: Iterable[Route] = ()
) -> Blueprint:
    """Make an adapter's blueprint; `answer` makes the response to an error.

    Views of `job_routes` use the job store but not the engine, so the engine's queue limit does not apply to them.
    """
    blueprint = Blueprint(name, __name__)
    blueprint.register_error_handler(Exception, lambda error: answer(failure_of(error)))
    for method, path, view in (*routes, *((method, path, job_view(view)) for method, path, view in job_routes)):
        blueprint.add_url_rule(path, f"{method} {path}", view, methods=[method])
    return blueprint


class StoredDocuments(ResultFiles):
    """The stored jobs of one adapter, for request threads. Methods raise JobsOff without a job store."""

    def __init__(self, context: AdapterContext, source: str) -> None:
        super().__init__(context.jobs, context.reader)
        self._settings, self._source = context.settings, source

    def add(
        self,
        data: bytes,
        options: ReadOptions,
        pages: Any,
        client_options: Mapping[str, Any],
        name: str = "",
        formats: Sequence[str] = (),
    ) -> Job:
        """Add a job; `pages` as in JobRequest, `client_options` are for writing the result. Raises as `add_job`."""
        record = Record(*owner_of_request(), self._source, name, asked=dict(client_options), formats=tuple(formats))
        job_request = JobRequest(data, options, record, pages)
        return add_job(self.jobs, self._reader, self._settings, job_request, request.context, request.left_s)

    @contextmanager
    def find(self, job_id: object, missing: Exception) -> Iterator[Job]:
        """The job with this id. Raises `missing` if it does not exist or belongs to another API key."""
        job = find_job(self.jobs, job_id, owner_of_request(), self._source)
        if job is None:
            raise missing
        try:
            yield job
        except FileNotFoundError as error:
            raise missing from error


class CodedError(CallerError):
    """An error that has a code in the emulated API but no error class of its own in this service."""

    def __init__(self, code: int | str, detail: str, remedy: str = "") -> None:
        super().__init__(detail, remedy)
        self.original_code: Any = code


def original_code_of(codes: Sequence[tuple[type[OcrsvcError], Any]], error: OcrsvcError, not_json: Any) -> Any:
    """The emulated API's code for an error: a CodedError's own, `not_json` for a plain CallerError, else by class."""
    if isinstance(error, CodedError):
        return error.original_code
    if type(error) is CallerError:
        return not_json
    return next((code for kind, code in codes if isinstance(error, kind)), None)


class RequestValues(BaseModel):
    """Base class of request options; unknown names are ignored. `message` is the error text for a wrong value."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=False)
    message: ClassVar[str] = "{name} is {value!r}: {why}."

    @classmethod
    def from_values(cls, request_values: Mapping[str, object]) -> Self:
        """Validate a request's values; empty ones count as absent. Raises BadOption."""
        values: dict[str, Any] = {}
        for attribute, about in cls.model_fields.items():
            value = request_values.get(name := about.alias or attribute)
            if value is not None and not isinstance(value, list | dict):
                # Turn JSON values into text, as in forms; `as_text` refuses long text before pydantic checks it.
                value = as_text(value).strip() or None
            if value is not None:
                values[name] = value
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            name = str(first["loc"][0])
            value = shown(values.get(name, request_values.get(name)))[:_SHOWN_CHARACTERS]
            raise BadOption(cls.message.format(name=name, value=value, why=first["msg"])) from None


def _refuse_true(value: bool) -> bool:  # noqa: FBT001  pydantic calls it
    if value:
        raise PydanticCustomError("value_error", "This service does not support it")
    return value


NotServed = Annotated[bool, AfterValidator(_refuse_true)]
"""A flag for a feature that this service lacks; true is refused."""


def file_name_of(text: str, default: str) -> str:
    """The last component of a client's path or file name, shortened; `default` if nothing is left."""
    name = PurePath(text[-1000:].replace("\\", "/").replace("\0", "")).name[-_MAX_NAME_CHARACTERS:]
    # Drop lone surrogates, which UTF-8 cannot encode.
    return name.encode("utf-8", "ignore").decode() or default


def all_pages(read: FileRead) -> list[Page]:
    """A file's pages, for a response without a place for a page's error. Raises the error of the first failed page."""
    for _, error in read.errors:
        raise error
    return [reading.page for reading in read.readings]


def texts_with_corners(
    texts: Sequence[Boxed], box_digits: int | None = None, score_digits: int = 5, scale: float = 1.0
) -> Iterator[tuple[str, float, list[list[Any]]]]:
    """Text, confidence and corners of each line or word; corners are whole pixels unless `box_digits` is given."""
    boxes = to_boxes(texts) * scale
    corners = whole(boxes) if box_digits is None else boxes.round(box_digits)
    return zip([text.text for text in texts], to_scores(texts, score_digits), corners.tolist(), strict=True)


def checked(items: Iterable[T], check: Check) -> Iterator[T]:
    """Yield the items, calling `check` before each. Raises as `check`."""
    for item in items:
        check()
        yield item


class CountedBuffer(io.BytesIO):
    """In-memory output that reserves its bytes in a memory share, twice because `take_value` copies them."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self._share = share

    def write(self, data: Any, /) -> int:
        """Append the bytes. Raises QueueFull, BodyTooLarge."""
        self._share.take(2 * len(data))
        return super().write(data)

    def take_value(self) -> bytes:
        """Return everything written, and release its memory from the share: the response reserves memory itself."""
        self._share.give_back(2 * self.tell())
        return self.getvalue()
