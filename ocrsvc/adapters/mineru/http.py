"""MinerU's HTTP API (opendatalab/MinerU 3.x, port 8000): documents as Markdown and content lists."""

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Annotated, Final, Literal

import orjson
from flask import Blueprint, Response
from pydantic import Field, PlainValidator

from ocrsvc import __version__
from ocrsvc.adapters.context import AdapterContext, NotServed, RequestValues, all_pages, file_name_of, make_blueprint
from ocrsvc.engines.model.description import AUTO, parse_language
from ocrsvc.errors import BadOption, BodyTooLarge, CallerError, NothingSent, OcrsvcError
from ocrsvc.formats.blocks import Block, blocks_of
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.formats.markup import to_html
from ocrsvc.http.field_values import as_text
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.imaging.page_ranges import Ranges
from ocrsvc.results import Page, ReadOptions, TextLayer

_FIELD: Final = "files"
_MAX_FILES: Final = 100
_MAX_VALUES: Final = 100
_LAST_PAGE: Final = 99_999
_LAYERS: Final[dict[str, TextLayer]] = {"auto": "auto", "txt": "only", "ocr": "ignore"}
# Positions in a content list are thousandths of the page's width and height.
_PARTS: Final = 1000
# FastAPI's status for a missing form field; MinerU answers any other mistake of the caller with 400.
_MISSING: Final = 422


def _language(values: list[object]) -> str:
    """The language of all files; AUTO if several are named, because the service reads a page in one language."""
    if len(values) > _MAX_VALUES:
        raise ValueError(f"there are more than {_MAX_VALUES} values")
    tags = {parse_language(text) for value in values if (text := as_text(value).strip())}
    return tags.pop() if len(tags) == 1 else AUTO


class ParseRequest(RequestValues):
    """The form fields of a request; pages count from 0. NotServed fields ask for outputs that this adapter lacks."""

    lang: Annotated[str | None, Field(alias="lang_list"), PlainValidator(_language)] = None
    backend: Annotated[str, Field(max_length=100)] = "pipeline"
    method: Annotated[Literal["auto", "txt", "ocr"], Field(alias="parse_method")] = "auto"
    tables: Annotated[bool, Field(alias="table_enable")] = True
    first: Annotated[int, Field(alias="start_page_id", ge=0, le=_LAST_PAGE)] = 0
    last: Annotated[int, Field(alias="end_page_id", ge=-1, le=2**53)] = -1
    return_md: bool = True
    return_content_list: bool = False
    return_images: bool = False
    return_middle_json: NotServed = False
    return_model_output: NotServed = False
    response_format_zip: NotServed = False
    client_side_output_generation: NotServed = False

    @property
    def ranges(self) -> Ranges:
        """The requested pages, from 1. Raises BadOption."""
        last = None if self.last < 0 or self.last >= _LAST_PAGE else self.last + 1
        if last is not None and last <= self.first:
            raise BadOption(f"end_page_id is {self.last}, before start_page_id.", "Send the last page, from 0.")
        return ((self.first + 1, last),)

    def read_options(self, *, has_models: bool) -> ReadOptions:
        """The reading options; the language is ignored without a model repository."""
        layer = _LAYERS[self.method]
        # Tables are detected on rendered pages, and with the text layer alone no page is rendered.
        tables, lang = self.tables and layer != "only", self.lang if has_models else None
        return ReadOptions(tables=tables, lang=lang, text_layer=layer)


def make_mineru(context: AdapterContext) -> Blueprint:
    """Make POST /file_parse."""

    def file_parse() -> Response:
        content = request.content
        languages = [value for name, value in content.fields if name == "lang_list"]
        options = ParseRequest.from_values(content.members | ({"lang_list": languages} if languages else {}))
        parts = [part for part in content.files if part.name == _FIELD]
        if not parts:
            raise NothingSent(f"The request has no file in the field {_FIELD!r}.", "Send it as multipart/form-data.")
        if len(parts) > _MAX_FILES:
            raise BodyTooLarge(
                f"The request has {len(parts)} files; the limit is {_MAX_FILES}.", "Send several requests."
            )
        reader = context.reader
        files = reader.read_files(
            [part.data for part in parts],
            options.read_options(has_models=reader.has_models),
            request.left_s,
            request.context,
            options.ranges,
        )
        names = [file_name_of(part.filename or "", "file") for part in parts]
        results = dict(zip(_stems(names), (result_of(all_pages(file), options) for file in files), strict=True))
        answer = {"task_id": request.id, "status": "completed", "backend": options.backend, "file_names": [*results]}
        return as_json({**answer, "version": __version__, "results": results})

    return make_blueprint("mineru", _failure, [("POST", "/file_parse", file_parse)])


def _failure(failure: OcrsvcError) -> Response:
    """The response to an error, in FastAPI's format."""
    is_mistake = isinstance(failure, CallerError) and failure.status in {400, 415, 422}
    status = _MISSING if isinstance(failure, NothingSent) else 400 if is_mistake else failure.status
    return as_json({"detail": str(failure)}, status)


def _stems(names: Iterable[str]) -> list[str]:
    """The names without suffixes; a repeated name gets a number appended."""
    stems: list[str] = []
    for name in names:
        stem, number = PurePath(name).stem, 1
        while (unique := stem if number == 1 else f"{stem}_{number}") in stems:
            number += 1
        stems.append(unique)
    return stems


def result_of(pages: Sequence[Page], options: ParseRequest) -> dict[str, object]:
    """The result of one file in MinerU's format, with the members that the request asks for."""
    result: dict[str, object] = {}
    if options.return_md:
        result["md_content"] = "\n".join(text for _, text in markdown_by_page(pages) if text)
    if options.return_content_list:
        entries = [_entry(page, block) for page in pages for block in blocks_of(page)]
        result["content_list"] = orjson.dumps(entries).decode()
    if options.return_images:
        # This service cuts no pictures out of pages.
        result["images"] = {}
    return result


def _entry(page: Page, block: Block) -> dict[str, object]:
    """A block as an entry of MinerU's content list."""
    (left, top), _, (right, bottom), _ = block.frame(page)
    x, y = _PARTS / page.width, _PARTS / page.height
    place = {
        "bbox": [round(left * x), round(top * y), round(right * x), round(bottom * y)],
        "page_idx": page.number - 1,
    }
    if block.table is not None:
        names = {"img_path": "", "table_caption": [], "table_footnote": []}
        return {"type": "table", **names, "table_body": to_html(block.table), **place}
    level = {"text_level": block.level} if block.level else {}
    return {"type": "text", "text": block.text, **level, **place}
