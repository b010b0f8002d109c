"""Parses the rectangle that a request names, such as "10,20,300,40"."""

from __future__ import annotations

import re
from typing import Final

from ocrsvc.records import Rectangle

ACCEPTED: Final = "x,y,width,height in whole pixels, such as 10,20,300,40, with a width and height of at least 1"
_NUMBER: Final = "(?:0|[1-9][0-9]{0,8})"
_SIDE: Final = "[1-9][0-9]{0,8}"
PATTERN: Final = f"^{_NUMBER},{_NUMBER},{_SIDE},{_SIDE}$"
"""What `parse_rectangle` takes, spaces apart, for JSON Schema."""


def parse_rectangle(text: str) -> Rectangle:
    """The rectangle in text such as "10,20,300,40". Raises ValueError."""
    parts = [part.strip() for part in text.split(",", 4)]
    if not re.fullmatch(PATTERN, ",".join(parts)):
        raise ValueError(text)
    x, y, width, height = map(int, parts)
    return x, y, width, height
