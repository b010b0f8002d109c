"""Where a part of a line stands: by the places of its characters or words, or by its share of the line."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from ocrsvc.records import Box, Character, Line, Point, Word

# Of a line whose characters' places are not known, in full-width characters: as far as a part may stand from its share.
MARGIN = 3.0
# Of the line's length: its letters may be all wide before the part and all narrow after it.
MARGIN_SHARE = 0.04
# Beside known places, in heights of the line: the edges of letters are soft.
_EDGE = 0.08

Range = tuple[float, float]
"""Where something begins and ends along a line, as shares of its length."""


def place_of(line: Line, begin: int, end: int) -> Box:
    """The box of some of a line's signs, as tall as the line.

    It holds all of them: where the engine does not say where characters stand, it is larger than they are.

    Args:
        line: With its words, if they are known.
        begin, end: The first sign, and the one after the last; counted in the line's text.
    """
    known = _known_range(line, begin, end) if line.words else None
    return _cut(line.box, *(known or _share(line, begin, end)))


def _known_range(line: Line, begin: int, end: int) -> Range | None:
    """By the characters of its words, or the words themselves; None where these are not the line's text."""
    words = line.words or ()
    if "".join(word.text for word in words) != "".join(line.text.split()):
        return None
    # Words have no spaces: so signs are counted without.
    first, last = (len("".join(line.text[:place].split())) for place in (begin, end))
    boxes = list(_boxes_between(words, first, last))
    if not boxes:
        return None
    shares = [_along(line.box, corner) for box in boxes for corner in box]
    edge = _EDGE * _distance(line.box[0], line.box[3]) / max(_distance(line.box[0], line.box[1]), 1.0)
    return min(shares) - edge, max(shares) + edge


def _boxes_between(words: Sequence[Word], first: int, last: int) -> Iterator[Box]:
    at = 0
    for word in words:
        parts: Sequence[Word | Character] = word.characters
        if "".join(part.text for part in parts) != word.text:
            parts = (word,)
        for part in parts:
            if at < last and at + len(part.text) > first:
                yield part.box
            at += len(part.text)


def _share(line: Line, begin: int, end: int) -> Range:
    """By how wide signs usually are, with a margin."""
    before, inside, after = (
        sum(map(_width, part)) for part in (line.text[:begin], line.text[begin:end], line.text[end:])
    )
    whole = before + inside + after
    margin = MARGIN / whole + MARGIN_SHARE
    return before / whole - margin, (before + inside) / whole + margin


def _width(sign: str) -> float:
    """Of a sign, in full-width ones."""
    return 1.0 if unicodedata.east_asian_width(sign) in {"W", "F"} else 0.5


def _along(box: Box, point: Point) -> float:
    """How far along a line's box a point stands, as a share of its length."""
    (x, y), (right_x, right_y) = box[0], box[1]
    along_x, along_y = right_x - x, right_y - y
    length = along_x * along_x + along_y * along_y
    return ((point[0] - x) * along_x + (point[1] - y) * along_y) / length if length else 0.0


def _distance(one: Point, other: Point) -> float:
    return float(((one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2) ** 0.5)


def _cut(box: Box, first: float, last: float) -> Box:
    """The part of a box from one share of its length to another."""
    first, last = min(max(first, 0.0), 1.0), min(max(last, 0.0), 1.0)
    a, b, c, d = box
    return _between(a, b, first), _between(a, b, last), _between(d, c, last), _between(d, c, first)


def _between(one: Point, other: Point, share: float) -> Point:
    return one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share
