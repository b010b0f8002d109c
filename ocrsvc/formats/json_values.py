"""Converts a result to plain dicts and lists, ready for orjson, which writes an EngineInfo as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ocrsvc.formats.box_values import to_boxes, to_scores
from ocrsvc.records import Line, Page, Timing

CONFIDENCE_DIGITS = 4
BOX_DIGITS = 1
TIMING_DIGITS = 6


def page_to_dict(page: Page, number: int, *, lines: bool = True) -> dict[str, object]:
    """The page under the given number (from 1); without the list of lines if `lines` is False.

    Boxes are four [x, y] corners in pixels of the image as displayed, clockwise from where reading starts.
    """
    answer: dict[str, object] = {
        "page": number,
        "width": page.width,
        "height": page.height,
        "angle": page.angle,
        "text": page.text,
    }
    if lines:
        answer["lines"] = _lines_to_dicts(page.lines)
    return answer


def _lines_to_dicts(lines: Sequence[Line]) -> list[dict[str, object]]:
    """Text, confidence in [0, 1] and box of each line."""
    scores, boxes = to_scores(lines, CONFIDENCE_DIGITS), to_boxes(lines).round(BOX_DIGITS).tolist()
    return [
        {"text": line.text, "confidence": score, "box": box}
        for line, score, box in zip(lines, scores, boxes, strict=True)
    ]


def timing_to_dict(timing: Timing) -> dict[str, float]:
    """Seconds, to the microsecond."""
    return {name: round(seconds, TIMING_DIGITS) for name, seconds in asdict(timing).items()}
