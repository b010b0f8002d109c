"""Converts a page to OCRmyPDF's element tree, and computes its orientation and skew."""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, Literal

from ocrmypdf import BoundingBox, OcrClass, OcrElement
from ocrmypdf.models.ocr_element import Baseline

from ocrsvc.formats.boxes import PlacedLine, PlacedText, PlacedWord, place_lines
from ocrsvc.imaging.text_direction import runs_from_right_to_left
from ocrsvc.results import Page

# Value for full confidence on OCRmyPDF's unitless scale, on which OCRmyPDF requires 14 by default.
_MAX_ORIENTATION_CONFIDENCE: Final = 30.0
# Lines steeper than this count as vertical.
_STEEP_DEGREES: Final = 45
_MIN_CHARACTERS: Final = 4


def to_tree(page: Page, dpi: float, number: int) -> OcrElement:
    """Convert a page to an element tree; `number` is its number from 0."""
    lines = [_to_line(placed) for placed in place_lines(page) if placed.placed.text]
    box = BoundingBox(left=0, top=0, right=page.width, bottom=page.height)
    paragraphs = [OcrElement(OcrClass.PARAGRAPH, bbox=box, children=lines)] if lines else []
    return OcrElement(OcrClass.PAGE, bbox=box, dpi=dpi, page_number=number, children=paragraphs)


def orientation_of(page: Page) -> tuple[int, float]:
    """The page's clockwise rotation in degrees, and a confidence on OCRmyPDF's scale; zeros for a page without text."""
    if not page.lines:
        return 0, 0.0
    sure = sum(line.confidence for line in page.lines) / len(page.lines)
    return (360 - page.angle) % 360, round(_MAX_ORIENTATION_CONFIDENCE * sure, 2)


def skew_of(page: Page) -> float:
    """Anticlockwise rotation in degrees that makes the lines level; 0 if no line is long enough."""
    edges = [line.box[:2] for line in page.lines if len(line.text) >= _MIN_CHARACTERS]
    # Clockwise angle of each line's upper edge.
    angles = [math.degrees(math.atan2(y1 - y0, x1 - x0)) for (x0, y0), (x1, y1) in edges]
    return round(median((angle + 45) % 90 - 45 for angle in angles), 3) if angles else 0.0


def _to_line(placed: PlacedLine) -> OcrElement:
    line = placed.placed
    # Map 0 to 359 degrees to -180 to 179.
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
    """The line's lower edge, relative to the lower left corner of the line's bounding rectangle."""
    right, lower_right, left, lower_left = line.corners[4], line.corners[5], line.corners[6], line.corners[7]
    slope = (lower_right - lower_left) / (right - left) if right > left else 0.0
    return Baseline(slope=slope, intercept=min(0.0, lower_left - line.bottom))


def _words(placed: PlacedLine) -> Iterator[OcrElement]:
    """Yield the line's words; words that no space separates become one. A line without words is one word."""
    parts: list[PlacedText] = []
    for word in placed.words or (PlacedWord(placed.placed, after_blank=True),):
        if word.after_blank and parts:
            yield _to_word(parts)
            parts = []
        parts.append(word.placed)
    if parts:
        yield _to_word(parts)


def _to_word(parts: Sequence[PlacedText]) -> OcrElement:
    text, confidence = "".join(part.text for part in parts), min(part.confidence for part in parts)
    return OcrElement(OcrClass.WORD, bbox=_box(parts), text=text, confidence=confidence)


def _box(parts: Sequence[PlacedText]) -> BoundingBox:
    lefts, tops, rights, bottoms = zip(*((part.left, part.top, part.right, part.bottom) for part in parts), strict=True)
    return BoundingBox(left=min(lefts), top=min(tops), right=max(rights), bottom=max(bottoms))
