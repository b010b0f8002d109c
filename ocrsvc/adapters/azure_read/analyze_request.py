"""What a request of Azure's asks for: the document, its pages, and what the result is to hold."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from ocrsvc.errors import BadOption, CallerError, NothingSent
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import is_url
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.imaging.document import is_pdf
from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, Ranges, parse_ranges
from ocrsvc.records import ReadOptions

READ, LAYOUT = "prebuilt-read", "prebuilt-layout"
TEXT, MARKDOWN = "text", "markdown"

_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?")
_DEFAULT_VERSION: Final = "2024-11-30"
_INDEX_TYPES: Final = ("textElements", "unicodeCodePoint", "utf16CodeUnit")
_IGNORED_FEATURES: Final = frozenset({"ocrHighResolution", "languages", "styleFont"})
_MOST_LETTERS: Final = 1000


class ModelNotFound(CallerError):
    """There is no such model here."""

    status = 404
    code = "model_not_found"
    title = "No such model"


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is to hold; kept with the job.

    Attributes:
        model: "prebuilt-read" or "prebuilt-layout".
        version: Of the API, as the client said.
        content: "text" or "markdown".
        index_type: In what places in the content are counted.
        is_pdf: Whether the document is one, so that places are told in inches.
        makes_pdf: Whether a searchable PDF is made.
        dpi: At which pages of a PDF are drawn.
    """

    model: str
    version: str
    content: str
    index_type: str
    is_pdf: bool
    makes_pdf: bool
    dpi: int = 200

    def packed(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def parse_query(model: str, document: bytes, dpi: int) -> tuple[Asked, ReadOptions, Ranges]:
    """What the address of this thread's request asks for, of this document, whose pages are drawn at `dpi`.

    Raises:
        ModelNotFound: The model is none of the two.
        BadOption: A value is not accepted, or asks for what no model here finds.
    """
    if model not in {READ, LAYOUT}:
        raise ModelNotFound(f"There is no model {model[:40]!r} here.", f"Ask for {READ} or {LAYOUT}.")
    features, outputs = _names("features"), _names("output")
    if unknown := features - _IGNORED_FEATURES - {"barcodes"}:
        raise BadOption(f"features has {min(unknown)[:40]!r}, which no model here finds.", "Leave it out.")
    if outputs - {"pdf"}:
        raise BadOption(f"output has {min(outputs - {'pdf'})[:40]!r}: only pdf is made.", "Leave it out.")
    content = _choice("outputContentFormat", (TEXT, MARKDOWN))
    index_type = _choice("stringIndexType", _INDEX_TYPES)
    asked = Asked(model, _version(), content, index_type, is_pdf(document), bool(outputs), dpi)
    is_layout = model == LAYOUT
    options = ReadOptions(words=True, tables=is_layout, layout=is_layout, barcodes="barcodes" in features)
    return asked, options, _pages()


def document_of(content: Content, url_files: UrlFiles) -> bytes:
    """The document: the body itself, or base64Source or urlSource of a JSON object.

    Raises:
        NothingSent: There is none.
        BadBase64: The base64 text is wrong.
        BadOption: It is a URL, and none is fetched.
        OcrsvcError: As `UrlFiles.fetch`.
    """
    if content.raw is not None:
        return content.raw
    members = content.members
    url, text = members.get("urlSource"), members.get("base64Source")
    if isinstance(text, str) and text:
        return decode_base64(text, request.share)
    if not isinstance(url, str) or not url:
        raise NothingSent("The request has no document.", "Send it as the body, or as base64Source in JSON.")
    if not url_files.is_on or not is_url(url):
        raise BadOption("urlSource is not fetched here.", "Send the document as the body, or as base64Source.")
    return url_files.fetch(url).data


def _text(name: str) -> str:
    text = request.args.get(name, "")
    if len(text) > _MOST_LETTERS:
        raise BadOption(f"{name} is longer than {_MOST_LETTERS} letters.")
    return text.strip()


def _names(name: str) -> frozenset[str]:
    return frozenset(part.strip() for part in _text(name).split(",") if part.strip())


def _choice(name: str, accepted: tuple[str, ...]) -> str:
    """One of the values, the first by default. Raises BadOption."""
    text = _text(name) or accepted[0]
    if text not in accepted:
        raise BadOption(f"{name} is {text[:40]!r}: accepted is {' or '.join(accepted)}.")
    return text


def _version() -> str:
    text = _text("api-version") or _DEFAULT_VERSION
    if not _VERSION.fullmatch(text):
        raise BadOption(f"api-version is {text[:40]!r}: accepted is a date such as {_DEFAULT_VERSION}.")
    return text


def _pages() -> Ranges:
    text = _text("pages")
    try:
        return parse_ranges(text) if text else ALL
    except ValueError as error:
        raise BadOption(f"pages is {text[:40]!r}: accepted are {ACCEPTED}.") from error
