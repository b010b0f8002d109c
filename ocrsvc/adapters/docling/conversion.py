"""Requests to docling-serve: options, and documents as form files or JSON sources."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from ocrsvc.adapters.context import AdapterContext, NotServed, RequestValues, file_name_of
from ocrsvc.engines.model.description import AUTO, parse_language
from ocrsvc.errors import BadOption, BodyTooLarge, CallerError, NothingSent
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import as_text
from ocrsvc.http.parsed_body import Content, parse_any_json
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.results import ReadOptions, TextLayer

ENDINGS: Final = {"md": ".md", "json": ".json", "html": ".html", "text": ".txt", "doctags": ".doctags"}
"""File suffix per format of `to_formats`."""

Documents = list[tuple[str, bytes]]
"""Names and bytes of the files of a request."""

_MAX_FILES: Final = 100
_MAX_VALUES: Final = 100
_MAX_BREAK: Final = 1000
_LAST_PAGE: Final = 999_999_999
_WHOLE: Final = re.compile("[0-9]{1,20}")
_REMEDY: Final = 'Send it as {"kind": "file", "base64_string": "…", "filename": "a.pdf"}.'
_Format = Literal["md", "json", "html", "text", "doctags"]


def _listed(value: object) -> list[str]:
    """The values of a list option: repeated form fields, or one JSON list."""
    values: Any = value if isinstance(value, list) else [value]
    if len(values) == 1 and as_text(values[0]).startswith("["):
        try:
            values = parse_any_json(as_text(values[0]).encode("utf-8", "replace"))
        except CallerError as error:
            raise ValueError("the list is not valid JSON") from error
    if len(values) > _MAX_VALUES:
        raise ValueError(f"there are more than {_MAX_VALUES} values")
    return [as_text(value).strip() for value in values]


def _language(value: object) -> str:
    """The requested language; AUTO if several are requested, because the service reads a page in one language."""
    tags = {parse_language(tag) for tag in _listed(value)}
    return tags.pop() if len(tags) == 1 else AUTO


def _range(value: object) -> tuple[int, int]:
    values = _listed(value)
    numbers = [min(int(value), _LAST_PAGE) for value in values if _WHOLE.fullmatch(value)]
    if not len(values) == len(numbers) == 2 or not 1 <= numbers[0] <= numbers[1]:
        raise ValueError("accepted are two page numbers from 1, the first and the last, such as 1 and 5")
    return numbers[0], numbers[1]


class Conversion(RequestValues):
    """The options of one request, stored with its job.

    Without `ocr`, only a PDF's text layer is read; without `force_ocr`, pages with a sound text layer are not OCRed.
    """

    to_formats: Annotated[tuple[_Format, ...], BeforeValidator(_listed)] = ("md",)
    target: Literal["inbody", "zip"] = "inbody"
    page_break: Annotated[
        str, Field(alias="md_page_break_placeholder"), AfterValidator(lambda text: text[:_MAX_BREAK])
    ] = ""
    lang: Annotated[str | None, Field(alias="ocr_lang"), PlainValidator(_language)] = None
    tables: Annotated[bool, Field(alias="do_table_structure")] = True
    pages: Annotated[tuple[int, int], Field(alias="page_range"), BeforeValidator(_range)] = (1, _LAST_PAGE)
    ocr: Annotated[bool, Field(alias="do_ocr")] = True
    force_ocr: bool = True
    limit_s: Annotated[float | None, Field(alias="document_timeout", ge=0)] = None
    stops_at_error: Annotated[bool, Field(alias="abort_on_error")] = False
    pipeline: Literal["standard", "legacy"] = "standard"
    image_export_mode: Literal["placeholder", "embedded", "referenced"] = "placeholder"
    # These features need models that this service lacks.
    do_code_enrichment: NotServed = False
    do_formula_enrichment: NotServed = False
    do_picture_classification: NotServed = False
    do_picture_description: NotServed = False
    do_chart_extraction: NotServed = False

    @property
    def ranges(self) -> Ranges:
        """The requested page ranges."""
        return ALL if self.pages == (1, _LAST_PAGE) else (self.pages,)

    def read_options(self, *, has_models: bool) -> ReadOptions:
        """The reading options; the language is ignored without a model repository."""
        layer: TextLayer = "only" if not self.ocr else "ignore" if self.force_ocr else "auto"
        # Tables are detected on rendered pages, and with the text layer alone no page is rendered.
        tables, lang = self.tables and layer != "only", self.lang if has_models else None
        return ReadOptions(tables=tables, lang=lang, text_layer=layer)


def parse_conversion(values: Mapping[str, object], target: object) -> Conversion:
    """Validate docling's options of a request. Raises BadOption."""
    if target == "presigned_url":
        # docling's clients request this target first, and retry with `inbody` after this error.
        text = "The target presigned_url needs artifact storage to be configured, which this service lacks."
        raise BadOption(text, "Use the target inbody or zip.")
    return Conversion.from_values({**values, "target": target})


def values_of_form(fields: Sequence[tuple[str, object]]) -> dict[str, object]:
    """The options in a form: the last value of each field, all values of the list options."""
    last: dict[str, object] = dict(fields)
    return last | {
        name: [value for field, value in fields if field == name]
        for name in ("to_formats", "ocr_lang", "page_range")
        if name in last
    }


def request_of_form(content: Content, _context: AdapterContext) -> tuple[Documents, Conversion]:
    """The documents and options of a form with `files`. Raises BadOption, NothingSent, BodyTooLarge."""
    conversion = parse_conversion(values_of_form(content.fields), content.text("target_type"))
    parts = [part for part in content.files if part.name == "files"]
    _check(len(parts), "a file in the field 'files'", content.text("callbacks"))
    return [(_name_of(part.filename or "", place), part.data) for place, part in enumerate(parts)], conversion


def request_of_json(content: Content, context: AdapterContext) -> tuple[Documents, Conversion]:
    """The documents and options of JSON with `sources`. Raises as `request_of_form` and `fetch`, BadBase64."""
    members = content.members
    target, options = members.get("target"), members.get("options") or {}
    if not isinstance(options, Mapping):
        raise BadOption("options is not a JSON object.", 'Send it as {"to_formats": ["md"]}.')
    conversion = parse_conversion(options, target.get("kind") if isinstance(target, Mapping) else target)
    sources = _sources(members)
    _check(len(sources), "an entry in sources", members.get("callbacks"))
    return [_document(source, place, content, context) for place, source in enumerate(sources)], conversion


def _sources(members: Mapping[str, object]) -> list[Mapping[str, Any]]:
    """The entries of the member `sources`, or of the two lists that the API version v1alpha has instead."""
    sources: list[Any] = []
    for name in ("sources", "file_sources", "http_sources"):
        listed = members.get(name) or []
        if not isinstance(listed, list):
            raise BadOption(f"{name} is not a list.", "Send a list of sources.")
        sources += listed
    if not all(isinstance(source, Mapping) for source in sources):
        raise BadOption("A source is not a JSON object.", _REMEDY)
    return sources


def _document(source: Mapping[str, Any], place: int, content: Content, context: AdapterContext) -> tuple[str, bytes]:
    url, text, name = source.get("url"), source.get("base64_string"), source.get("filename")
    if isinstance(url, str):
        if source.get("headers"):
            raise BadOption("The headers of a source are not supported.", "Send the file itself.")
        file = context.fetch(url, _REMEDY)
        return _name_of(file.name, place), file.data
    if source.get("kind", "file") != "file" or not isinstance(text, str):
        raise BadOption(f"Source {place} is not a file with base64_string.", _REMEDY)
    return _name_of(name if isinstance(name, str) else "", place), decode_base64(text, content.share)


def _check(count: int, expected: str, callbacks: object) -> None:
    if callbacks:
        raise BadOption("callbacks are not supported here.", "Poll /v1/status/poll, or add a job with POST /v1/jobs.")
    if not count:
        raise NothingSent(f"The request has no document: it needs {expected}.")
    if count > _MAX_FILES:
        raise BodyTooLarge(f"The request holds {count} documents; the limit is {_MAX_FILES}.", "Send several requests.")


def _name_of(filename: str, place: int) -> str:
    return file_name_of(filename, f"file_{place}.pdf" if place else "file.pdf")
