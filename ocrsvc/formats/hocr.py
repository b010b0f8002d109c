"""Writes pages as hOCR 1.2, in HTML that is XML as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ocrsvc.formats.boxes import PlacedLine, PlacedText, place_lines
from ocrsvc.formats.markup import to_markup
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page

_HEAD: Final = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml">
<head>
<title>OCR</title>
<meta charset="utf-8"/>
<meta name="ocr-system" content="{system}"/>
<meta name="ocr-capabilities" content="ocr_page ocr_line ocrx_word"/>
<meta name="ocr-number-of-pages" content="{count}"/>
</head>
<body>
"""


def hocr_parts(pages: Iterable[Page], count: int, engine: EngineInfo) -> Iterator[str]:
    """The pages with their lines, and those with their words.

    Without words each line holds one, which is the whole line: many readers of hOCR look for words and pass over lines
    that have none.
    """
    system = to_markup(f"ocrsvc ({engine.name} {engine.model} {engine.version})")
    yield _HEAD.format(system=system, count=count)
    yield from map(_page, pages)
    yield "</body>\n</html>\n"


def _page(page: Page) -> str:
    title = f"bbox 0 0 {page.width} {page.height}; ppageno {page.number - 1}"
    opening = f'<div class="ocr_page" id="page_{page.number}" title="{title}">\n'
    return "".join([opening, *_lines(page), "</div>\n"])


def _lines(page: Page) -> Iterator[str]:
    for number, line in enumerate(place_lines(page), start=1):
        ids, placed = f"{page.number}_{number}", line.placed
        title = f"{_frame(placed)}{_turned(placed)}"
        yield f'<span class="ocr_line" id="line_{ids}" title="{title}">{_words(line, ids)}</span><br/>\n'


def _words(line: PlacedLine, ids: str) -> str:
    if not line.words:
        return _word(line.placed, ids)
    return "".join(
        (" " if word.after_blank else "") + _word(word.placed, f"{ids}_{number}")
        for number, word in enumerate(line.words, start=1)
    )


def _word(word: PlacedText, ids: str) -> str:
    title = f"{_frame(word)}; x_wconf {int(word.confidence * 100 + 0.5)}"
    return f'<span class="ocrx_word" id="word_{ids}" title="{title}">{to_markup(word.text)}</span>'


def _frame(text: PlacedText) -> str:
    return f"bbox {text.left} {text.top} {text.right} {text.bottom}"


def _turned(line: PlacedText) -> str:
    """What the frame does not say of a line that is not upright."""
    if line.is_upright:
        return ""
    poly = "; poly " + " ".join(map(str, line.corners))
    return poly + (f"; textangle {line.angle}" if line.angle else "")
