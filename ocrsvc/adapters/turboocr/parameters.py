"""TurboOCR's parameters, in a query, in JSON or in gRPC's messages, and bare pixels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, TypeVar, get_args

import numpy as np
from pydantic import BeforeValidator, Field
from werkzeug.datastructures import Headers

from ocrsvc.adapters.context import Coded, NotServed, RequestValues
from ocrsvc.errors import BadOption
from ocrsvc.http.field_values import as_text
from ocrsvc.results import ReadOptions, TextLayer
from ocrsvc.serving.memory_budget import Share

Mode = Literal["ocr", "geometric", "auto", "auto_verified"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
TEXT_LAYERS: Final[Mapping[Mode, TextLayer]] = {
    "ocr": "ignore",
    "geometric": "only",
    "auto": "auto",
    "auto_verified": "merge",
}
LEAST_DPI, MOST_DPI, DEFAULT_DPI = 50, 600, 100

P = TypeVar("P", bound="PageParameters")
_Mode = Annotated[Mode, BeforeValidator(lambda sent: sent if sent in MODES else "ocr")]
_NotMade = Annotated[NotServed, BeforeValidator(lambda sent: False if sent == "none" else sent)]

MAX_SIDE_PX: Final = 16_384
HEADERS: Final = {"width": "X-Width", "height": "X-Height", "channels": "X-Channels"}
"""TurboOCR 2's headers of the size, by the names of the later query parameters."""
_COLOUR: Final = 3
_WHOLE: Final = re.compile(r"[0-9]{1,9}")


class PageParameters(RequestValues):
    """The requested parts of a page's answer; `as_blocks` is the text of each region."""

    layout: bool = False
    reading_order: bool = False
    as_blocks: bool = False
    tables: bool = False
    formulas: bool = False
    text: bool = True
    # Markdown that refers to files is not made.
    embed: bool = True

    @property
    def has_order(self) -> bool:
        """Whether the answer has the reading order."""
        return self.reading_order or self.as_blocks

    @property
    def has_layout(self) -> bool:
        """Whether the answer has regions."""
        return self.layout or self.has_order or self.tables

    def read_options(self, mode: Mode = "ocr") -> ReadOptions:
        """The reading options."""
        return ReadOptions(layout=self.has_layout, tables=self.tables, text_layer=TEXT_LAYERS[mode])


class DocumentParameters(PageParameters):
    """The parameters of a document.

    Boxes are for pages drawn at `dpi`, with `autorotate` for the page turned upright. `mode` says how a PDF's own text
    is used; an unknown one is the default, as in TurboOCR 2.
    """

    dpi: int = DEFAULT_DPI
    mode: _Mode = "ocr"
    autorotate: bool = False
    output: Literal["json", "pdf"] = "json"
    markdown: bool = False
    as_pages: bool = False
    min_confidence: Annotated[float | None, Field(ge=0, le=1)] = None
    editable: _NotMade = False
    movable: _NotMade = False
    fields: _NotMade = False
    images: _NotMade = False

    @property
    def form(self) -> Literal["json", "pdf", "md"]:
        """The form of the answer."""
        return "md" if self.markdown else self.output


def first_values(fields: Iterable[tuple[str, object]]) -> dict[str, object]:
    """The first value under each name: the query counts before the body."""
    return dict(reversed(tuple(fields)))


def page_parameters(sent: Mapping[str, object]) -> PageParameters:
    """The checked parameters of pages. Raises BadOption, Coded."""
    return _checked(PageParameters.from_sent(sent))


def document_parameters(sent: Mapping[str, object]) -> DocumentParameters:
    """The checked parameters of a document. Raises BadOption, Coded."""
    dpi = str(sent.get("dpi") or DEFAULT_DPI)
    if not (dpi.isascii() and dpi.isdecimal() and len(dpi) <= 3 and LEAST_DPI <= int(dpi) <= MOST_DPI):
        raise Coded("INVALID_DPI", f"DPI must be between {LEAST_DPI} and {MOST_DPI}.")
    asked = _checked(DocumentParameters.from_sent(sent))
    if asked.output == "pdf" and (asked.markdown or asked.autorotate):
        raise BadOption("The parameter output=pdf goes neither with markdown=1 nor with autorotate=1.", "Send one.")
    if (asked.as_pages and not asked.markdown) or (asked.min_confidence is not None and asked.output != "pdf"):
        raise BadOption("The parameter as_pages goes with markdown=1 alone, min_confidence with output=pdf alone.")
    return asked


def _checked(asked: P) -> P:
    if asked.formulas:
        raise Coded("FORMULA_BACKEND_DISABLED", "Formulas are not read.", "Leave the parameter formulas out.")
    if not asked.text or not asked.embed:
        raise BadOption("A page is not read without its text, nor with files beside its Markdown.", "Leave them out.")
    return asked


def read_size(parameters: Mapping[str, object], headers: Headers) -> tuple[int, int, int]:
    """Width, height and channels, from the query or the headers. Raises Coded."""
    width, height, channels = (_size(name, parameters, headers) for name in HEADERS)
    if width is None or height is None:
        raise Coded("MISSING_DIMENSIONS", "Missing width and height, or the headers X-Width and X-Height")
    return width, height, _COLOUR if channels is None else channels


def _size(name: str, parameters: Mapping[str, object], headers: Headers) -> int | None:
    in_query, in_header = as_text(parameters.get(name, "")).strip(), headers.get(HEADERS[name], "").strip()
    for text in (in_query, in_header):
        if text and not _WHOLE.fullmatch(text):
            raise Coded("INVALID_HEADER", f"Invalid {name} or {HEADERS[name]} header value")
    if in_query and in_header and int(in_query) != int(in_header):
        raise Coded("DIMENSION_CONFLICT", f"The parameter {name} and the header {HEADERS[name]} differ")
    return int(in_query or in_header) if in_query or in_header else None


def check_size(width: int, height: int, channels: int) -> int:
    """The size of the pixels in bytes. Raises Coded."""
    if width <= 0 or height <= 0 or channels not in {1, _COLOUR}:
        raise Coded("INVALID_DIMENSIONS", "Invalid dimensions or channels")
    if max(width, height) > MAX_SIDE_PX:
        raise Coded("DIMENSIONS_TOO_LARGE", f"Dimensions {width}x{height} exceed maximum of {MAX_SIDE_PX}")
    return width * height * channels


def to_image_file(pixels: bytes, size: tuple[int, int, int], share: Share) -> bytes:
    """The pixels as a PNM file, counted in the share. Raises Coded, QueueFull, BodyTooLarge."""
    size_bytes = check_size(*size)
    if len(pixels) != size_bytes:
        raise Coded("BODY_SIZE_MISMATCH", f"Body size mismatch: expected {size_bytes} bytes, got {len(pixels)}")
    width, height, channels = size
    with share.holding(size_bytes):
        share.take(size_bytes)
        header = b"P%d\n%d %d\n255\n" % (6 if channels == _COLOUR else 5, width, height)
        return header + (swap_colours(pixels) if channels == _COLOUR else pixels)


def swap_colours(pixels: bytes) -> bytes:
    """Blue, green, red to red, green, blue, or back."""
    swapped = np.empty((len(pixels) // 3, 3), np.uint8)
    # numpy lets other threads run meanwhile.
    swapped[:] = np.frombuffer(pixels, np.uint8).reshape(-1, 3)[:, ::-1]
    return swapped.tobytes()
