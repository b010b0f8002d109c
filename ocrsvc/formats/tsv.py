"""Writes pages in the columns of Tesseract's TSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ocrsvc.formats.pixel_boxes import PlacedLine, place_lines
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page

COLUMNS: Final = "level page_num block_num par_num line_num word_num left top width height conf text"
PAGE_LEVEL, LINE_LEVEL = 1, 4
# Tesseract's word for a row that has no text of its own.
NO_CONFIDENCE: Final = -1
_BREAKS: Final = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")


def to_tsv(pages: Sequence[Page], _engine: EngineInfo) -> str:
    """A row for each page and one for each line, with its confidence in percent.

    Blocks, paragraphs and words are not known, so that their numbers are 0. Lines have text here, which in Tesseract's
    own TSV only words have. Tabs and line breaks inside a text become a blank.
    """
    rows = [COLUMNS.replace(" ", "\t")]
    for page in pages:
        rows.append(f"{PAGE_LEVEL}\t{page.number}\t0\t0\t0\t0\t0\t0\t{page.width}\t{page.height}\t{NO_CONFIDENCE}\t")
        rows.extend(_line(page.number, number, line) for number, line in enumerate(place_lines(page), start=1))
    return "\n".join(rows) + "\n"


def _line(page: int, number: int, line: PlacedLine) -> str:
    place = f"{line.left}\t{line.top}\t{line.right - line.left}\t{line.bottom - line.top}"
    text = _BREAKS.sub(" ", line.text)
    return f"{LINE_LEVEL}\t{page}\t0\t0\t{number}\t0\t{place}\t{line.confidence * 100:.2f}\t{text}"
