"""Requests to docling-serve: files of a form, or sources of JSON, and options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from ocrsvc.adapters.context import AdapterContext, NotServed, RequestValues
from ocrsvc.engines.model.languages import AUTO, parse_language
from ocrsvc.errors import BadOption, BodyTooLarge, CallerError, NothingSent
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import as_text
from ocrsvc.http.json_body import parse_any_json
from ocrsvc.http.parsed_body import Content
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.results import ReadOptions, TextLayer

ENDINGS: Final[Mapping[str, str]] = {
    "md": ".md",
    "json": ".json",
    "html": ".html",
    "text": ".txt",
    "doctags": ".doctags",
}
"""The formats of `to_formats`, and the suffixes of their files."""

_MOST_FILES: Final = 100
_MOST_VALUES: Final = 100
_LONGEST_BREAK: Final = 1000
_LONGEST_NAME: Final = 200
_LAST_PAGE: Final = 999_999_999
_WHOLE: Final = re.compile("[0-9]{1,20}")
_HOW: Final = 'Send it as {"kind": "file", "base64_string": "…", "filename": "a.pdf"}.'


def _listed(sent: object) -> list[str]:
    """The values of an option that takes several: a form has them one by one, or as JSON."""
    values: Any = sent if isinstance(sent, list) else [sent]
    if len(values) == 1 and as_text(values[0]).startswith("["):
        try:
            values = parse_any_json(as_text(values[0]).encode("utf-8", "replace"))
        except CallerError as error:
            raise ValueError("the list is no JSON") from error
    if len(values) > _MOST_VALUES:
        raise ValueError(f"there are more than {_MOST_VALUES} values")
    return [as_text(value).strip() for value in values]


def _language(sent: object) -> str:
    """One language is the text's; several leave the choice to the service."""
    tags = {parse_language(value) for value in _listed(sent)}
    return tags.pop() if len(tags) == 1 else AUTO


def _range(sent: object) -> tuple[int, int]:
    values = _listed(sent)
    numbers = [min(int(value), _LAST_PAGE) for value in values if _WHOLE.fullmatch(value)]
    if not len(values) == len(numbers) == 2 or not 1 <= numbers[0] <= numbers[1]:
        raise ValueError("accepted are two page numbers from 1, the first and the last, such as 1 and 5")
    return numbers[0], numbers[1]


def _short(text: str) -> str:
    return text[:_LONGEST_BREAK]


class Conversion(RequestValues):
    """The options of one request; a task keeps them.

    Without `ocr` only a PDF's own text is used; without `force_ocr` it is used where it is sound.
    """

    to_formats: Annotated[tuple[Literal["md", "json", "html", "text", "doctags"], ...], BeforeValidator(_listed)] = (
        "md",
    )
    target: Literal["inbody", "zip"] = "inbody"
    page_break: Annotated[str, Field(alias="md_page_break_placeholder"), AfterValidator(_short)] = ""
    lang: Annotated[str | None, Field(alias="ocr_lang"), PlainValidator(_language)] = None
    tables: Annotated[bool, Field(alias="do_table_structure")] = True
    pages: Annotated[tuple[int, int], Field(alias="page_range"), BeforeValidator(_range)] = (1, _LAST_PAGE)
    ocr: Annotated[bool, Field(alias="do_ocr")] = True
    force_ocr: bool = True
    limit_s: Annotated[float | None, Field(alias="document_timeout", ge=0)] = None
    stops_at_error: Annotated[bool, Field(alias="abort_on_error")] = False
    pipeline: Literal["standard", "legacy"] = "standard"
    image_export_mode: Literal["placeholder", "embedded", "referenced"] = "placeholder"
    # Each needs a model that is not here.
    do_code_enrichment: NotServed = False
    do_formula_enrichment: NotServed = False
    do_picture_classification: NotServed = False
    do_picture_description: NotServed = False
    do_chart_extraction: NotServed = False

    @property
    def ranges(self) -> Ranges:
        """The requested pages."""
        return ALL if self.pages == (1, _LAST_PAGE) else (self.pages,)

    def read_options(self, *, has_models: bool) -> ReadOptions:
        """The reading options; a language only where there is a model repository."""
        layer: TextLayer = "only" if not self.ocr else "ignore" if self.force_ocr else "auto"
        # Tables are found on drawn pages alone.
        tables, lang = self.tables and layer != "only", self.lang if has_models else None
        return ReadOptions(tables=tables, lang=lang, text_layer=layer)


@dataclass(frozen=True, slots=True)
class Document:
    """One file and its name."""

    filename: str
    data: bytes


def parse_conversion(values: Mapping[str, object], target: object) -> Conversion:
    """The checked options. Raises BadOption."""
    if target == "presigned_url":
        # docling's clients ask for this first, and for `inbody` after this answer.
        text = "The target presigned_url needs artifact storage to be configured, and there is none here."
        raise BadOption(text, "Ask for the target inbody or zip.")
    return Conversion.from_sent({**values, "target": target})


def values_of_form(fields: Sequence[tuple[str, object]]) -> dict[str, object]:
    """The options among the fields of a form: the last value of each, and all of those that take several."""
    found: dict[str, object] = dict(fields)
    return found | {
        name: [value for sent, value in fields if sent == name]
        for name in ("to_formats", "ocr_lang", "page_range")
        if name in found
    }


def request_of_form(content: Content) -> tuple[list[Document], Conversion]:
    """The documents and options of a form with `files`. Raises BadOption, NothingSent, BodyTooLarge."""
    conversion = parse_conversion(values_of_form(content.fields), content.text("target_type"))
    _check_no_callbacks(content.text("callbacks"))
    parts = [part for part in content.files if part.name == "files"]
    _check_count(len(parts), "a file in the field 'files'")
    documents = [Document(_name_of(part.filename or "", place), part.data) for place, part in enumerate(parts)]
    return documents, conversion


def request_of_json(content: Content, context: AdapterContext) -> tuple[list[Document], Conversion]:
    """The documents and options of JSON with `sources`. Raises as `request_of_form` and `fetch`, BadBase64."""
    members = content.members
    target, options = members.get("target"), members.get("options") or {}
    if not isinstance(options, Mapping):
        raise BadOption("options is no JSON object.", 'Send it as {"to_formats": ["md"]}.')
    conversion = parse_conversion(options, target.get("kind") if isinstance(target, Mapping) else target)
    sources = _sources(members)
    _check_count(len(sources), "an entry in sources")
    _check_no_callbacks(members.get("callbacks"))
    documents = [_document(source, place, content, context) for place, source in enumerate(sources)]
    return documents, conversion


def _sources(members: Mapping[str, object]) -> list[Mapping[str, Any]]:
    """The entries of `sources`, and of the lists that the version v1alpha has instead."""
    found: list[Any] = []
    for name in ("sources", "file_sources", "http_sources"):
        listed = members.get(name) or []
        if not isinstance(listed, list):
            raise BadOption(f"{name} is no list.", "Send a list of sources.")
        found += listed
    if not all(isinstance(source, Mapping) for source in found):
        raise BadOption("A source is no JSON object.", _HOW)
    return found


def _document(source: Mapping[str, Any], place: int, content: Content, context: AdapterContext) -> Document:
    url, sent, name = source.get("url"), source.get("base64_string"), source.get("filename")
    if isinstance(url, str):
        if source.get("headers"):
            raise BadOption("headers of a source are not sent on to another host.", "Send the file itself.")
        file = context.fetch(url, _HOW)
        return Document(_name_of(file.name, place), file.data)
    if source.get("kind", "file") != "file" or not isinstance(sent, str):
        raise BadOption(f"Source {place} is no file with base64_string.", _HOW)
    return Document(_name_of(name if isinstance(name, str) else "", place), decode_base64(sent, content.share))


def _check_no_callbacks(sent: object) -> None:
    if sent:
        raise BadOption("callbacks are not called here.", "Ask /v1/status/poll, or leave a job with POST /v1/jobs.")


def _check_count(count: int, what: str) -> None:
    if not count:
        raise NothingSent(f"The request carries no document: it needs {what}.")
    if count > _MOST_FILES:
        raise BodyTooLarge(
            f"The request holds {count} documents; the limit is {_MOST_FILES}.", "Send several requests."
        )


def _name_of(sent: str, place: int) -> str:
    """The last part of a sent name, or one of our own."""
    name = PurePath(sent[-1000:].replace("\\", "/").replace("\0", "")).name[-_LONGEST_NAME:]
    # A cut surrogate pair cannot be written as UTF-8.
    return name.encode("utf-8", "ignore").decode() or (f"file_{place}.pdf" if place else "file.pdf")
