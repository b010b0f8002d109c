"""The forms that a number takes in recognised text: full-width signs, odd spaces and dashes, letters read for digits.

Everything keeps its length, so that a place in the one text is the same place in the other.
"""

from __future__ import annotations

from typing import Final

_FULL_WIDTH: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_SPACES: Final = dict.fromkeys([0x00A0, 0x202F, 0x205F, 0x3000, 0x0009, *range(0x2000, 0x200C)], " ")
_DASHES: Final = dict.fromkeys([*range(0x2010, 0x2016), 0x2212, 0x2500, 0xFE58, 0xFE63, 0xFF0D], "-")
_HALF_WIDTH: Final[dict[int, int | str]] = {**_FULL_WIDTH, **_SPACES, **_DASHES}

# Recognizers read one for the other; which it was, only a check digit can say.
_LETTERS_FOR_DIGITS: Final = str.maketrans("OoQDIil|ZzSsB", "0000111122558")

DIGIT: Final = "[0-9OoQDIil|ZzSsB]"
"""A digit, or a letter that is read for one, in a pattern."""

# What may stand between the digits of a number that is proven by its check digit.
_NO_SEPARATORS: Final = str.maketrans("", "", " -\n")


def to_half_width(text: str) -> str:
    """The text with full-width letters, digits and marks, odd spaces and dashes as ASCII has them."""
    return text if text.isascii() else text.translate(_HALF_WIDTH)


def to_digits(text: str) -> str:
    """The text with the letters that are read for digits as those digits."""
    return text.translate(_LETTERS_FOR_DIGITS)


def without_separators(text: str) -> str:
    """The text without spaces, dashes and line ends."""
    return text.translate(_NO_SEPARATORS)


def count_digits(text: str) -> int:
    """How many of its signs are digits from 0 to 9."""
    return sum(map(text.count, "0123456789"))
