"""Numbers of payment cards: ranges of their issuers, lengths, and the check digit of ISO 7812 (Luhn)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from ocrsvc.masking.text_forms import DIGIT, to_digits, without_separators

LEAST, MOST = 13, 19

# First and last of the first four digits, and the lengths: ISO/IEC 7812 as the networks have published them.
ISSUERS: Final = (
    (2200, 2204, (16, 17, 18, 19)),  # Mir
    (2221, 2720, (16,)),  # Mastercard
    (3000, 3059, (14, 16)),  # Diners Club
    (3095, 3095, (14, 16)),
    (3400, 3499, (15,)),  # American Express
    (3528, 3589, (16, 17, 18, 19)),  # JCB
    (3600, 3699, (14, 16)),  # Diners Club
    (3700, 3799, (15,)),  # American Express
    (3800, 3999, (14, 16)),  # Diners Club
    (4000, 4999, (13, 16, 19)),  # Visa
    (5018, 5018, tuple(range(13, 20))),  # Maestro
    (5020, 5020, tuple(range(13, 20))),
    (5038, 5038, tuple(range(13, 20))),
    (5100, 5599, (16,)),  # Mastercard
    (5893, 5893, tuple(range(13, 20))),
    (6011, 6011, (16, 17, 18, 19)),  # Discover
    (6200, 6299, (16, 17, 18, 19)),  # UnionPay
    (6304, 6304, tuple(range(13, 20))),
    (6440, 6599, (16, 17, 18, 19)),  # Discover, RuPay
    (6759, 6763, tuple(range(13, 20))),
    (8100, 8171, (16, 17, 18, 19)),  # UnionPay
    (9558, 9558, (19,)),  # ICBC
)
_LENGTHS: Final = {prefix: frozenset(lengths) for first, last, lengths in ISSUERS for prefix in range(first, last + 1)}
_DOUBLED: Final = str.maketrans("0123456789", "0246813579")

# A serial number has letters at its sides, but for the word before it: No, or Card.
_RUN: Final = re.compile(
    r"(?:(?<![0-9A-Za-z])|(?<=[Nn][Oo])|(?<=[Cc][Aa][Rr][Dd]))[0-9]+(?:[ \-\n]{1,2}[0-9]+)*(?![0-9A-Za-z])"
)
_GROUP: Final = re.compile("[0-9]+")
_MISREAD: Final = re.compile(
    rf"(?<![0-9A-Za-z])(?:{DIGIT}{{4}}[ \-]?){{3}}{DIGIT}{{4}}(?:[ \-]?{DIGIT}{{3}})?(?![0-9A-Za-z])"
)
_MOST_LETTERS: Final = 2


def find_cards(text: str) -> Iterator[tuple[int, int]]:
    """Where such numbers stand: solid, in the groups that are printed on cards, or with a space after each digit.

    A number may go on in the next line. With one or two letters in place of digits, it is found solid or in fours.

    Args:
        text: In half width.
    """
    for match in _RUN.finditer(text):
        if match.end() - match.start() >= LEAST:
            yield from _in_run([group.span() for group in _GROUP.finditer(text, *match.span())], text)
    for match in _MISREAD.finditer(text):
        number = without_separators(match[0])
        letters = sum(not sign.isdecimal() for sign in number)
        if 0 < letters <= _MOST_LETTERS and is_card(to_digits(number)):
            yield match.span()


def _in_run(groups: Sequence[tuple[int, int]], text: str) -> Iterator[tuple[int, int]]:
    """The numbers of which some groups of digits, next to each other, are made; of several from one on, the longest."""
    first = 0
    while first < len(groups):
        last = _last_of_card(groups[first : first + MOST], text)
        if last is not None:
            yield groups[first][0], groups[first + last][1]
            first += last
        first += 1


def _last_of_card(groups: Sequence[tuple[int, int]], text: str) -> int | None:
    """The last group of the longest number that begins with the first; None where none does."""
    begin = groups[0][0]
    if text[begin] in "01" or groups[0][1] - begin > MOST:
        return None
    sizes = [end - start for start, end in groups]
    digits = without_separators(text[begin : groups[-1][1]])
    lengths = _LENGTHS.get(int(digits[:4]), frozenset())
    for last, length in reversed(list(enumerate(accumulate(sizes)))):
        if length in lengths and has_check_digit(digits[:length]) and _are_printed(sizes[: last + 1]):
            return last if text.count("\n", begin, groups[last][1]) < 2 else None
    return None


def _are_printed(sizes: Sequence[int]) -> bool:
    """Whether groups of digits are as on a card: fours (of which OCR may lose the space between), 4-6-5, 6-13, ones."""
    if all(size % 4 == 0 for size in sizes[:-1]) or all(size == 1 for size in sizes):
        return True
    return tuple(sizes) in {(4, 6, 5), (4, 6, 4), (6, 13), (6, 10)}


def is_card(number: str) -> bool:
    """Whether digits are such a number: of an issuer, as long as its are, with the right check digit."""
    return len(number) in _LENGTHS.get(int(number[:4]), ()) and has_check_digit(number)


def has_check_digit(number: str) -> bool:
    """Whether the last of some digits is the check digit of those before it."""
    return sum(map(int, number[::-2] + number[-2::-2].translate(_DOUBLED))) % 10 == 0
