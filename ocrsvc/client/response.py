"""Parses a response of the native API: its pages, in the units of `ocrsvc.results`, or the error that it reports."""

from __future__ import annotations

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
from ocrsvc.results import Barcode, Cell, Character, Line, MaskedPart, Region, Word

_MOST_DIGITS: Final = 9
_MOST_LETTERS: Final = 4000
_MOST_PAGE_BYTES: Final = 1 << 28

T = TypeVar("T")

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table(results.Table):
    """A table on a page, also as HTML and Markdown."""

    html: str
    markdown: str


@dataclass(frozen=True, slots=True)
class Page:
    """What was read on one page, with its number from 1, and the angle by which it was turned to be read.

    Its text are the lines', joined by newlines. Lines and regions are in reading order, tables and bar codes from top
    to bottom; what was not asked for is empty, and `masked` None.
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

    def record(self) -> results.Page:
        """The page as output formats take it."""
        size = self.width, self.height, self.angle
        return results.Page(*size, self.lines, self.number, self.tables, self.regions, self.masked, self.barcodes)


@dataclass(frozen=True, slots=True)
class Answer:
    """The response for one image.

    Attributes:
        id: Of the request, as in the service's log.
        pages: At least one, of a document those that were read.
        failed: The numbers of the pages that were not, with their errors.
        pages_total: Pages that the document has, asked for or not.
        engine: Name, model, version, device, precision and provider.
        timing: decode_s, queue_s, engine_s and total_s; with timing="stages" also request_s.
        stages: With timing="stages" the seconds of each stage of the request (receive_s, decode_s, wait_s, detect_s,
            recognise_s, answer_s), which add up to request_s; empty without.
        data: The JSON as it came.
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
        """The pages' texts, each page after the first begun by a form feed."""
        return "\n\f".join(page.text for page in self.pages)


@dataclass(frozen=True, slots=True)
class StreamedPage:
    """One page, as soon as it is read: its number in the file, from 1, and what is on it, or why it could not be read.

    `total` pages has the file, of which `wanted` are read.
    """

    number: int
    total: int
    wanted: int
    outcome: Page | OcrsvcError


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model; `model="NAME/VERSION"` and `model="NAME:LABEL"` name it while it is AVAILABLE.

    `engine` is None where it is damaged, `tier` where it is none of tiny, small and medium; languages are tags in small
    letters, and `title` is for people.
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
    """The models of a service: the one that reads what names none, if it can be named, and every version."""

    default: str | None
    models: tuple[ModelVersion, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """What came: status, the header Retry-After, the whole body, and the address of the service that sent it."""

    status: int
    retry_after: str | None
    body: bytes
    url: str = ""

    def content(self) -> bytes:
        """The body; raises what the service says went wrong, in the class of its code."""
        if self.status // 100 != 2:
            raise error_of(self.status, self._object() or {}, self.retry_after)
        return self.body

    def data(self) -> Data:
        """The JSON object that it holds. Raises as `content`, and ServerError where it is none."""
        self.content()
        if (data := self._object()) is None:
            raise not_ours()
        return data

    def _object(self) -> Data | None:
        try:
            data = json.loads(self.body)
        except ValueError:
            return None
        return data if isinstance(data, dict) else None


def answer_of(response: Response) -> Answer:
    """The reading that a response holds. Raises as `Response.data`; the id of the request is a note on the error."""
    data = response.data()
    with _reading_members():
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
    """The models that an answer lists. Raises as `answer_of`."""
    data = response.data()
    with _reading_members():
        versions = (
            _part(ModelVersion, each, labels=tuple(each["labels"]), languages=tuple(each["languages"]))
            for each in data["models"]
        )
        return ModelList(data["default"], tuple(versions))


async def pages_of(pieces: AsyncIterator[bytes]) -> AsyncGenerator[StreamedPage, None]:
    """The pages of an answer in NDJSON, each as soon as it is whole, from any pieces.

    Raises OcrsvcError: what ended the answer before its last page; Unreachable where it was cut off.
    """
    rest: list[bytes] = []
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        for begun in others:
            data = Response(200, None, b"".join(rest)).data()
            rest = [begun]
            if "end" in data:
                return
            yield _streamed(data)
        if sum(map(len, rest)) > _MOST_PAGE_BYTES:
            raise ServerError("A page of the answer is larger than any of this service.", "Check the address.")
    raise Unreachable("The answer was cut off before its end.", "Ask for the pages that are missing.")


def _streamed(data: Data) -> StreamedPage:
    """Raises OcrsvcError."""
    with _reading_members():
        if "page" not in data:
            raise error_of(int(data["error"].get("status", 500)), data["error"], None)
        return StreamedPage(int(data["page"]), int(data["pages_total"]), int(data["pages_wanted"]), outcome_of(data))


@contextmanager
def _reading_members() -> Iterator[None]:
    """Raises ServerError where a member is missing, or is another than the service's."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise not_ours() from error


def not_ours() -> ServerError:
    """The error of an answer that no service of this project gives."""
    return ServerError("The answer is not one of this service.", "Check the address.")


def error_of(status: int, data: Data, retry_after: str | None) -> OcrsvcError:
    """The error that a problem stands for, by its code; by the status for one that is unknown here."""
    kind = _KINDS.get(str(data.get("code")), _by_status(status))
    # Whoever answers may say megabytes.
    detail = str(data.get("detail") or f"The answer has the status {status} and no explanation.")[:_MOST_LETTERS]
    remedy = str(data.get("remedy", ""))[:_MOST_LETTERS]
    error = kind(detail, remedy, retry_after_s(retry_after)) if issubclass(kind, Refused) else kind(detail, remedy)
    if data.get("id"):
        error.add_note(f"The request was {data['id']}.")
    return error


def retry_after_s(value: str | None) -> int:
    """Seconds of a Retry-After header, which may be a number or a date (RFC 9110); 1 when it says nothing."""
    if value and value.isdecimal():
        # More digits than an integer is parsed from are no number of seconds either.
        return int(value[:_MOST_DIGITS])
    try:
        moment = parsedate_to_datetime(value or "")
        # Without a zone, a date of HTTP is in UTC.
        left = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)
    except (ValueError, OverflowError):
        return 1
    return max(0, math.ceil(left.total_seconds()))


def _by_status(status: int) -> type[OcrsvcError]:
    known = {429: errors.TooManyAtOnce, 503: Refused, 504: errors.DeadlineExceeded}
    return known.get(status, CallerError if 400 <= status < 500 else ServerError)


# A class that declares no code of its own has its parent's, which must stay its parent's.
_KINDS: Final[Mapping[str, type[OcrsvcError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OcrsvcError) and "code" in vars(kind)
} | {OcrsvcError.code: ServerError}


def outcome_of(data: Data) -> Page | OcrsvcError:
    """The page that an element of `pages` holds, or why it could not be read."""
    problem = data.get("error")
    return page_of(data) if problem is None else error_of(int(problem.get("status", 500)), problem, None)


def page_of(data: Data) -> Page:
    """The page that an element of `pages` holds."""
    masked = data.get("masked")
    return Page(
        number=data["page"],
        **{name: data[name] for name in ("width", "height", "angle", "text")},
        lines=tuple(map(_line_of, data.get("lines", ()))),
        tables=tuple(map(_table_of, data.get("tables", ()))),
        regions=tuple(_part(Region, each, lines=tuple(each["lines"])) for each in data.get("regions", ())),
        masked=None if masked is None else tuple(_part(MaskedPart, each) for each in masked),
        barcodes=tuple(_part(Barcode, each) for each in data.get("barcodes", ())),
    )


def _table_of(data: Data) -> Table:
    cells = tuple(_part(Cell, each, lines=tuple(each["lines"])) for each in data["cells"])
    return _part(Table, data, cells=cells)


def _line_of(data: Data) -> Line:
    return _part(Line, data, words=tuple(map(_word_of, data["words"])) if "words" in data else None)


def _word_of(data: Data) -> Word:
    return _part(Word, data, characters=tuple(_part(Character, each) for each in data.get("characters", ())))


def _part(kind: Callable[..., T], data: Data, **made: object) -> T:
    """A record of the members that it has fields for; `made` are those that are made of them."""
    members = {name: data[name] for name in kind.__dataclass_fields__ if name in data}  # type: ignore[attr-defined]
    if "box" in members:
        members["box"] = tuple((x, y) for x, y in data["box"])
    return kind(**members | made)
