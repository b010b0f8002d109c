"""Real-looking sentences in Chinese and English, with numbers that are to be masked, and with those that are not.

The sentences are in masking_sentences.txt. In one, `{name}` is a number of `NUMBERS`, made with check digits of its
own; what is written out is as it is. What is to be masked stands in « ». A heading says the group, which a report has a
line for, and the kind of its numbers; a group that begins with "not" has none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mask_numbers import card, credit_code, full_width, iban, in_groups, resident_id, with_wrong_check

_SENTENCES: Final = Path(__file__).with_name("masking_sentences.txt")
_CHANCE: Final = random.Random(13)

PERSONS: Final = {
    "p1": resident_id("110105", "19491231", "002"),
    "p2": resident_id("440308", "19870604", "151"),
    "p3": resident_id("310115", "20010228", "778"),
    "p4": resident_id("510104", "19560115", "226"),
    "p5": resident_id("650103", "19991130", "004"),
    "p6": resident_id("370202", "19760704", "613"),
    "p7": resident_id("330106", "20150808", "033"),
    "p8": resident_id("442000", "19680929", "490"),
    "old1": "110105491231002",
    "old2": "440301870604151",
    "old3": "320102560115226",
}
COMPANIES: Final = {
    "c1": credit_code("91330100", "79965505"),
    "c2": credit_code("91440300", "71526726"),
    "c3": credit_code("92310115", "MA1K4X2E"),
    "c4": credit_code("12110000", "40000920"),
    "c5": credit_code("51500000", "MJP5807A"),
    "c6": credit_code("91110108", "MA00E7WX"),
}
ACCOUNTS: Final = {
    "i1": iban("GB", "WEST12345698765432"),
    "i2": iban("DE", "370400440532013000"),
    "i3": iban("FR", "20041010050500013M02606"),
    "i4": iban("NL", "ABNA0417164300"),
    "i5": iban("CH", "00762011623852957"),
    "i6": iban("ES", "21000418450200051332"),
    "i7": iban("NO", "86011117947"),
    "i8": iban("MT", "MALT011000012345MTLCAST001S"),
}
CARDS: Final = {
    "v1": card("4", 16, _CHANCE),
    "v2": card("4539", 16, _CHANCE),
    "v3": card("4716", 19, _CHANCE),
    "m1": card("51", 16, _CHANCE),
    "m2": card("5545", 16, _CHANCE),
    "m3": card("2221", 16, _CHANCE),
    "a1": card("37", 15, _CHANCE),
    "a2": card("34", 15, _CHANCE),
    "u1": card("622202", 19, _CHANCE),
    "u2": card("621700", 19, _CHANCE),
    "u3": card("625965", 16, _CHANCE),
    "u4": card("955880", 19, _CHANCE),
    "d1": card("6011", 16, _CHANCE),
    "d2": card("36", 14, _CHANCE),
    "j1": card("3530", 16, _CHANCE),
}
NUMBERS: Final = PERSONS | COMPANIES | ACCOUNTS | CARDS


@dataclass(frozen=True, slots=True)
class Row:
    """A sentence; `begin` and `end` of each number in it that is to be masked."""

    group: str
    kind: str
    text: str
    spans: tuple[tuple[int, int], ...]


def rows() -> list[Row]:
    """Every row of the table."""
    table, group, kind = [], "", ""
    for sentence in _SENTENCES.read_text("utf-8").splitlines():
        if sentence.startswith("## "):
            group, _, kind = sentence.removeprefix("## ").partition(" =")
        else:
            text, spans = _filled(sentence.replace("\\n", "\n"))
            table.append(Row(group, kind.strip(), text, spans))
    return table


def _filled(sentence: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A sentence with its numbers, and where those stand that are in « »."""
    pieces, spans, length, begin = [], [], 0, 0
    for piece in re.split(r"([«»])", re.sub(r"\{([^}]*)\}", lambda match: _number(match[1]), sentence)):
        if piece == "«":
            begin = length
        elif piece == "»":
            spans.append((begin, length))
        else:
            pieces.append(piece)
            length += len(piece)
    return "".join(pieces), tuple(spans)


def _number(named: str) -> str:
    """`p1`, or `p1:spread`: the number in one of its forms."""
    name, _, form = named.partition(":")
    number = NUMBERS[name]
    groups = re.fullmatch(r"(-?)((?:\d+,?)+)", form)
    if groups:
        return in_groups(number, *map(int, groups[2].split(",")), mark=groups[1] or " ")
    return _FORMS[form](number)


_FORMS: Final[Mapping[str, Callable[[str], str]]] = {
    "": str,
    "wide": full_width,
    "spread": " ".join,
    "low": str.lower,
    "O": lambda number: number.replace("0", "O", 2),
    "l": lambda number: number.replace("1", "l", 1).replace("0", "o", 1),
    "cut": lambda number: f"{number[: len(number) // 2]}\n{number[len(number) // 2 :]}",
    "wrong": with_wrong_check,
}


def seen(found: Iterable[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Spans without the spaces at their ends."""
    trimmed = []
    for begin, end in found:
        part = text[begin:end]
        trimmed.append((begin + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())))
    return trimmed
