"""The options of docling-serve: what one request asks for, of a form or of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.engines.model.languages import AUTO, parse_language
from ocrsvc.errors import BadOption, CallerError
from ocrsvc.http.field_values import as_text, parse_decimal, parse_flag
from ocrsvc.http.json_body import parse_json
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.records import ReadOptions, TextLayer

MEMBERS: Final[Mapping[str, str]] = {
    "md": ".md",
    "json": ".json",
    "html": ".html",
    "text": ".txt",
    "doctags": ".doctags",
}
"""What `to_formats` takes here, and how the name of such a file ends in an archive."""

INBODY, ZIP, PRESIGNED = "inbody", "zip", "presigned_url"

_IMAGE_MODES: Final = ("placeholder", "embedded", "referenced")
_PIPELINES: Final = ("standard", "legacy")
# Each asks for what a picture shows, or for another model's opinion of the text.
_NOT_SERVED: Final = (
    "do_code_enrichment",
    "do_formula_enrichment",
    "do_picture_classification",
    "do_picture_description",
    "do_chart_extraction",
)
_MOST_LETTERS: Final = 1000
_MOST_VALUES: Final = 100
_LAST_PAGE: Final = 999_999_999

Values = Mapping[str, Sequence[object]]
"""What was sent under each name, in order."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What one request asks for.

    Attributes:
        to_formats: Of MEMBERS, in the order in which they were asked for.
        target: INBODY or ZIP.
        page_break: What stands between two pages in Markdown; empty for nothing.
        lang: The tag of the text's language; None for the service's own choice.
        tables: Whether tables are found.
        first, last: The pages that are read.
        text_layer: What becomes of the text that a PDF has itself.
        limit_s: Seconds that the documents may take, if the request says so.
        stops_at_error: Whether a page that cannot be read fails the document.
    """

    to_formats: tuple[str, ...] = ("md",)
    target: str = INBODY
    page_break: str = ""
    lang: str | None = None
    tables: bool = True
    first: int = 1
    last: int = _LAST_PAGE
    text_layer: TextLayer = "ignore"
    limit_s: float | None = None
    stops_at_error: bool = False

    @property
    def ranges(self) -> Ranges:
        """The pages, as the reader takes them."""
        return ALL if (self.first, self.last) == (1, _LAST_PAGE) else ((self.first, self.last),)

    def read_options(self, *, has_models: bool) -> ReadOptions:
        """What the reader is asked for. Without a model repository one model reads all that it can read."""
        # Tables are found on drawn pages alone.
        tables = self.tables and self.text_layer != "only"
        return ReadOptions(tables=tables, lang=self.lang if has_models else None, text_layer=self.text_layer)


def parse_conversion(values: Values, target: object) -> Conversion:
    """What these options ask for; names that are not known are left alone, as there.

    Raises:
        BadOption: A value is none that docling-serve takes, or asks for what is not made here.
    """
    _check_served(values)
    first, last = _page_range(values)
    return Conversion(
        _formats(values),
        _target(target),
        _text(values, "md_page_break_placeholder")[:_MOST_LETTERS],
        _language(values),
        _flag(values, "do_table_structure", default=True),
        first,
        last,
        _text_layer(values),
        _seconds(values, "document_timeout"),
        _flag(values, "abort_on_error", default=False),
    )


def values_of_form(fields: Sequence[tuple[str, object]]) -> Values:
    """The options among the fields of a form; a list is sent as a field for each value, or as JSON."""
    found: dict[str, list[object]] = {}
    for name, value in fields:
        values = found.setdefault(name, [])
        if len(values) >= _MOST_VALUES:
            raise BadOption(f"The option {name[:40]!r} is sent more than {_MOST_VALUES} times.", "Send it once.")
        values.append(value)
    return {name: _listed(values) for name, values in found.items()}


def values_of_json(options: object) -> Values:
    """The options in JSON; null counts as not sent. Raises BadOption for what is no object."""
    if not isinstance(options, Mapping):
        raise BadOption("options is no JSON object.", 'Send it as {"to_formats": ["md"]}.')
    return {name: value if isinstance(value, list) else [value] for name, value in options.items() if value is not None}


def _listed(values: list[object]) -> list[object]:
    if len(values) != 1 or not as_text(values[0]).lstrip().startswith("["):
        return values
    try:
        parsed = parse_json(b'{"values":' + as_text(values[0]).encode("utf-8", "replace") + b"}")["values"]
    except CallerError:
        return values
    return parsed if isinstance(parsed, list) else values


def _check_served(values: Values) -> None:
    for name in _NOT_SERVED:
        if _flag(values, name, default=False):
            raise BadOption(f"{name} is not done here: text and tables are read.", "Leave it out, or send false.")
    pipeline = _text(values, "pipeline") or "standard"
    if pipeline not in _PIPELINES:
        raise BadOption(f"pipeline is {pipeline[:40]!r}: accepted is {' or '.join(_PIPELINES)}.")
    mode = _text(values, "image_export_mode") or "placeholder"
    if mode not in _IMAGE_MODES:
        raise BadOption(f"image_export_mode is {mode[:40]!r}: accepted is one of {', '.join(_IMAGE_MODES)}.")


def _formats(values: Values) -> tuple[str, ...]:
    asked = tuple(dict.fromkeys(as_text(value).strip() for value in values.get("to_formats", ()))) or ("md",)
    for name in asked:
        if name not in MEMBERS:
            raise BadOption(f"to_formats names {name[:40]!r}: what is made here is {', '.join(MEMBERS)}.")
    return asked


def _target(target: object) -> str:
    kind = as_text(target).strip() if target is not None else INBODY
    if kind == PRESIGNED:
        # Clients of docling ask for this first, and for `inbody` when they read that it is not to be had.
        raise BadOption(
            "The target presigned_url needs artifact storage to be configured, and there is none here.",
            "Ask for the target inbody or zip.",
        )
    if kind not in {INBODY, ZIP}:
        raise BadOption(f"The target is {kind[:40]!r}: accepted is {INBODY} or {ZIP}.")
    return kind


def _page_range(values: Values) -> tuple[int, int]:
    sent = values.get("page_range", (1, _LAST_PAGE))
    try:
        first, last = (min(_whole(value), _LAST_PAGE) for value in sent)
        if not 1 <= first <= last:
            raise ValueError(sent)
    except ValueError as error:
        raise BadOption(
            "page_range is not two page numbers from 1, the first and the last, such as 1 and 5."
        ) from error
    return first, last


def _whole(value: object) -> int:
    text = as_text(value).strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise ValueError(text)
    return int(text)


def _text_layer(values: Values) -> TextLayer:
    """All is read, unless it is said that a PDF's own text counts where it is sound, or that nothing is read."""
    if not _flag(values, "do_ocr", default=True):
        return "only"
    return "ignore" if _flag(values, "force_ocr", default=True) else "auto"


def _language(values: Values) -> str | None:
    """One language is that of the text; several, or none, leave it to the service."""
    asked = [as_text(value).strip() for value in values.get("ocr_lang", ())]
    if not asked:
        return None
    try:
        tags = {parse_language(value) for value in asked}
    except ValueError as error:
        raise BadOption("ocr_lang names no language: accepted are tags such as en, de or zh.") from error
    return tags.pop() if len(tags) == 1 else AUTO


def _text(values: Values, name: str) -> str:
    sent = values.get(name, ())
    return as_text(sent[-1]) if sent else ""


def _flag(values: Values, name: str, *, default: bool) -> bool:
    text = _text(values, name)
    try:
        return parse_flag(text) if text else default
    except ValueError as error:
        raise BadOption(f"{name} is {text[:40]!r}: accepted is true or false.") from error


def _seconds(values: Values, name: str) -> float | None:
    text = _text(values, name)
    try:
        return parse_decimal(text) if text else None
    except ValueError as error:
        raise BadOption(f"{name} is {text[:40]!r}: accepted is a number of seconds.") from error


def as_members(conversion: Conversion) -> dict[str, Any]:
    """As JSON keeps it with a task; `Conversion(**…)` gives it back, but for lists in place of tuples."""
    return {name: getattr(conversion, name) for name in Conversion.__slots__}


def from_members(members: Mapping[str, Any]) -> Conversion:
    """What `as_members` gave."""
    return Conversion(**{**members, "to_formats": tuple(members["to_formats"])})
