"""What a request of Azure's asks for: the document, its pages, and what the result is to hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.request_values import Listed, RequestValues
from ocrsvc.errors import NothingSent
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.request import request
from ocrsvc.http.responses import is_url
from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, Ranges, parse_ranges
from ocrsvc.records import ReadOptions

READ, LAYOUT = "prebuilt-read", "prebuilt-layout"
MARKDOWN: Final = "markdown"
_HOW: Final = "Send the document as the body, or as base64Source."

# The first three change nothing here.
_Feature = Literal["ocrHighResolution", "languages", "styleFont", "barcodes"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is to hold; kept with the job.

    `version` is that of the API, as the client said, `index_type` in what places in the content are counted. Of a PDF,
    whose pages are drawn at `dpi`, places are told in inches. `makes_pdf` is whether a searchable PDF is made.
    """

    model: str
    version: str
    content: str
    index_type: str
    is_pdf: bool
    makes_pdf: bool
    dpi: int = 200


def _check_pages(text: str) -> str:
    try:
        parse_ranges(text)
    except ValueError as error:
        raise ValueError(f"accepted are {ACCEPTED}") from error
    return text


class AnalyzeQuery(RequestValues, alias_generator=to_camel):
    """The query of a request."""

    api_version: Annotated[str, Field(alias="api-version", pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?$")] = (
        "2024-11-30"
    )
    pages: Annotated[str, AfterValidator(_check_pages)] = ""
    features: Annotated[frozenset[_Feature], Listed] = frozenset()
    output: Annotated[frozenset[Literal["pdf"]], Listed] = frozenset()
    output_content_format: Literal["text", "markdown"] = "text"
    string_index_type: Literal["textElements", "unicodeCodePoint", "utf16CodeUnit"] = "textElements"

    @property
    def ranges(self) -> Ranges:
        """The pages."""
        return parse_ranges(self.pages) if self.pages else ALL

    def read_options(self, model: str) -> ReadOptions:
        """What the reader is asked for."""
        is_layout = model == LAYOUT
        return ReadOptions(words=True, tables=is_layout, layout=is_layout, barcodes="barcodes" in self.features)


def document_of_request(context: AdapterContext) -> bytes:
    """The document: the body itself, or base64Source or urlSource of a JSON object.

    Raises:
        NothingSent: There is none.
        OcrsvcError: As `decode_base64`, and as `AdapterContext.fetch`.
    """
    content = request.content
    if content.raw is not None:
        return content.raw
    url, text = content.members.get("urlSource"), content.members.get("base64Source")
    if isinstance(text, str) and text:
        return decode_base64(text, content.share)
    if not isinstance(url, str) or not is_url(url):
        raise NothingSent("The request has no document.", "Send it as the body, or as base64Source in JSON.")
    return context.fetch(url, _HOW).data
