"""How does a page look as the Python list that Paddle Serving's clients hand to eval()?"""

from __future__ import annotations

from ocrsvc.formats.corners import to_corners, to_scores
from ocrsvc.records import Page


def to_result(page: Page) -> str:
    """[[(text, score), corners], ...] as Python writes it: `eval` gives exactly that back, whatever was read."""
    lines = page.lines
    return str(
        [[(line.text, score), box] for line, score, box in zip(lines, to_scores(lines), to_corners(lines), strict=True)]
    )
