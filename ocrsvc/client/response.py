"""Parses a response of the native API: its pages and lines, or the error that it reports.

Coordinates are pixels of the image as displayed (after its EXIF orientation), from the top left corner; angles are
clockwise degrees; durations are seconds; confidences lie in [0, 1].
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from ocrsvc import errors
from ocrsvc.errors import CallerError, OcrsvcError, Refused, ServerError

_MOST_DIGITS: Final = 9
_MOST_LETTERS: Final = 4000

Point = tuple[float, float]
Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Character:
    """One character of a word, its confidence and its four corners."""

    text: str
    confidence: float
    box: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A region of a page: its type, such as "title", its confidence, and its lines (from 0)."""

    type: str
    confidence: float
    box: tuple[Point, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: its first row and column (from 0), how many it takes, its text, and its lines (from 0)."""

    row: int
    column: int
    row_span: int
    column_span: int
    box: tuple[Point, ...]
    text: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table on a page: how many rows and columns it has, its cells row by row, and the whole as HTML and Markdown."""

    box: tuple[Point, ...]
    rows: int
    columns: int
    cells: tuple[Cell, ...]
    html: str
    markdown: str


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a line, its confidence, its four corners, and its characters, if they were asked for."""

    text: str
    confidence: float
    box: tuple[Point, ...]
    characters: tuple[Character, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text.

    Attributes:
        text: What it says.
        confidence: In [0, 1].
        box: Its four corners, clockwise from where reading starts.
        words: In the order of the text; None where they were not asked for, or where the engine knows none.
        source: "text_layer" or "ocr" where the option `text_layer` was sent; empty where it was not.
    """

    text: str
    confidence: float
    box: tuple[Point, ...]
    words: tuple[Word, ...] | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Barcode:
    """A bar code or QR code on a page: its format, such as QRCode or EAN13, and what it says."""

    type: str
    text: str
    box: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class MaskedPart:
    """A part of a line that was replaced by stars: its kind, its line (from 0), its first sign and the one after it."""

    kind: str
    line: int
    begin: int
    end: int
    box: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """What was read on one page; `lines`, `tables` and `regions` are empty when they were not asked for.

    Attributes:
        number: From 1.
        width, height: Pixels, the frame of all boxes.
        angle: Clockwise degrees by which the page was turned to be read.
        text: The lines' texts, joined by newlines.
        lines: In reading order.
        tables: From top to bottom.
        regions: In reading order.
        masked: In the order of the text; None where the option `mask` was not sent.
        barcodes: From top to bottom; empty where they were not asked for.
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


@dataclass(frozen=True, slots=True)
class Answer:
    """The response for one image.

    Attributes:
        id: Of the request, as in the service's log.
        pages: At least one, of a document those that were read.
        failed: Of a document, the numbers of the pages that were not, with their errors.
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


def answer_of(status: int, retry_after: str | None, body: bytes) -> Answer:
    """The reading that an answer holds.

    Args:
        status: HTTP status.
        retry_after: The header of that name.
        body: What came.

    Raises:
        OcrsvcError: What the service says went wrong, in the class of its code; or ServerError for an answer that is
            not the service's. The id of the request is a note on it.
    """
    data = parsed(status, retry_after, body)
    try:
        return _answer(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError("The answer is not one of this service.", "Check the address.") from error


def parsed(status: int, retry_after: str | None, body: bytes) -> Data:
    """The JSON object of an answer with status 200, empty for anything else than one. Raises as `answer_of`."""
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    data = data if isinstance(data, dict) else {}
    if status != 200:
        raise error_of(status, data, retry_after)
    return data


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
    except (ValueError, OverflowError):
        return 1
    # Without a zone, a date of HTTP is in UTC.
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return max(0, math.ceil((moment - datetime.now(UTC)).total_seconds()))
    except OverflowError:
        return 1


def _by_status(status: int) -> type[OcrsvcError]:
    if status in (429, 503):
        return errors.TooManyAtOnce if status == 429 else Refused
    if status == 504:
        return errors.DeadlineExceeded
    return CallerError if 400 <= status < 500 else ServerError


# A class that declares no code of its own has its parent's, which must stay its parent's.
_KINDS: Final[Mapping[str, type[OcrsvcError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OcrsvcError) and "code" in vars(kind)
} | {OcrsvcError.code: ServerError}


def _answer(data: Data) -> Answer:
    pages = tuple(page_of(page) for page in data["pages"] if "error" not in page)
    problems = {int(page["page"]): page["error"] for page in data["pages"] if "error" in page}
    failed = {number: error_of(int(problem.get("status", 500)), problem, None) for number, problem in problems.items()}
    total = int(data.get("pages_total", len(pages) + len(failed)))
    timing = dict(data["timing"])
    stages = dict(timing.pop("stages", {}))
    return Answer(str(data["id"]), pages, failed, total, dict(data["engine"]), timing, data, stages)


def page_of(data: Data) -> Page:
    """The page that an element of `pages` holds."""
    lines = tuple(map(_line_of, data.get("lines", ())))
    tables = tuple(map(_table_of, data.get("tables", ())))
    regions = tuple(
        Region(region["type"], region["confidence"], _box_of(region), tuple(region["lines"]))
        for region in data.get("regions", ())
    )
    size, masked = (data["width"], data["height"]), data.get("masked")
    parts = None if masked is None else tuple(map(_masked_of, masked))
    codes = tuple(Barcode(code["type"], code["text"], _box_of(code)) for code in data.get("barcodes", ()))
    return Page(data["page"], *size, data["angle"], data["text"], lines, tables, regions, parts, codes)


def _masked_of(data: Data) -> MaskedPart:
    return MaskedPart(data["kind"], data["line"], data["begin"], data["end"], _box_of(data))


def _table_of(data: Data) -> Table:
    cells = tuple(Cell(**{**cell, "box": _box_of(cell), "lines": tuple(cell["lines"])}) for cell in data["cells"])
    return Table(_box_of(data), data["rows"], data["columns"], cells, data["html"], data["markdown"])


def _line_of(data: Data) -> Line:
    words = tuple(map(_word_of, data["words"])) if "words" in data else None
    return Line(data["text"], data["confidence"], _box_of(data), words, data.get("source", ""))


def _word_of(data: Data) -> Word:
    characters = (Character(each["text"], each["confidence"], _box_of(each)) for each in data.get("characters", ()))
    return Word(data["text"], data["confidence"], _box_of(data), tuple(characters))


def _box_of(data: Data) -> tuple[Point, ...]:
    return tuple((x, y) for x, y in data["box"])
