"""Converts a result to plain dicts and lists, ready for orjson."""

from __future__ import annotations

from collections.abc import Sequence

from ocrsvc.formats.box_values import to_boxes, to_scores
from ocrsvc.records import EngineInfo, Line, Page, Timing

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


def engine_to_dict(engine: EngineInfo) -> dict[str, str]:
    """Which engine answered."""
    return {
        "name": engine.name,
        "model": engine.model,
        "version": engine.version,
        "device": engine.device,
        "precision": engine.precision,
        "provider": engine.provider,
    }


def timing_to_dict(timing: Timing) -> dict[str, float]:
    """Seconds, to the microsecond."""
    return {
        "decode_s": round(timing.decode_s, TIMING_DIGITS),
        "queue_s": round(timing.queue_s, TIMING_DIGITS),
        "engine_s": round(timing.engine_s, TIMING_DIGITS),
        "total_s": round(timing.total_s, TIMING_DIGITS),
    }
