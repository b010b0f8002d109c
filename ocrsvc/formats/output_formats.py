"""The output formats beside JSON: name, media type and writer of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ocrsvc.formats.alto import to_alto
from ocrsvc.formats.hocr import to_hocr
from ocrsvc.formats.text import to_text
from ocrsvc.formats.tsv import to_tsv
from ocrsvc.records import EngineInfo, Page

FormatName = Literal["json", "text", "tsv", "hocr", "alto"]


@dataclass(frozen=True, slots=True)
class Format:
    """One form.

    Attributes:
        media_type: How an answer is labelled; also what a client accepts that wants this form.
        write: The text for pages that one engine has read.
        help: What it is, for people.
    """

    media_type: str
    write: Callable[[Sequence[Page], EngineInfo], str]
    help: str


FORMATS: Final[Mapping[FormatName, Format]] = {
    "text": Format("text/plain", lambda pages, _engine: to_text(pages), "plain text, a form feed between pages"),
    "tsv": Format("text/tab-separated-values", lambda pages, _engine: to_tsv(pages), "Tesseract's columns"),
    "hocr": Format("text/vnd.hocr+html", to_hocr, "hOCR 1.2"),
    "alto": Format("application/alto+xml", to_alto, "ALTO XML 4"),
}
