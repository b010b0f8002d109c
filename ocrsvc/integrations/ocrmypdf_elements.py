"""Makes OCRmyPDF's tree of elements of a page that was read, and finds how the page lies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, Literal

from ocrmypdf import BoundingBox, OcrClass, OcrElement
from ocrmypdf.models.ocr_element import Baseline

from ocrsvc.formats.boxes import PlacedLine, PlacedText, PlacedWord, place_lines
from ocrsvc.imaging.text_direction import runs_from_right_to_left
from ocrsvc.results import Page

# OCRmyPDF's confidence in a direction has no unit; 15 is much, and 14 what it asks for by default.
_SURE: Final = 30.0
# Beyond this a line runs up or down the page.
_STEEP_DEGREES: Final = 45
_FEW_CHARACTERS: Final = 4


def to_tree(page: Page, dpi: float, number: int) -> OcrElement:
    """The page as OCRmyPDF draws it, with pixels to an inch, and its number in the document, from 0."""
    lines = [_to_line(placed) for placed in place_lines(page) if placed.placed.text]
    box = BoundingBox(left=0, top=0, right=page.width, bottom=page.height)
    paragraphs = [OcrElement(OcrClass.PARAGRAPH, bbox=box, children=lines)] if lines else []
    return OcrElement(OcrClass.PAGE, bbox=box, dpi=dpi, page_number=number, children=paragraphs)


def orientation_of(page: Page) -> tuple[int, float]:
    """Clockwise degrees by which the page was turned, and how sure that is; 0 for a page without text."""
    if not page.lines:
        return 0, 0.0
    sure = sum(line.confidence for line in page.lines) / len(page.lines)
    return (360 - page.angle) % 360, round(_SURE * sure, 2)


def skew_of(page: Page) -> float:
    """Degrees, anticlockwise, by which the page is to be turned until its lines are level; 0 without such lines."""
    edges = [line.box[:2] for line in page.lines if len(line.text) >= _FEW_CHARACTERS]
    # From the nearest axis to each line's upper edge, clockwise.
    angles = [math.degrees(math.atan2(y1 - y0, x1 - x0)) for (x0, y0), (x1, y1) in edges]
    return round(median((angle + 45) % 90 - 45 for angle in angles), 3) if angles else 0.0


def _to_line(placed: PlacedLine) -> OcrElement:
    line = placed.placed
    # Whole degrees, anticlockwise, from 0 to 359.
    angle = (line.angle + 180) % 360 - 180
    is_steep = abs(angle) > _STEEP_DEGREES
    direction: Literal["ltr", "rtl"] = "rtl" if runs_from_right_to_left(line.text) else "ltr"
    return OcrElement(
        OcrClass.LINE,
        bbox=_box([line]),
        confidence=line.confidence,
        children=list(_words(placed)),
        direction=direction,
        textangle=float(angle) if is_steep else None,
        baseline=None if is_steep else _baseline(line),
    )


def _baseline(line: PlacedText) -> Baseline:
    """The lower edge, from the lower left corner of the frame."""
    right, lower_right, left, lower_left = line.corners[4], line.corners[5], line.corners[6], line.corners[7]
    slope = (lower_right - lower_left) / (right - left) if right > left else 0.0
    return Baseline(slope=slope, intercept=min(0.0, lower_left - line.bottom))


def _words(placed: PlacedLine) -> Iterator[OcrElement]:
    """The words that blanks part; of a line without words, the line."""
    together: list[PlacedText] = []
    for word in placed.words or (PlacedWord(placed.placed, after_blank=True),):
        if word.after_blank and together:
            yield _to_word(together)
            together = []
        together.append(word.placed)
    if together:
        yield _to_word(together)


def _to_word(parts: Sequence[PlacedText]) -> OcrElement:
    text, confidence = "".join(part.text for part in parts), min(part.confidence for part in parts)
    return OcrElement(OcrClass.WORD, bbox=_box(parts), text=text, confidence=confidence)


def _box(parts: Sequence[PlacedText]) -> BoundingBox:
    return BoundingBox(
        left=min(part.left for part in parts),
        top=min(part.top for part in parts),
        right=max(part.right for part in parts),
        bottom=max(part.bottom for part in parts),
    )
