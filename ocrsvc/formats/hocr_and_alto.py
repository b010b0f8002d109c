"""Writes pages as hOCR 1.2, in HTML that is also XML, and as ALTO XML, version 4."""

from collections.abc import Iterable, Iterator
from typing import Final

from ocrsvc.formats.boxes import PlacedLine, PlacedText, place_lines
from ocrsvc.formats.markup import to_markup
from ocrsvc.results import EngineInfo, Page

_HOCR_HEAD: Final = """\
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

_ALTO_HEAD: Final = """\
<?xml version="1.0" encoding="UTF-8"?>
<alto xmlns="http://www.loc.gov/standards/alto/ns-v4#" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://www.loc.gov/standards/alto/ns-v4# http://www.loc.gov/standards/alto/v4/alto-4-4.xsd">
<Description>
<MeasurementUnit>pixel</MeasurementUnit>
<Processing ID="ocr"><processingSoftware><softwareName>ocrsvc</softwareName>\
<applicationDescription>{system}</applicationDescription></processingSoftware></Processing>
</Description>
<Layout>
"""


def hocr_parts(pages: Iterable[Page], count: int, engine: EngineInfo) -> Iterator[str]:
    """Write pages as hOCR with lines and words.

    A line without words gets one word with its whole text: many hOCR readers skip lines without words.
    """
    system = to_markup(f"ocrsvc ({engine.name} {engine.model} {engine.version})")
    yield _HOCR_HEAD.format(system=system, count=count)
    yield from map(_hocr_page, pages)
    yield "</body>\n</html>\n"


def _hocr_page(page: Page) -> str:
    title = f"bbox 0 0 {page.width} {page.height}; ppageno {page.number - 1}"
    opening = f'<div class="ocr_page" id="page_{page.number}" title="{title}">\n'
    return "".join([opening, *_hocr_lines(page), "</div>\n"])


def _hocr_lines(page: Page) -> Iterator[str]:
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
    """The hOCR properties for the corners and angle of a line that is not upright."""
    if line.is_upright:
        return ""
    poly = "; poly " + " ".join(map(str, line.corners))
    return poly + (f"; textangle {line.angle}" if line.angle else "")


def alto_parts(pages: Iterable[Page], _count: int, engine: EngineInfo) -> Iterator[str]:
    """Write pages as ALTO with one block per page, because blocks are unknown, and one String per word.

    A line without words gets one String with its whole text.
    """
    system = to_markup(f"{engine.name} {engine.model} {engine.version}")
    yield _ALTO_HEAD.format(system=system)
    yield from map(_alto_page, pages)
    yield "</Layout>\n</alto>\n"


def _alto_page(page: Page) -> str:
    size = f'WIDTH="{page.width}" HEIGHT="{page.height}"'
    place = f'HPOS="0" VPOS="0" {size}'
    lines = "".join(_alto_lines(page))
    block = f'<TextBlock ID="block_{page.number}" {place}>\n{lines}</TextBlock>\n' if lines else ""
    return (
        f'<Page ID="page_{page.number}" PHYSICAL_IMG_NR="{page.number}" {size}>\n'
        f"<PrintSpace {place}>\n{block}</PrintSpace>\n</Page>\n"
    )


def _alto_lines(page: Page) -> Iterator[str]:
    for number, line in enumerate(place_lines(page), start=1):
        ids = f"{page.number}_{number}"
        opening = f'<TextLine ID="line_{ids}" {_place(line.placed)}>{_shape(line.placed)}'
        yield f"{opening}{_strings(line, ids)}</TextLine>\n"


def _strings(line: PlacedLine, ids: str) -> str:
    if not line.words:
        return _string(line.placed, ids)
    return "".join(
        # The ALTO schema allows no SP before the first String.
        ("<SP/>" if word.after_blank and number > 1 else "") + _string(word.placed, f"{ids}_{number}")
        for number, word in enumerate(line.words, start=1)
    )


def _string(text: PlacedText, ids: str) -> str:
    attributes = f'WC="{text.confidence:.4f}" CONTENT="{to_markup(text.text)}"'
    return f'<String ID="string_{ids}" {_place(text)} {attributes}/>'


def _place(text: PlacedText) -> str:
    return f'HPOS="{text.left}" VPOS="{text.top}" WIDTH="{text.right - text.left}" HEIGHT="{text.bottom - text.top}"'


def _shape(line: PlacedText) -> str:
    if line.is_upright:
        return ""
    return '<Shape><Polygon POINTS="{},{} {},{} {},{} {},{}"/></Shape>'.format(*line.corners)
