"""Chinese unified social credit codes: 18 signs with a check sign (GB 32100)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ocrsvc.masking.resident_id import PROVINCES
from ocrsvc.masking.text_forms import count_digits, without_separators

_SIGNS: Final = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_VALUES: Final = {sign: value for value, sign in enumerate(_SIGNS)}
_WEIGHTS: Final = tuple(3**place % 31 for place in range(17))
# GB 11714, the code of the organization within it.
_BODY_VALUES: Final = {sign: value for value, sign in enumerate("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")}
_BODY_WEIGHTS: Final = (3, 7, 9, 10, 5, 8, 4, 2)
_LEAST_DIGITS: Final = 8
# The letters that the code has not, because they look like digits: so they are those digits.
_TO_SIGNS: Final = str.maketrans("OoIilZzSs|", "0011122551")

_CODE: Final = re.compile(
    r"(?<![0-9A-Za-z])(?=([1-9ANYaynIl|](?:[ \-\n]{0,2}[0-9A-Za-z|]){17})(?![0-9A-Za-z]))", re.ASCII
)


def find_credit_codes(text: str) -> Iterator[tuple[int, int]]:
    """Where such codes stand; they may be spread by spaces, and go on in the next line.

    Args:
        text: In half width.
    """
    for match in _CODE.finditer(text):
        sent = match[1]
        if sent.count("\n") < 2 and count_digits(sent) >= _LEAST_DIGITS:
            code = without_separators(sent).translate(_TO_SIGNS).upper()
            if is_credit_code(code):
                yield match.span(1)


def is_credit_code(code: str) -> bool:
    """Whether 18 signs are such a code.

    Of digits alone, the check sign of the organization's own code must be right, too: one out of a hundred other
    numbers of 18 digits would be taken for a code.
    """
    if not (code[1:8].isdecimal() and code[2:4] in PROVINCES and all(sign in _VALUES for sign in code)):
        return False
    return check_sign(code) == code[17] and (not code.isdecimal() or body_check_sign(code[8:16]) == code[16])


def check_sign(code: str) -> str:
    """The sign that follows the first 17."""
    total = sum(_VALUES[sign] * weight for sign, weight in zip(code, _WEIGHTS, strict=False))
    return _SIGNS[-total % 31]


def body_check_sign(body: str) -> str:
    """The sign that follows the eight signs of an organization's code."""
    total = sum(_BODY_VALUES[sign] * weight for sign, weight in zip(body, _BODY_WEIGHTS, strict=True))
    return "0123456789X0"[-total % 11]
