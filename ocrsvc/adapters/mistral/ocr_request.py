"""A request to Mistral's OCR: which document and pages, which model, and what the answer is to hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, PlainValidator

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.mistral.files import find_file, stored_data
from ocrsvc.adapters.mistral.uploaded_files import UploadedFiles
from ocrsvc.adapters.request_values import RequestValues
from ocrsvc.errors import BadOption, NothingSent
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import as_text
from ocrsvc.http.request import request
from ocrsvc.http.responses import is_url
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.records import ReadOptions

_MOST_RANGES: Final = 1000
_RANGE: Final = re.compile("([0-9]{1,9}) *(?:- *([0-9]{1,9}))?")
_TYPES: Final = ("document_url", "image_url", "file")


def _ranges(sent: object) -> Ranges:
    """Pages from 0, in a list or a text, as ranges from 1."""
    items = sent if isinstance(sent, list) else as_text(sent).split(",", _MOST_RANGES)
    matches = [_RANGE.fullmatch(as_text(item).strip()) for item in items]
    ranges = tuple((int(match[1]) + 1, int(match[2] or match[1]) + 1) for match in matches if match)
    if not 0 < len(matches) <= _MOST_RANGES or len(ranges) < len(matches) or any(last < at for at, last in ranges):
        raise ValueError('accepted are page numbers from 0, as a list, or a text such as "0-2,5"')
    return ranges


class OcrRequest(RequestValues):
    """The options of a request. No model here describes pages, which the last three ask for."""

    model: Annotated[str, Field(max_length=200)] = ""
    pages: Annotated[Ranges, PlainValidator(_ranges)] = ALL
    table_format: Literal["markdown", "html"] | None = None
    include_blocks: bool = False
    confidence_scores_granularity: Literal["word", "page", "block"] | None = None
    bbox_annotation_format: None = None
    document_annotation_format: None = None
    document_annotation_prompt: None = None

    def read_options(self, *, has_models: bool) -> ReadOptions:
        """What the reader is asked for; without a model repository one model reads everything, whatever its name."""
        wanted = self.model if has_models and self.model and not self.model.startswith("mistral") else None
        return ReadOptions(tables=True, words=self.confidence_scores_granularity == "word", model=wanted)


def document_data(sent: object, files: UploadedFiles | None, context: AdapterContext) -> bytes:
    """The bytes of the member `document`, in the request's account of memory; `files` are those that were uploaded.

    Raises:
        BadOption: It is none, or has a URL that is not asked.
        NothingSent, BadBase64: Its data URL is empty or wrong.
        NoSuchFile: It names a file that is not there.
        SignatureRefused: It has a signed URL of this service that is not good.
        OcrsvcError: As `UrlFiles.fetch` for a URL of another host.
    """
    members = sent if isinstance(sent, Mapping) else {}
    kind = members.get("type") or next((name for name in _TYPES if name in members), None)
    if kind not in _TYPES:
        raise BadOption(
            f"document is no object of one of the types {', '.join(_TYPES)}.",
            'Send {"type": "document_url", "document_url": "data:…"}.',
        )
    if kind == "file":
        return _file_data(members.get("file_id"), files)
    value = members.get(kind)
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str) or not url:
        raise NothingSent(f"The document has no {kind}.", "Send a data URL, or the signed URL of an uploaded file.")
    if not is_url(url):
        return decode_base64(url, request.share)
    if files is not None and (file_id := files.signed_id(url)) is not None:
        return stored_data(files.find(file_id))
    return context.fetch(url, "Send the document as a data URL, or upload it and send its signed URL.").data


def _file_data(file_id: object, files: UploadedFiles | None) -> bytes:
    if not isinstance(file_id, str) or files is None:
        raise BadOption("file_id names no file that is kept here.", "Upload the file first, or send a data URL.")
    return stored_data(find_file(files, file_id))
