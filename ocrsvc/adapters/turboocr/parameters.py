"""The parameters of TurboOCR's requests, which HTTP has in the query or in JSON, and gRPC in its messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from ocrsvc.adapters.turboocr.failures import Coded
from ocrsvc.errors import BadOption
from ocrsvc.http.field_values import as_text, parse_decimal, parse_flag
from ocrsvc.records import ReadOptions, TextLayer

Mode = Literal["ocr", "geometric", "auto", "auto_verified"]
OutputForm = Literal["json", "pdf", "md"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
TEXT_LAYERS: Final[Mapping[Mode, TextLayer]] = {
    "ocr": "ignore",
    "geometric": "only",
    "auto": "auto",
    "auto_verified": "merge",
}
LEAST_DPI, MOST_DPI, DEFAULT_DPI = 50, 600, 100

# What changes an answer, and is not made here.
_NOT_MADE: Final = ("editable", "movable", "fields", "images")
_OFF: Final = frozenset({"", "0", "false", "no", "off", "f", "n", "none"})


@dataclass(frozen=True, slots=True)
class PageParameters:
    """What is asked of each page.

    Attributes:
        layout: Its regions.
        reading_order: The places of its lines in the order in which they are read.
        blocks: The text of each region.
        tables: Its tables.
    """

    layout: bool = False
    reading_order: bool = False
    blocks: bool = False
    tables: bool = False

    def read_options(self, mode: Mode = "ocr") -> ReadOptions:
        """How the engine is to read."""
        return ReadOptions(layout=self.layout, tables=self.tables, text_layer=TEXT_LAYERS[mode])


@dataclass(frozen=True, slots=True)
class DocumentParameters:
    """What is asked of a document.

    Attributes:
        page: Of each of its pages.
        dpi: Pixels an inch of the frame in which boxes are given.
        mode: What becomes of the text that a PDF has itself.
        autorotate: Boxes are those of the page turned upright.
    """

    page: PageParameters
    dpi: int = DEFAULT_DPI
    mode: Mode = "ocr"
    autorotate: bool = False


PLAIN_DOCUMENT: Final = DocumentParameters(PageParameters())
"""All pages, and their text alone."""


@dataclass(frozen=True, slots=True)
class OutputParameters:
    """What a document's answer is.

    Attributes:
        form: JSON, a searchable PDF, or Markdown.
        as_pages: Markdown as JSON, page by page.
        min_confidence: Lines below it are left out of a searchable PDF.
    """

    form: OutputForm = "json"
    as_pages: bool = False
    min_confidence: float | None = None


PLAIN: Final = PageParameters()
"""The text alone."""


def first_values(fields: Iterable[tuple[str, object]]) -> dict[str, object]:
    """The first value under each name: what is in the query counts before what is in the body."""
    found: dict[str, object] = {}
    for name, value in fields:
        found.setdefault(name, value)
    return found


def page_parameters(sent: Mapping[str, object]) -> PageParameters:
    """What the parameters ask of each page. Raises BadOption, Coded."""
    blocks, tables = _flag(sent, "as_blocks"), _flag(sent, "tables")
    reading_order = _flag(sent, "reading_order") or blocks
    if _flag(sent, "formulas"):
        raise Coded("FORMULA_BACKEND_DISABLED", "Formulas are not read.", "Leave the parameter formulas out.")
    if not _flag(sent, "text", default=True):
        raise BadOption("A page is not read without its text.", "Leave the parameter text out.")
    return PageParameters(_flag(sent, "layout") or reading_order or tables, reading_order, blocks, tables)


def document_parameters(sent: Mapping[str, object]) -> DocumentParameters:
    """What the parameters ask of a document. Raises BadOption, Coded."""
    page = page_parameters(sent)
    for name in _NOT_MADE:
        if as_text(sent.get(name, "")).strip().lower() not in _OFF:
            raise BadOption(f"The parameter {name} asks for what is not made here.", "Leave it out.")
    sent_mode = as_text(sent.get("mode", ""))
    # As TurboOCR 2: an unknown mode is the usual one.
    mode: Mode = next((mode for mode in MODES if mode == sent_mode), "ocr")
    return DocumentParameters(page, _dpi(sent), mode, _flag(sent, "autorotate"))


def output_parameters(sent: Mapping[str, object]) -> OutputParameters:
    """What the parameters ask for as a document's answer. Raises BadOption."""
    output, markdown = as_text(sent.get("output", "")) or "json", _flag(sent, "markdown")
    as_pages, lowest = _flag(sent, "as_pages"), as_text(sent.get("min_confidence", "")).strip()
    if output not in {"json", "pdf"}:
        raise BadOption("The parameter output is json or pdf.")
    if output == "pdf" and (markdown or _flag(sent, "autorotate")):
        raise BadOption("The parameter output=pdf goes neither with markdown=1 nor with autorotate=1.", "Send one.")
    if (as_pages and not markdown) or (lowest and output != "pdf"):
        raise BadOption("The parameter as_pages goes with markdown=1 alone, min_confidence with output=pdf alone.")
    return OutputParameters("md" if markdown else "pdf" if output == "pdf" else "json", as_pages, _confidence(lowest))


def check_markdown_parameters(sent: Mapping[str, object]) -> None:
    """Raises BadOption where Markdown of an image is to refer to files."""
    if not _flag(sent, "embed", default=True):
        raise BadOption("Markdown that refers to files is not made.", "Leave the parameter embed out.")


def _flag(sent: Mapping[str, object], name: str, *, default: bool = False) -> bool:
    text = as_text(sent.get(name, "")).strip()
    try:
        return parse_flag(text) if text else default
    except ValueError as error:
        raise BadOption(
            f"The parameter {name} is {text[:40]!r}: accepted is 0, 1, true, false, on, off, yes or no."
        ) from error


def _dpi(sent: Mapping[str, object]) -> int:
    text = as_text(sent.get("dpi", "")).strip() or str(DEFAULT_DPI)
    dpi = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_DPI)) else 0
    if not LEAST_DPI <= dpi <= MOST_DPI:
        raise Coded("INVALID_DPI", f"DPI must be between {LEAST_DPI} and {MOST_DPI}.")
    return dpi


def _confidence(text: str) -> float | None:
    if not text:
        return None
    try:
        confidence = parse_decimal(text)
    except ValueError:
        confidence = -1.0
    if not 0 <= confidence <= 1:
        raise BadOption("The parameter min_confidence is between 0 and 1.")
    return confidence
