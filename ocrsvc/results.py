"""What travels between packages: images, tasks, pages, readings. All frozen; units and origins are stated here, once.

Coordinates are pixels of the image *as displayed* (after its EXIF orientation, before any other turn); the origin is
the top left corner, x grows to the right, y grows downwards. Angles are degrees, clockwise. Durations are seconds.
Confidences lie in [0, 1].
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
"""(H, W) gray or (H, W, 3) in the order blue, green, red; uint8."""

Point = tuple[float, float]
Box = tuple[Point, Point, Point, Point]
"""Four corners, clockwise, beginning at the corner where reading starts (for upright text: top left).

For text from right to left too: the first edge is the upper one."""

Rectangle = tuple[int, int, int, int]
"""x, y, width and height in pixels, from the top left corner."""

Rotate = Literal["auto", "0", "90", "180", "270"]

Decoder = Literal["greedy", "beam"]

Spaces = Literal["auto", "model", "visible"]

Words = bool | Literal["segmented"]
Barcodes = bool | Literal["only"]

TextLayer = Literal["ignore", "auto", "only", "merge"]
LineSource = Literal["text_layer", "ocr"]
"""Where a line comes from: the text that a PDF has itself, or the engine."""

MaskKind = Literal["id", "phone", "card", "mail", "own"]
MASK_KINDS: Final[tuple[MaskKind, ...]] = get_args(MaskKind)
"""What can be masked in an answer; own are the patterns of the operator."""

MIN_SIDE_PX: Final = 16
MAX_SIDE_PX: Final = 65_535
"""The longest sides of a smaller copy that an engine can be asked to read."""

Check = Callable[[], object]
"""Raises DeadlineExceeded or ClientGone once nobody waits for the work any more; for any thread, and cheap enough to be
called before every line."""


def no_check() -> None:
    """The check of work that nobody gives up."""


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """One decoded page image, C-contiguous, upright as displayed; its format is as "jpeg".

    The frame is the page's size in the pixels in which requests and answers place things on it, where it was drawn at
    another resolution; None where these are its own pixels.
    """

    pixels: Pixels
    format: str
    frame: tuple[int, int] | None = None

    @property
    def height(self) -> int:
        """Rows, in pixels."""
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        """Columns, in pixels."""
        return int(self.pixels.shape[1])


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What one request asks for. It travels with the request and never touches the engine's own state.

    Attributes:
        rotate: "auto" lets the engine find how the page is turned; a number is the clockwise turn that makes the page
            upright, and switches the search off.
        detect: False reads the whole image as one line.
        upright_boxes: True asks for boxes with horizontal and vertical sides (Tr: flag 1; False is flag 2).
        max_side: Longest side in pixels of the image that the engine gets to see; larger ones are shrunk first, and the
            boxes are scaled back. None: the engine decides.
        min_confidence: Lines below this are left out. None: the engine's own threshold.
        decoder: "greedy" takes the likeliest path through a line, "beam" searches for the likeliest text, where it can.
        unwarp: True lets an engine that can flatten a page whose lines show that it is curved; False reads it as it is.
        tables: True asks for the tables on the page as well.
        spaces: Between Chinese and Latin characters: "auto" decides by the gaps of the whole page and the recognizer's
            own spaces, "model" leaves it to the recognizer, "visible" puts one wherever a gap is seen. Engines whose
            recognizer does not say where its characters stand take no notice.
        words: True gives each line its words, Chinese by character; "segmented" joins Chinese characters to words by a
            dictionary, which needs the package jieba. Engines that do not know where characters stand give none.
        characters: True gives each word its characters; it asks for words, too.
        layout: True asks for the regions of the page as well.
        barcodes: True asks for the bar codes on the page as well; "only" asks for them and for no text.
        region: The part of each page that is read: x, y, width and height in pixels of the page as displayed; None is
            all of it. What of it lies outside the page is left out.
        text_layer: What becomes of the text that a page of a PDF has itself. "ignore": nothing, the engine reads the
            drawn page. "auto": it is taken where it is sound, and the engine reads pages on which much stands besides.
            "merge": the engine reads whatever stands besides. "only": it is all that is taken, and no engine reads.
        mask: What is to be masked in the answer; engines and the result cache never know.
        model: The model that is to read, as `models/model_name.py` parses it; None leaves it to `tier` and
            `lang`, and without those to the service.
        tier: How large a model is to read.
        lang: The language of the text, as a tag in small letters; "auto" lets the engine choose a recognizer by line.
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
        """Whether lines are to have words."""
        return bool(self.words) or self.characters


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model, tier and language that a request asks for beside its format's options; see ReadOptions."""

    model: str | None = None
    tier: str | None = None
    lang: str | None = None

    def apply(self, options: ReadOptions) -> ReadOptions:
        """The options with what they do not say themselves."""
        return replace(
            options, model=options.model or self.model, tier=options.tier or self.tier, lang=options.lang or self.lang
        )


@dataclass(frozen=True, slots=True)
class ReadTask:
    """One image and what is asked of it: what the queue holds and an engine reads.

    From the deadline on, in monotonic seconds, nobody waits for the answer. The engine calls the check between passes
    over the image and between lines. `own` is text that the page has already, in the frame of the image, if asked for.
    """

    image: Image
    options: ReadOptions = field(default_factory=ReadOptions)
    deadline: float = math.inf
    check: Check = no_check
    own: OwnText | None = None


@dataclass(frozen=True, slots=True)
class OwnText:
    """The text that a page of a PDF has itself, as far as it was found to be what the page shows, in reading order.

    Turned by the angle its lines are upright; `is_all` says that nothing else is to be read on the page.
    """

    lines: tuple[Line, ...]
    angle: int = 0
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class FileTask:
    """One image file and what is asked of it, for an engine that decodes by itself (EngineTraits.decodes).

    Without options the image itself is asked for, in colour; deadline and check are as of a ReadTask.
    """

    data: bytes
    options: ReadOptions | None = field(default_factory=ReadOptions)
    deadline: float = math.inf
    check: Check = no_check


Task = ReadTask | FileTask


@dataclass(frozen=True, slots=True)
class Character:
    """One character of a word, its confidence in [0, 1], and where it stands."""

    text: str
    confidence: float
    box: Box


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table, which begins in this row and column of the grid, from 0, and takes as many as its spans.

    Its text is pieces of one row joined by blanks, rows by newlines, "" where nothing stands in it; `lines` says which
    of the page's lines that is, from 0.
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
    """A table found on a page: a grid of `rows` x `columns`, covered by its cells once, row by row."""

    box: Box
    rows: int
    columns: int
    cells: tuple[Cell, ...]


RegionType = Literal[
    "text",
    "title",
    "figure",
    "figure_caption",
    "table",
    "table_caption",
    "header",
    "footer",
    "reference",
    "equation",
]


@dataclass(frozen=True, slots=True)
class Region:
    """A region of a page, and which of its lines are in it, from 0: none in most figures.

    The confidence is 0 for text that the layout model took for nothing.
    """

    type: RegionType
    confidence: float
    box: Box
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Barcode:
    """A bar code or QR code on a page, its box from its own top left corner on.

    The type is zxing-cpp's name of the format, such as QRCode, EAN13, Code128; so is what it shows for bytes that are
    no text.
    """

    type: str
    text: str
    box: Box


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a line, without spaces; its box runs along the line's, and characters are there if asked for."""

    text: str
    confidence: float
    box: Box
    characters: tuple[Character, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text.

    Its words are None where they were not asked for, or where the engine knows none; its source is None unless the text
    layer was asked for.
    """

    text: str
    confidence: float
    box: Box
    words: tuple[Word, ...] | None = None
    source: LineSource | None = None


@dataclass(frozen=True, slots=True)
class MaskedPart:
    """A part of a line whose characters were replaced by stars; what goes on in the next line is a part of each.

    The line is counted from 0, its characters are those from `begin` to before `end`, its box has the line's height.
    """

    kind: MaskKind
    line: int
    begin: int
    end: int
    box: Box


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """When an engine was at work on a page, on `time.monotonic`: since when, when it had its lines, and until when."""

    began_s: float
    found_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Page:
    """What was read on one page: its lines and regions in reading order, tables and bar codes from top to bottom.

    Its size is that of the image as displayed, the frame of all boxes; the angle is the clockwise turn, 0, 90, 180 or
    270, by which it was read; its number in the document is from 1. Every line is in one of the regions, if these were
    asked for. `masked` is None where nothing was to be masked; `times` are of the engine that read it just now.
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
    times: EngineTimes | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The lines' texts, joined by newlines."""
        return "\n".join([line.text for line in self.lines])


@dataclass(frozen=True, slots=True)
class DecodedPage(Page):
    """The answer to a FileTask: a page in the frame of its image, or no lines and the image, if asked for."""

    decode_s: float = 0.0
    image: Image | None = None

    @classmethod
    def of(cls, page: Page, decode_s: float, image: Image | None = None) -> DecodedPage:
        """A page that was read of a file."""
        return cls(**_values_of(page), decode_s=decode_s, image=image)

    def page(self) -> Page:
        """The page alone."""
        return Page(**_values_of(self))


def _values_of(page: Page) -> dict[str, Any]:
    return {member.name: getattr(page, member.name) for member in fields(Page)}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Which engine answered: its name, model, model version, device, precision and execution provider."""

    name: str
    model: str
    version: str
    device: str
    precision: str
    provider: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Where one page's time went, in seconds: decoding, waiting in the queue, in the engine, and all together."""

    decode_s: float
    queue_s: float
    engine_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer to one image: its page, who read it, how long that took, and whether it came from the cache."""

    page: Page
    engine: EngineInfo
    timing: Timing
    from_cache: bool = False


def total_of(readings: Sequence[Reading], total_s: float | None = None) -> Timing:
    """The times of several pages added up; `total_s` instead of the sum is how long they took side by side."""
    summed = Timing(*(sum(getattr(reading.timing, part.name) for reading in readings) for part in fields(Timing)))
    return summed if total_s is None else replace(summed, total_s=total_s)
