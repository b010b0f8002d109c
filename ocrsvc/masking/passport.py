"""Passports: the two lines for machines (ICAO 9303, TD3) by their check digits, and numbers after the word passport."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ocrsvc.masking.text_forms import to_digits

_LINE_SIGNS: Final = 44
_WEIGHTS: Final = (7, 3, 1)
_NAMED: Final = re.compile(
    r"(?:护照|通行证|passport)[^0-9A-Z\n]{0,3}(?:号码|号|编号|number|no)?[^0-9A-Za-z\n]{0,6}"
    r"(?P<number>(?-i:[A-Z]{1,2}[ ]?[0-9]{7,8}|[0-9]{9}))(?![0-9A-Za-z])",
    re.IGNORECASE,
)
_SECOND: Final = re.compile(r"(?<![0-9A-Z<])[0-9A-Z<](?:[ ]?[0-9A-Z<]){42}[ ]?[0-9](?![0-9A-Z<])")
_FIRST: Final = re.compile(r"(?<![0-9A-Z<])P[A-Z<](?:[ ]?[A-Z<]){20,42}\n?\Z")


def find_passports(text: str) -> Iterator[tuple[int, int]]:
    """Where passport numbers and lines for machines stand; the line of names where it is right before the other one.

    Args:
        text: In half width.
    """
    for match in _NAMED.finditer(text):
        yield match.span("number")
    if "<" not in text:
        return
    for match in _SECOND.finditer(text):
        if is_second_line(match[0].replace(" ", "")):
            names = _FIRST.search(text, max(0, match.start() - 2 * _LINE_SIGNS), match.start())
            yield (names.start() if names else match.start()), match.end()


def is_second_line(line: str) -> bool:
    """Whether the check digits of number, birth and expiry are right in 44 signs."""
    return (
        all(check_digit(line[begin:end]) == to_digits(line[end]) for begin, end in ((0, 9), (13, 19), (21, 27)))
        and to_digits(line[13:19]).isdecimal()
    )


def check_digit(signs: str) -> str:
    """The check digit of signs: digits count as themselves, letters from 10 on, fillers nothing."""
    values = (0 if sign == "<" else int(sign, 36) for sign in signs)
    return str(sum(value * _WEIGHTS[place % 3] for place, value in enumerate(values)) % 10)
