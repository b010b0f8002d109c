"""TurboOCR's parameters in a query, JSON or gRPC messages, and raw pixels."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field
from werkzeug.datastructures import Headers

from ocrsvc.adapters.context import CodedError, NotServed, RequestValues
from ocrsvc.errors import BadOption
from ocrsvc.http.field_values import as_text
from ocrsvc.results import ReadOptions, TextLayer
from ocrsvc.serving.memory_budget import Share

Mode = Literal["ocr", "geometric", "auto", "auto_verified"]
MODES: Final[dict[Mode, TextLayer]] = {"ocr": "ignore", "geometric": "only", "auto": "auto", "auto_verified": "merge"}
"""How each mode uses a PDF's text layer."""
MIN_DPI, MAX_DPI, DEFAULT_DPI = 50, 600, 100

P = TypeVar("P", bound="PageParameters")
_Mode = Annotated[Mode, BeforeValidator(lambda mode: mode if mode in tuple(MODES) else "ocr")]
_NotServedOrNone = Annotated[NotServed, BeforeValidator(lambda value: False if value == "none" else value)]

MAX_SIDE_PX: Final = 16_384
HEADERS: Final = {"width": "X-Width", "height": "X-Height", "channels": "X-Channels"}
"""The query parameters for an image's size, each with the header that TurboOCR 2 used in its place."""
_COLOUR_CHANNELS: Final = 3
_WHOLE: Final = re.compile(r"[0-9]{1,9}")


class PageParameters(RequestValues):
    """What the response contains per page; `as_blocks` adds the text of each region."""

    layout: bool = False
    reading_order: bool = False
    as_blocks: bool = False
    tables: bool = False
    formulas: bool = False
    text: bool = True
    # False would mean Markdown with links to files, and is refused.
    embed: bool = True

    @property
    def has_order(self) -> bool:
        """Whether the response has the reading order."""
        return self.reading_order or self.as_blocks

    @property
    def has_layout(self) -> bool:
        """Whether the response has regions."""
        return self.layout or self.has_order or self.tables

    def read_options(self, mode: Mode = "ocr") -> ReadOptions:
        """Convert these parameters to the reader's options."""
        return ReadOptions(layout=self.has_layout, tables=self.tables, text_layer=MODES[mode])


class DocumentParameters(PageParameters):
    """The parameters of a document.

    Boxes are in pixels of the page at `dpi`, turned upright with `autorotate`. `mode` says how a PDF's text layer is
    used; as in TurboOCR 2, an unknown mode means the default.
    """

    dpi: int = DEFAULT_DPI
    mode: _Mode = "ocr"
    autorotate: bool = False
    output: Literal["json", "pdf"] = "json"
    markdown: bool = False
    as_pages: bool = False
    min_confidence: Annotated[float | None, Field(ge=0, le=1)] = None
    editable: _NotServedOrNone = False
    movable: _NotServedOrNone = False
    fields: _NotServedOrNone = False
    images: _NotServedOrNone = False

    @property
    def form(self) -> Literal["json", "pdf", "md"]:
        """The response's format."""
        return "md" if self.markdown else self.output


def first_values(fields: Iterable[tuple[str, object]]) -> dict[str, object]:
    """The first value of each name; a query field precedes a body field of the same name."""
    return dict(reversed(tuple(fields)))


def page_parameters(values: Mapping[str, object]) -> PageParameters:
    """Validate the parameters of pages. Raises BadOption, CodedError."""
    return _checked(PageParameters.from_values(values))


def document_parameters(values: Mapping[str, object]) -> DocumentParameters:
    """Validate the parameters of a document. Raises BadOption, CodedError."""
    dpi = str(values.get("dpi") or DEFAULT_DPI)
    if not (dpi.isascii() and dpi.isdecimal() and len(dpi) <= 3 and MIN_DPI <= int(dpi) <= MAX_DPI):
        raise CodedError("INVALID_DPI", f"DPI must be between {MIN_DPI} and {MAX_DPI}.")
    parameters = _checked(DocumentParameters.from_values(values))
    is_pdf = parameters.output == "pdf"
    if is_pdf and (parameters.markdown or parameters.autorotate):
        raise BadOption("output=pdf excludes markdown=1 and autorotate=1.", "Send one of them.")
    if (parameters.as_pages and not parameters.markdown) or (parameters.min_confidence is not None and not is_pdf):
        raise BadOption("as_pages needs markdown=1, min_confidence needs output=pdf.")
    return parameters


def _checked(parameters: P) -> P:
    if parameters.formulas:
        raise CodedError("FORMULA_BACKEND_DISABLED", "Formulas are not supported.", "Omit the parameter formulas.")
    if not parameters.text or not parameters.embed:
        raise BadOption("text=0, layout_only and embed=0 are not supported.", "Omit them.")
    return parameters


def parse_size(parameters: Mapping[str, object], headers: Headers) -> tuple[int, int, int]:
    """Width and height in pixels and channels, from the query or the headers. Raises CodedError."""
    width, height, channels = (_size(name, parameters, headers) for name in HEADERS)
    if width is None or height is None:
        raise CodedError("MISSING_DIMENSIONS", "Missing width and height, or the headers X-Width and X-Height")
    return width, height, _COLOUR_CHANNELS if channels is None else channels


def _size(name: str, parameters: Mapping[str, object], headers: Headers) -> int | None:
    in_query, in_header = as_text(parameters.get(name, "")).strip(), headers.get(HEADERS[name], "").strip()
    for text in (in_query, in_header):
        if text and not _WHOLE.fullmatch(text):
            raise CodedError("INVALID_HEADER", f"Invalid {name} or {HEADERS[name]} header value")
    if in_query and in_header and int(in_query) != int(in_header):
        raise CodedError("DIMENSION_CONFLICT", f"The parameter {name} and the header {HEADERS[name]} differ")
    return int(in_query or in_header) if in_query or in_header else None


def check_size(width: int, height: int, channels: int) -> int:
    """Check the dimensions and return the size in bytes. Raises CodedError."""
    if width <= 0 or height <= 0 or channels not in {1, _COLOUR_CHANNELS}:
        raise CodedError("INVALID_DIMENSIONS", "Invalid dimensions or channels")
    if max(width, height) > MAX_SIDE_PX:
        raise CodedError("DIMENSIONS_TOO_LARGE", f"Dimensions {width}x{height} exceed maximum of {MAX_SIDE_PX}")
    return width * height * channels


def to_image_file(pixels: bytes, size: tuple[int, int, int], share: Share) -> bytes:
    """Convert pixels to a PNM file, counted in the memory `share`. Raises CodedError, QueueFull, BodyTooLarge."""
    size_bytes = check_size(*size)
    if len(pixels) != size_bytes:
        raise CodedError("BODY_SIZE_MISMATCH", f"Body size mismatch: expected {size_bytes} bytes, got {len(pixels)}")
    width, height, channels = size
    with share.holding(size_bytes):
        share.take(size_bytes)
        header = b"P%d\n%d %d\n255\n" % (6 if channels == _COLOUR_CHANNELS else 5, width, height)
        return header + (swap_colours(pixels) if channels == _COLOUR_CHANNELS else pixels)


def swap_colours(pixels: bytes) -> bytes:
    """Convert BGR to RGB, or back."""
    swapped = np.empty((len(pixels) // 3, 3), np.uint8)
    # Copy with numpy, which releases the GIL meanwhile.
    swapped[:] = np.frombuffer(pixels, np.uint8).reshape(-1, 3)[:, ::-1]
    return swapped.tobytes()
