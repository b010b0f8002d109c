"""Normalizes recognized text: full-width characters, unusual spaces and dashes, letters misread for digits.

`to_half_width` and `to_digits` keep the length of a text, so that indices stay valid.
"""

from typing import Final

_FULL_WIDTH: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_SPACES: Final = dict.fromkeys([0x00A0, 0x202F, 0x205F, 0x3000, 0x0009, *range(0x2000, 0x200C)], " ")
_DASHES: Final = dict.fromkeys([*range(0x2010, 0x2016), 0x2212, 0x2500, 0xFE58, 0xFE63, 0xFF0D], "-")
_HALF_WIDTH: Final[dict[int, int | str]] = {**_FULL_WIDTH, **_SPACES, **_DASHES}

# Recognizers confuse these letters with digits; only a check digit can tell which is right.
_LETTERS_FOR_DIGITS: Final = str.maketrans("OoQDIil|ZzSsB", "0000111122558")

DIGIT: Final = "[0-9OoQDIil|ZzSsB]"  # regular expression for a digit or a letter misread for one

# Separators between the digits of a number with a check digit.
_NO_SEPARATORS: Final = str.maketrans("", "", " -\n")


def to_half_width(text: str) -> str:
    """Convert full-width characters, unusual spaces and dashes to ASCII."""
    return text if text.isascii() else text.translate(_HALF_WIDTH)


def to_digits(text: str) -> str:
    """Convert letters misread for digits to digits."""
    return text.translate(_LETTERS_FOR_DIGITS)


def without_separators(text: str) -> str:
    """Remove spaces, dashes and line ends."""
    return text.translate(_NO_SEPARATORS)


def count_digits(text: str) -> int:
    """Count the digits 0 to 9."""
    return sum(map(text.count, "0123456789"))
