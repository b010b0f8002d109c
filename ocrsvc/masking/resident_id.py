"""Chinese resident identity numbers: 18 signs with a check sign (GB 11643, MOD 11-2), and 15 digits without one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Final

from ocrsvc.masking.text_forms import DIGIT, count_digits, to_digits, without_separators

# GB/T 2260: provinces, autonomous regions and cities; 83 is that of the residence permits of Taiwan.
_PROVINCES: Final = (range(11, 16), range(21, 24), range(31, 38), range(41, 47), range(50, 55), range(61, 66), (71,))
PROVINCES: Final = frozenset(str(code) for codes in (*_PROVINCES, range(81, 84)) for code in codes)
_CHECK_SIGNS: Final = "10X98765432"
_WEIGHTS: Final = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_YEARS: Final = range(1900, 2100)
# More letters than this are a word, not misread digits.
_LEAST_DIGITS: Final = 14
# Small x, the sign of multiplication, and the Cyrillic letters.
_LAST: Final = str.maketrans(dict.fromkeys("x\u00d7\u0425\u0445", "X"))

_SEPARATED: Final = r"[ \-\n]{0,3}"
_NEW: Final = re.compile(
    rf"(?<![0-9])(?=([1-8IilZzSsB|](?:{_SEPARATED}{DIGIT}){{16}}{_SEPARATED}(?:{DIGIT}|[Xx\u00d7\u0425\u0445]))"
    r"(?![0-9]))"
)
_OLD: Final = re.compile(r"(?<![0-9A-Za-z])[1-8][0-9]{14}(?![0-9A-Za-z])")


def find_resident_ids(text: str) -> Iterator[tuple[int, int]]:
    """Where such numbers stand; those of 18 signs may be spread by spaces and dashes, and go on in the next line.

    Args:
        text: In half width.
    """
    for match in _NEW.finditer(text):
        sent = match[1]
        if sent.count("\n") < 2 and count_digits(sent) >= _LEAST_DIGITS and is_resident_id(_plain(sent)):
            yield match.span(1)
    for match in _OLD.finditer(text):
        if is_old_resident_id(match[0]):
            yield match.span()


def _plain(sent: str) -> str:
    signs = without_separators(sent)
    return to_digits(signs[:-1]) + to_digits(signs[-1].translate(_LAST))


def is_resident_id(number: str) -> bool:
    """Whether 18 signs are a number that can be somebody's: region, date of birth, check sign."""
    return has_place(number) and _is_date(number[6:14]) and check_sign(number) == number[17]


def is_old_resident_id(number: str) -> bool:
    """Whether 15 digits are one that could be given before October 1999; nothing checks them but region and date."""
    return has_place(number) and _is_date("19" + number[6:12])


def check_sign(number: str) -> str:
    """The sign that follows the first 17 digits."""
    return _CHECK_SIGNS[sum(int(digit) * weight for digit, weight in zip(number, _WEIGHTS, strict=False)) % 11]


def has_place(number: str) -> bool:
    """Whether it begins as a place of GB/T 2260 does: a province, and a part of it that is not 00."""
    return number[:2] in PROVINCES and number[2:4] != "00"


def _is_date(digits: str) -> bool:
    year, month, day = int(digits[:4]), int(digits[4:6]), int(digits[6:8])
    if year not in _YEARS:
        return False
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True
