"""Parses responses of the native API: pages in the units of `ocrsvc.results`, and errors."""

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, TypeVar

from ocrsvc import errors, results
from ocrsvc.errors import CallerError, OcrsvcError, Refused, ServerError, Unreachable
from ocrsvc.results import Barcode, Cell, Character, Fallback, Line, MaskedPart, Region, Word

_MAX_DIGITS: Final = 9
_MAX_CHARACTERS: Final = 4000
_MAX_PAGE_BYTES: Final = 1 << 28

T = TypeVar("T")

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table(results.Table):
    """A table on a page, also as HTML and Markdown."""

    html: str
    markdown: str


@dataclass(frozen=True, slots=True)
class Page:
    """One page; `number` counts from 1, `angle` is the rotation in degrees that made the page upright.

    `text` is the lines joined by newlines. Lines and regions are in reading order, tables and bar codes from top to
    bottom; parts that were not requested are empty, `masked` is None. `markdown` and `fallback` are as in
    `results.Page`.
    """

    number: int
    width: int
    height: int
    angle: int
    text: str
    lines: tuple[Line, ...]
    tables: tuple[Table, ...] = ()
    regions: tuple[Region, ...] = ()
    masked: tuple[MaskedPart, ...] | None = None
    barcodes: tuple[Barcode, ...] = ()
    markdown: str | None = None
    fallback: Fallback | None = None

    def record(self) -> results.Page:
        """The page as a `results.Page`, for output formats."""
        return results.Page(
            *(self.width, self.height, self.angle, self.lines, self.number, self.tables, self.regions, self.masked),
            *(self.barcodes, self.markdown, self.fallback),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The response for one image.

    Attributes:
        id: The request's id, as in the service's log.
        pages: The pages read, at least one.
        failed: Errors by page number.
        pages_total: Number of pages of the document.
        engine: Name, model, version, device, precision and provider.
        timing: decode_s, queue_s, engine_s and total_s; with timing="stages" also request_s.
        stages: With timing="stages" the seconds of each stage (receive_s, decode_s, wait_s, detect_s, recognise_s,
            answer_s), which add up to request_s; else empty.
        data: The original JSON.
    """

    id: str
    pages: tuple[Page, ...]
    failed: Mapping[int, OcrsvcError]
    pages_total: int
    engine: Mapping[str, str]
    timing: Mapping[str, float]
    data: Data
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text of all pages, separated by form feeds."""
        return "\n\f".join(page.text for page in self.pages)


@dataclass(frozen=True, slots=True)
class StreamedPage:
    """One page of a stream: its number in the file from 1, and the page or its error.

    The file has `total` pages, of which `wanted` are read.
    """

    number: int
    total: int
    wanted: int
    outcome: Page | OcrsvcError


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model; while AVAILABLE, the option `model="NAME/VERSION"` or `model="NAME:LABEL"` selects it.

    `engine` is None for a damaged version; `tier` is tiny, small, medium or None; languages are lower-case tags.
    """

    name: str
    version: int
    state: Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
    labels: tuple[str, ...]
    engine: str | None
    title: str
    tier: str | None
    languages: tuple[str, ...]
    licence: str


@dataclass(frozen=True, slots=True)
class ModelList:
    """All model versions of a service, and the default model."""

    default: str | None
    models: tuple[ModelVersion, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """A response: status, Retry-After, body, and the URL of the service."""

    status: int
    retry_after: str | None
    body: bytes
    url: str = ""

    def content(self) -> bytes:
        """The body. Raises the error in an error response, as the error class of its code."""
        if self.status // 100 != 2:
            raise error_of(self.status, self._object() or {}, self.retry_after)
        return self.body

    def data(self) -> Data:
        """The JSON object in the body. Raises as `content`; ServerError for a body that is not a JSON object."""
        self.content()
        if (data := self._object()) is None:
            raise foreign_response()
        return data

    def _object(self) -> Data | None:
        try:
            data = json.loads(self.body)
        except ValueError:
            return None
        return data if isinstance(data, dict) else None


def answer_of(response: Response) -> Answer:
    """Parse the response of POST /v1/ocr. Raises as `Response.data`; errors have the request's id as a note."""
    data = response.data()
    with _parsing():
        outcomes = {int(page["page"]): outcome_of(page) for page in data["pages"]}
        timing = dict(data["timing"])
        return Answer(
            str(data["id"]),
            tuple(one for one in outcomes.values() if isinstance(one, Page)),
            {number: one for number, one in outcomes.items() if isinstance(one, OcrsvcError)},
            int(data.get("pages_total", len(outcomes))),
            dict(data["engine"]),
            timing,
            data,
            dict(timing.pop("stages", {})),
        )


def model_list_of(response: Response) -> ModelList:
    """Parse a list of models. Raises as `Response.data`."""
    data = response.data()
    with _parsing():
        versions = (
            _part(ModelVersion, each, labels=tuple(each["labels"]), languages=tuple(each["languages"]))
            for each in data["models"]
        )
        return ModelList(data["default"], tuple(versions))


async def pages_of(pieces: AsyncIterator[bytes]) -> AsyncGenerator[StreamedPage, None]:
    """Parse a stream of NDJSON into pages, each as soon as its line is complete.

    Raises OcrsvcError for an error line; Unreachable if the stream ends without its end line.
    """
    rest: list[bytes] = []
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        for next_line in others:
            data = Response(200, None, b"".join(rest)).data()
            rest = [next_line]
            if "end" in data:
                return
            yield _streamed(data)
        if sum(map(len, rest)) > _MAX_PAGE_BYTES:
            raise ServerError("A page of the response is too large for this service.", "Check the address.")
    raise Unreachable("The response ended too early.", "Request the missing pages.")


def _streamed(data: Data) -> StreamedPage:
    """Parse the line of a page. Raises OcrsvcError if it is an error line."""
    with _parsing():
        if "page" not in data:
            raise error_of(int(data["error"].get("status", 500)), data["error"], None)
        return StreamedPage(int(data["page"]), int(data["pages_total"]), int(data["pages_wanted"]), outcome_of(data))


@contextmanager
def _parsing() -> Iterator[None]:
    """Raise ServerError if the block finds that a JSON member is missing or has the wrong type."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise foreign_response() from error


def foreign_response() -> ServerError:
    """The error to raise for a response that does not come from this service."""
    return ServerError("The response is not from ocrsvc.", "Check the address.")


def error_of(status: int, data: Data, retry_after: str | None) -> OcrsvcError:
    """Convert a problem (RFC 9457) to the error class of its code, or for an unknown code, of its HTTP status."""
    kind = _KINDS.get(str(data.get("code")), _by_status(status))
    # The detail may be arbitrarily long.
    detail = str(data.get("detail") or f"The service answered {status} without an explanation.")[:_MAX_CHARACTERS]
    remedy = str(data.get("remedy", ""))[:_MAX_CHARACTERS]
    error = kind(detail, remedy, retry_after_s(retry_after)) if issubclass(kind, Refused) else kind(detail, remedy)
    if data.get("id"):
        error.add_note(f"The request was {data['id']}.")
    return error


def retry_after_s(value: str | None) -> int:
    """Parse a Retry-After header, a number or a date (RFC 9110), into seconds; 1 if it is missing or invalid."""
    if value and value.isdecimal():
        # int() refuses thousands of digits.
        return int(value[:_MAX_DIGITS])
    try:
        moment = parsedate_to_datetime(value or "")
        # HTTP dates are in UTC even if they name no time zone.
        left = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)
    except (ValueError, OverflowError):
        return 1
    return max(0, math.ceil(left.total_seconds()))


def _by_status(status: int) -> type[OcrsvcError]:
    known = {429: errors.TooManyAtOnce, 503: Refused, 504: errors.DeadlineExceeded}
    return known.get(status, CallerError if 400 <= status < 500 else ServerError)


# Error class by code; subclasses that inherit a code are left out, so that it maps to the parent class.
_KINDS: Final[Mapping[str, type[OcrsvcError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OcrsvcError) and "code" in vars(kind)
} | {OcrsvcError.code: ServerError}


def outcome_of(data: Data) -> Page | OcrsvcError:
    """Parse an element of `pages`: a page or an error."""
    problem = data.get("error")
    return page_of(data) if problem is None else error_of(int(problem.get("status", 500)), problem, None)


def page_of(data: Data) -> Page:
    """Parse a page."""
    masked = data.get("masked")
    return Page(
        number=data["page"],
        **{name: data[name] for name in ("width", "height", "angle", "text")},
        lines=tuple(map(_line_of, data.get("lines", ()))),
        tables=tuple(map(_table_of, data.get("tables", ()))),
        regions=tuple(_part(Region, each, lines=tuple(each["lines"])) for each in data.get("regions", ())),
        masked=None if masked is None else tuple(_part(MaskedPart, each) for each in masked),
        barcodes=tuple(_part(Barcode, each) for each in data.get("barcodes", ())),
        markdown=data.get("markdown"),
        fallback=_part(Fallback, data["fallback"]) if "fallback" in data else None,
    )


def _table_of(data: Data) -> Table:
    cells = tuple(_part(Cell, each, lines=tuple(each["lines"])) for each in data["cells"])
    return _part(Table, data, cells=cells)


def _line_of(data: Data) -> Line:
    return _part(Line, data, words=tuple(map(_word_of, data["words"])) if "words" in data else None)


def _word_of(data: Data) -> Word:
    return _part(Word, data, characters=tuple(_part(Character, each) for each in data.get("characters", ())))


def _part(kind: Callable[..., T], data: Data, **converted: object) -> T:
    """Make a record from the JSON members named as its fields; `converted` replaces some of them."""
    members = {name: data[name] for name in kind.__dataclass_fields__ if name in data}  # type: ignore[attr-defined]
    if "box" in members:
        members["box"] = tuple((x, y) for x, y in data["box"])
    return kind(**members | converted)
