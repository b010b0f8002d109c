"""Writes pages as plain text, and as tab-separated values in Tesseract's columns."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ocrsvc.formats.boxes import PlacedLine, PlacedText, place_lines
from ocrsvc.results import EngineInfo, Page

COLUMNS: Final = "level page_num block_num par_num line_num word_num left top width height conf text"
PAGE_LEVEL, LINE_LEVEL, WORD_LEVEL = 1, 4, 5
# Tesseract's confidence for rows without text.
NO_CONFIDENCE: Final = -1
_BREAKS: Final = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")


def text_parts(pages: Iterable[Page], _count: int, _engine: EngineInfo) -> Iterator[str]:
    """The lines of pages, each followed by a newline; a form feed separates pages."""
    for at, page in enumerate(pages):
        yield ("\f" if at else "") + "".join(f"{line.text}\n" for line in page.lines)


def tsv_parts(pages: Iterable[Page], _count: int, _engine: EngineInfo) -> Iterator[str]:
    """Write one row per page, line and word; words have a confidence in percent.

    Blocks and paragraphs are unknown and numbered 0. A line without words has confidence and text in its own row, which
    Tesseract's never has. Tabs and line breaks inside a text become spaces.
    """
    yield COLUMNS.replace(" ", "\t") + "\n"
    for page in pages:
        rows = [f"{PAGE_LEVEL}\t{page.number}\t0\t0\t0\t0\t0\t0\t{page.width}\t{page.height}\t{NO_CONFIDENCE}\t"]
        for number, line in enumerate(place_lines(page), start=1):
            rows += _tsv_rows(f"{page.number}\t0\t0\t{number}", line)
        yield "".join(f"{row}\n" for row in rows)


def _tsv_rows(numbers: str, line: PlacedLine) -> Iterator[str]:
    text = f"{NO_CONFIDENCE}\t" if line.words else _tsv_text(line.placed)
    yield f"{LINE_LEVEL}\t{numbers}\t0\t{_tsv_frame(line.placed)}\t{text}"
    for count, word in enumerate(line.words, start=1):
        yield f"{WORD_LEVEL}\t{numbers}\t{count}\t{_tsv_frame(word.placed)}\t{_tsv_text(word.placed)}"


def _tsv_frame(text: PlacedText) -> str:
    return f"{text.left}\t{text.top}\t{text.right - text.left}\t{text.bottom - text.top}"


def _tsv_text(text: PlacedText) -> str:
    return f"{text.confidence * 100:.2f}\t{_BREAKS.sub(' ', text.text)}"
