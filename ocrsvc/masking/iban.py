"""International bank account numbers: a country, two check digits (ISO 7064 MOD 97-10) and an account."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ocrsvc.masking.text_forms import to_digits

# Signs of a number, by country (SWIFT's registry of IBAN formats).
_BY_LENGTH: Final = {
    15: "NO",
    16: "BE",
    18: "DK FO FI GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ XK LT LU MN",
    21: "HR LV LI CH",
    22: "BH BG CR GE DE IE ME RS GB VA",
    23: "TL GI IQ IL SO AE OM",
    24: "AD CZ MD PK RO SA SK ES SE TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MR MC SM",
    28: "AL AZ BY CY DO GT HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
LENGTHS: Final = {country: length for length, countries in _BY_LENGTH.items() for country in countries.split()}
# Recognizers lose the space after its name.
_HEAD: Final = re.compile(r"(?:(?<![0-9A-Za-z])|(?<=[Ii][Bb][Aa][Nn]))([A-Za-z]{2})[ ]?([0-9OoQDIil|ZzSsB]{2})")


def find_ibans(text: str) -> Iterator[tuple[int, int]]:
    """Where such numbers stand; they may be spread by single spaces, and go on in the next line.

    Args:
        text: In half width.
    """
    for match in _HEAD.finditer(text):
        length = LENGTHS.get(match[1].upper())
        end = _end_of(text, match.end(), length - 4) if length else None
        if end is not None and _is_any_iban(_plain(text[match.start() : end])):
            yield match.start(), end


def _end_of(text: str, at: int, count: int) -> int | None:
    """The place after so many letters and digits; None where there are fewer or more."""
    breaks = 0
    for _ in range(count):
        if text[at : at + 1] in {" ", "\n"}:
            breaks += text[at] == "\n"
            at += 1
        if not (text[at : at + 1].isascii() and text[at : at + 1].isalnum()) or breaks > 1:
            return None
        at += 1
    follows = text[at : at + 1]
    return None if follows.isascii() and follows.isalnum() else at


def _plain(sent: str) -> str:
    return sent.replace(" ", "").replace("\n", "").upper()


def _is_any_iban(number: str) -> bool:
    """Whether it is one as read, or with digits where letters were read for them."""
    head = number[:2] + to_digits(number[2:4])
    return any(is_iban(head + rest) for rest in dict.fromkeys((number[4:], to_digits(number[4:]))))


def is_iban(number: str) -> bool:
    """Whether its check digits are right, and its length is its country's."""
    if LENGTHS.get(number[:2]) != len(number) or not number[2:4].isdecimal():
        return False
    return int("".join(str(int(sign, 36)) for sign in number[4:] + number[:4])) % 97 == 1
