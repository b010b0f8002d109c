"""The frozen data classes that packages exchange: images, options, tasks, pages, and readings (timed results).

Coordinates are pixels of the image *as displayed* (after applying its EXIF orientation, before any other rotation); the
origin is the top left corner, x grows to the right, y downwards. Angles are degrees, clockwise. Durations are seconds.
Confidences are in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Pixels: TypeAlias = "NDArray[np.uint8]"
"""(H, W) gray or (H, W, 3) BGR; uint8."""

Point = tuple[float, float]
Box = tuple[Point, Point, Point, Point]
"""Four corners, clockwise. The first edge is the upper one, so upright text begins at the top left, also if it runs
from right to left."""

Rectangle = tuple[int, int, int, int]
"""x, y, width and height in pixels, from the top left corner."""

Rotate = Literal["auto", "0", "90", "180", "270"]

Decoder = Literal["greedy", "beam"]

Spaces = Literal["auto", "model", "visible"]

Words = bool | Literal["segmented"]
Barcodes = bool | Literal["only"]

TextLayer = Literal["ignore", "auto", "only", "merge"]
LineSource = Literal["text_layer", "ocr"]
"""Where a line comes from: the text layer of a PDF, or the engine."""

MaskKind = Literal["id", "phone", "card", "mail", "own"]
MASK_KINDS: Final[tuple[MaskKind, ...]] = get_args(MaskKind)
"""Kinds of text that can be masked in an answer; "own" stands for the operator's patterns."""

MIN_SIDE_PX: Final = 16
MAX_SIDE_PX: Final = 65_535
"""The option `max_side` may be MIN_SIDE_PX to MAX_SIDE_PX."""

Check = Callable[[], object]
"""Raises DeadlineExceeded or ClientGone if the work is no longer needed; thread-safe, and cheap enough to call before
every line."""


def ignore(*_: object) -> None:
    """Do nothing; this is the default for callbacks."""


def no_check() -> None:
    """A Check that never raises, for work that is never cancelled."""


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """One decoded page image, C-contiguous, oriented as displayed; `format` is a name such as "jpeg".

    `frame`: the page's size in the pixels of requests and answers, if the image has another resolution; else None.
    """

    pixels: Pixels
    format: str
    frame: tuple[int, int] | None = None

    @property
    def height(self) -> int:
        """The image's height in pixels."""
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        """The image's width in pixels."""
        return int(self.pixels.shape[1])


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one request.

    Attributes:
        rotate: "auto" lets the engine find the page's orientation; a number is the clockwise rotation in degrees that
            makes the page upright.
        detect: False reads the whole image as one line.
        upright_boxes: True returns boxes with horizontal and vertical sides (the engine Tr's flag 1; False: flag 2).
        max_side: Longest side in pixels of the engine's input; larger images are shrunk first, and boxes scaled back.
            None lets the engine decide.
        min_confidence: Lines with a lower confidence are left out. None is the engine's own threshold.
        decoder: "greedy" takes the likeliest character at each step; "beam" searches for the likeliest text of the
            line, if supported.
        unwarp: True lets the engine flatten a curved page, if supported; False reads the page as it is.
        tables: True returns the page's tables.
        spaces: Spaces between Chinese and Latin characters: "auto" inserts them by the page's gaps and the recognizer's
            spaces, "model" keeps the recognizer's spaces, "visible" inserts one at every visible gap.
            Ignored by engines whose recognizer reports no character positions.
        words: True returns the words of each line, each Chinese character as a word; "segmented" joins Chinese
            characters to words by a dictionary (package jieba). Engines without character positions return no words.
        characters: True returns the characters of each word; implies words.
        layout: True returns the regions of the page.
        barcodes: True returns the page's bar codes; "only" returns them without reading text.
        region: The part of each page to read: x, y, width and height in pixels of the page as displayed, clipped to the
            page; None is the whole page.
        text_layer: How to use a PDF page's text layer. "ignore": read the rendered page with the engine. "auto": use
            the text layer if it is plausible, but the engine on pages with much other content. "merge": use the text
            layer, and the engine for everything else on the page. "only": use the text layer without any engine.
        mask: Kinds of text to mask in the answer; engines and the result cache do not get this option.
        model: Name of the model, as `models/model_name.py` parses it. None lets `tier` and `lang`, or the service,
            choose.
        tier: Size class of the model.
        lang: Language of the text, as a lower-case tag; "auto" lets the engine choose a recognizer for each line.
    """

    rotate: Rotate = "auto"
    detect: bool = True
    upright_boxes: bool = False
    max_side: int | None = None
    min_confidence: float | None = None
    decoder: Decoder = "greedy"
    unwarp: bool = True
    tables: bool = False
    spaces: Spaces = "auto"
    words: Words = False
    characters: bool = False
    layout: bool = False
    barcodes: Barcodes = False
    region: Rectangle | None = None
    text_layer: TextLayer = "ignore"
    mask: tuple[MaskKind, ...] = ()
    model: str | None = None
    tier: str | None = None
    lang: str | None = None

    @property
    def wants_words(self) -> bool:
        """Whether the engine must return words."""
        return bool(self.words) or self.characters


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model, tier and language that the request's query selects, for any wire format; see ReadOptions."""

    model: str | None = None
    tier: str | None = None
    lang: str | None = None

    def apply(self, options: ReadOptions) -> ReadOptions:
        """Fill in model, tier and language where the options have none."""
        return replace(
            options, model=options.model or self.model, tier=options.tier or self.tier, lang=options.lang or self.lang
        )


@dataclass(frozen=True, slots=True)
class ReadTask:
    """One image for an engine to read, with its options.

    `deadline` is in monotonic seconds. The engine calls `check` between passes over the image and between lines.
    `own` is the PDF page's text layer, in the coordinates of the image, if requested.
    """

    image: Image
    options: ReadOptions = field(default_factory=ReadOptions)
    deadline: float = math.inf
    check: Check = no_check
    own: OwnText | None = None


@dataclass(frozen=True, slots=True)
class OwnText:
    """A PDF page's text layer in reading order, without lines that the drawn page does not show.

    `angle` is the clockwise rotation that makes the lines upright; `is_all` means that the page shows no other text.
    """

    lines: tuple[Line, ...]
    angle: int = 0
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class FileTask:
    """One encoded image file and its options, for an engine that decodes files itself (EngineTraits.decodes).

    Without options the engine only decodes, and returns the image in colour. Deadline and check are as in ReadTask.
    """

    data: bytes
    options: ReadOptions | None = field(default_factory=ReadOptions)
    deadline: float = math.inf
    check: Check = no_check


Task = ReadTask | FileTask


@dataclass(frozen=True, slots=True)
class Character:
    """One character of a word, with its own confidence and box."""

    text: str
    confidence: float
    box: Box


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: its first row and column, counted from 0, and the number of rows and columns it spans.

    Text in the same row is joined by spaces, rows by newlines; an empty cell has "". `lines` are the indices of the
    page's lines in the cell.
    """

    row: int
    column: int
    row_span: int
    column_span: int
    box: Box
    text: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table on a page: cells, in row order, that cover a grid of `rows` x `columns` without overlap."""

    box: Box
    rows: int
    columns: int
    cells: tuple[Cell, ...]


RegionType = Literal[
    "text", "title", "figure", "figure_caption", "table", "table_caption", "header", "footer", "reference", "equation"
]


@dataclass(frozen=True, slots=True)
class Region:
    """A region of the page's layout, such as a title or figure; `lines` are the indices of the page's lines in it.

    The confidence is 0 for a text region that was added for lines outside all regions of the layout model.
    """

    type: RegionType
    confidence: float
    box: Box
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Barcode:
    """A bar code or QR code on a page; the first corner of its box is the code's own top left, also if it is rotated.

    `type` is zxing-cpp's name of the format, such as QRCode, EAN13 or Code128. `text` shows bytes that are not text
    as zxing-cpp does.
    """

    type: str
    text: str
    box: Box


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a line, without spaces; its box is parallel to the line's. It has characters only if requested."""

    text: str
    confidence: float
    box: Box
    characters: tuple[Character, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text.

    `words` is None if words were not requested or the engine returns none; `source` is None unless the text layer was
    requested.
    """

    text: str
    confidence: float
    box: Box
    words: tuple[Word, ...] | None = None
    source: LineSource | None = None


@dataclass(frozen=True, slots=True)
class MaskedPart:
    """A part of a line that was replaced by stars; a match that runs over two lines gives one part in each.

    `line` is the line's index; `begin` and `end` (exclusive) are offsets in its text. The box has the line's height.
    """

    kind: MaskKind
    line: int
    begin: int
    end: int
    box: Box


FallbackReason = Literal["unreachable", "refused", "rejected", "failed", "late", "repeated", "unfinished"]
FALLBACK_REASONS: Final[tuple[FallbackReason, ...]] = get_args(FallbackReason)


@dataclass(frozen=True, slots=True)
class Fallback:
    """The engine that read a page in place of a remote model, and the reason."""

    engine: str
    reason: FallbackReason


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """The `time.monotonic` when an engine began a page, had detected its lines, and finished it."""

    began_s: float
    found_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Page:
    """The result of one page: lines and regions in reading order, tables and bar codes from top to bottom.

    All boxes are in the image as displayed, of size `width` x `height`; `angle` is the clockwise rotation (0, 90, 180
    or 270) that made the text upright; `number` counts pages from 1. With regions, every line is in a region.
    `masked` is None without masking; `times` are set if an engine read the page for this request. `markdown` is the
    page as a remote model wrote it, with tables as HTML and formulas as LaTeX; the boxes of its lines only show their
    order. It is None for other engines. `fallback` is set if an engine other than the service's read the page.
    """

    width: int
    height: int
    angle: int
    lines: tuple[Line, ...]
    number: int = 1
    tables: tuple[Table, ...] = ()
    regions: tuple[Region, ...] = ()
    masked: tuple[MaskedPart, ...] | None = None
    barcodes: tuple[Barcode, ...] = ()
    markdown: str | None = None
    fallback: Fallback | None = None
    times: EngineTimes | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The lines' texts, joined by newlines."""
        return "\n".join([line.text for line in self.lines])


@dataclass(frozen=True, slots=True)
class DecodedPage(Page):
    """The result of a FileTask. If the task has no options, it is the decoded image, and a page without lines."""

    decode_s: float = 0.0
    image: Image | None = None

    @classmethod
    def of(cls, page: Page, decode_s: float, image: Image | None = None) -> DecodedPage:
        """Make a DecodedPage from a page, the decoding time and the image."""
        return cls(**_values_of(page), decode_s=decode_s, image=image)

    def page(self) -> Page:
        """Convert this to a plain Page, without the image and the decoding time."""
        return Page(**_values_of(self))


def _values_of(page: Page) -> dict[str, Any]:
    return {member.name: getattr(page, member.name) for member in fields(Page)}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Which engine read a page, with which model, device, precision and execution provider."""

    name: str
    model: str
    version: str
    device: str
    precision: str
    provider: str


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds that one page took: decoding, waiting in the queue, in the engine, and in total."""

    decode_s: float
    queue_s: float
    engine_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The result for one image: page, engine, timing, and whether it came from the result cache."""

    page: Page
    engine: EngineInfo
    timing: Timing
    from_cache: bool = False


def total_of(readings: Sequence[Reading], total_s: float | None = None) -> Timing:
    """Add up the times of several pages; `total_s` replaces the summed total if they ran in parallel."""
    summed = Timing(*(sum(getattr(reading.timing, part.name) for reading in readings) for part in fields(Timing)))
    return summed if total_s is None else replace(summed, total_s=total_s)
