"""How do the boxes of a page become JSON quickly?

numpy and orjson write all boxes in one go, and the text is cut into the lines' own pieces: one Python object a line
instead of thirteen. For 200 lines that is 0.2 ms in place of 0.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import AnyStr, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from ocrsvc.records import Line

Boxes = NDArray[np.float64]
"""(N, 4, 2): four corners x, y, clockwise from where reading starts, in pixels of the image as displayed."""

_AS_NUMBERS = orjson.OPT_SERIALIZE_NUMPY
_flat = chain.from_iterable


def to_boxes(lines: Sequence[Line]) -> Boxes:
    """The corners of the lines."""
    numbers = np.fromiter(_flat(_flat([line.box for line in lines])), np.float64, 8 * len(lines))
    return numbers.reshape(-1, 4, 2)


def to_corners(lines: Sequence[Line], digits: int = 1) -> list[orjson.Fragment]:
    """For each line [[x, y], ...] as JSON, with at most `digits` decimals, and always one."""
    return [orjson.Fragment(text) for text in corner_texts(to_boxes(lines).round(digits))]


def to_whole_corners(lines: Sequence[Line]) -> list[orjson.Fragment]:
    """For each line [[x, y], ...] as JSON, in whole numbers."""
    return [orjson.Fragment(text) for text in corner_texts(whole(to_boxes(lines)))]


def corner_texts(numbers: NDArray[np.float64] | NDArray[np.int64]) -> list[bytes]:
    """The JSON text of each item of an array (N, ...), whose items have one or two axes."""
    return _pieces(as_text(numbers), b",", numbers.ndim - 1) if len(numbers) else []


def spaced_texts(numbers: NDArray[np.float64]) -> list[str]:
    """As `corner_texts`, with the blanks that Python and its json module put behind commas."""
    if not len(numbers):
        return []
    return _pieces(as_text(numbers).replace(b",", b", ").decode(), ", ", numbers.ndim - 1)


def _pieces(text: AnyStr, comma: AnyStr, brackets: int) -> list[AnyStr]:
    """The items of a JSON list whose items begin and end with so many brackets."""
    opening, closing = text[1 : brackets + 1], text[-brackets - 1 : -1]
    inner = text[brackets + 1 : -brackets - 1].split(closing + comma + opening)
    return [opening + piece + closing for piece in inner]


def as_text(numbers: NDArray[np.float64] | NDArray[np.int64]) -> bytes:
    """An array as JSON."""
    return orjson.dumps(np.ascontiguousarray(numbers), option=_AS_NUMBERS)


def whole(boxes: Boxes) -> NDArray[np.int64]:
    """The nearest whole numbers."""
    return np.rint(boxes).astype(np.int64)


def to_frames(boxes: Boxes) -> Boxes:
    """The upright frame around each box, (N, 4): left, top, right, bottom."""
    return np.hstack([boxes.min(axis=1), boxes.max(axis=1)])


def to_scores(lines: Sequence[Line], digits: int = 5) -> list[float]:
    """The confidence of each line, in [0, 1]."""
    return cast(list[float], np.array([line.confidence for line in lines]).round(digits).tolist())
