"""How does a page look as the Python list that Paddle Serving's clients hand to eval()?"""

from __future__ import annotations

from ocrsvc.formats.corners import spaced_texts, to_boxes, to_scores
from ocrsvc.records import Page


def to_result(page: Page) -> str:
    """[[(text, score), corners], ...] as Python writes it: `eval` gives exactly that back, whatever was read."""
    lines = page.lines
    # What JSON and Python call a list of numbers differs by the blanks only.
    boxes = spaced_texts(to_boxes(lines).round(1))
    items = [
        f"[({line.text!r}, {score!r}), {box}]" for line, score, box in zip(lines, to_scores(lines), boxes, strict=True)
    ]
    return f"[{', '.join(items)}]"
