"""What stands before the items of a list: bullets, numbers and letters with a sign, which belong to the item's line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from ocrsvc.imaging.pdf.copied_text import Flags
from ocrsvc.imaging.pdf.runs import Indices

_MOST_CHARACTERS: Final = 7
_LIST: Final = re.compile(r"\W|[(\[]?(?:\d{1,3}|\w{1,4})[.):\]]{1,2}|(?:\d{1,2}\.){1,3}\d{0,2}")
_NUMBER: Final = re.compile(r"\d{1,5}")


class Marker(Enum):
    """What a line begins with."""

    NONE = auto()
    LIST = auto()
    NUMBER = auto()


def find_marker(line_of: Indices, codes: Sequence[int], is_apart: Flags, last: int) -> Marker:
    """What a line begins with that has this last character before some white, if anything.

    Args:
        line_of: The line of each character.
        codes: Their code points.
        is_apart: Whether white that may part columns stands before it.
        last: The place of the character.
    """
    line, first = line_of[last], last
    while first > 0 and last - first < _MOST_CHARACTERS and line_of[first - 1] == line:
        first -= 1
    if last - first >= _MOST_CHARACTERS or is_apart[first + 1 : last + 1].any():
        return Marker.NONE
    said = "".join(chr(code) if code <= 0x10FFFF else " " for code in codes[first : last + 1])
    if _LIST.fullmatch(said):
        return Marker.LIST
    return Marker.NUMBER if _NUMBER.fullmatch(said) else Marker.NONE
