"""The registry of output formats beside JSON: an entry each, from which every list of them derives.

Imports none of the writers, so that the command line can name the formats without a numeric library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from ocrsvc.registry import resolve

if TYPE_CHECKING:
    from ocrsvc.readings import EngineInfo
    from ocrsvc.records import Page


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """One output format.

    Attributes:
        media_type: The Content-Type of an answer; also what a client accepts that wants this format.
        suffix: The end of a file's name.
        label: Its name on the web page.
        help: What it is, for people.
        writer: "module:function" of the pages in their order, which one engine has read, of how many they are, and of
            its EngineInfo; yields the text, at most one page of it at a time.
        needs: Options of a reading that are asked for with it, whatever a request says of them.
    """

    media_type: str
    suffix: str
    label: str
    help: str
    writer: str
    needs: tuple[str, ...] = ()

    def write(self, pages: Sequence[Page], engine: EngineInfo) -> str:
        """The text for pages that one engine has read."""
        return "".join(self.parts(pages, len(pages), engine))

    def parts(self, pages: Iterable[Page], count: int, engine: EngineInfo) -> Iterator[str]:
        """The same piece by piece, so that memory holds one page of so many."""
        return cast(Iterator[str], resolve(self.writer)(pages, count, engine))


OUTPUT_FORMATS: Final = {
    "text": OutputFormat(
        "text/plain", ".txt", "Text", "plain text, a form feed between pages", "ocrsvc.formats.text:write_text"
    ),
    "tsv": OutputFormat(
        "text/tab-separated-values", ".tsv", "TSV", "Tesseract's columns", "ocrsvc.formats.tsv:write_tsv"
    ),
    "hocr": OutputFormat("text/vnd.hocr+html", ".hocr", "hOCR", "hOCR 1.2", "ocrsvc.formats.hocr:write_hocr"),
    "alto": OutputFormat("application/alto+xml", ".alto.xml", "ALTO", "ALTO XML 4", "ocrsvc.formats.alto:write_alto"),
    "md": OutputFormat(
        "text/markdown",
        ".md",
        "Markdown",
        "headings, paragraphs, lists and tables as Markdown",
        "ocrsvc.formats.markdown:write_markdown",
        ("tables",),
    ),
}
"""By name, as the option `format` has it, in the order in which they are listed to people."""
