"""Whether a line's text runs from left to right or from right to left, and the order of its characters.

What Unicode's bidirectional algorithm (UAX #9) does to show a text is undone by its own means: runs of Latin letters
and numbers keep their order, everything else is turned round, and brackets there are mirrored. Where several logical
texts look the same, Latin words and the numbers beside them stay together.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEFT_TO_RIGHT: Final = frozenset({"L"})
RIGHT_TO_LEFT: Final = frozenset({"R", "AL"})

MOSTLY: Final = 2
"""Latin letters for each Arabic or Hebrew one, above which a line runs from left to right: such lines stand on the same
pages, while lines with long Latin names in them are common."""

Span = tuple[int, int]
"""Of places: the first, and the one after the last."""

_DIGIT: Final = frozenset({"EN", "AN"})
_INSIDE_NUMBER: Final = frozenset({"CS", "ES"})  # one of them, as in 12.5 or 3/4
_BESIDE_NUMBER: Final = frozenset({"ET"})  # as in 5% or $3

_PAIRS: Final = ("()", "[]", "{}", "<>", "«»", "‹›", "（）", "【】")
_CLOSING: Final = {pair[0]: pair[1] for pair in _PAIRS}
MIRRORED: Final = _CLOSING | {pair[1]: pair[0] for pair in _PAIRS}


def runs_from_right_to_left(text: str) -> bool | None:
    """How a line runs as a whole; None where it has no letters."""
    return is_turned([unicodedata.bidirectional(character) for character in text])


def is_turned(kinds: Sequence[str]) -> bool | None:
    """The same of the bidirectional classes of its characters."""
    leftwards, rightwards = count(kinds, RIGHT_TO_LEFT), count(kinds, LEFT_TO_RIGHT)
    return MOSTLY * leftwards >= rightwards if leftwards or rightwards else None


def count(kinds: Sequence[str], wanted: frozenset[str]) -> int:
    """How many of the classes are among these."""
    return sum(kind in wanted for kind in kinds)


def visual_order(text: str) -> str:
    """A line in logical order, as it stands from left to right: what turns one way turns back."""
    return text if text.isascii() else "".join(logical_order(text)[1])


def logical_order(characters: Sequence[str]) -> tuple[list[int], list[str]]:
    """From the characters of a line, from left to right, to those in logical order.

    Returns:
        By place in the logical text: the place in the line, and the character, brackets mirrored.
    """
    kinds = [unicodedata.bidirectional(character[:1]) for character in characters]
    if not count(kinds, RIGHT_TO_LEFT):
        return list(range(len(characters))), list(characters)
    turned = [(0, len(kinds))] if is_turned(kinds) else list(_stretches(kinds))
    order, mirrored = list(range(len(kinds))), np.zeros(len(kinds), bool)
    for begin, end in turned:
        runs = _kept_runs(kinds, begin, end)
        order[begin:end] = [place for run in reversed(runs) for place in range(*run)]
        mirrored[[run[0] for run in runs if run[1] - run[0] == 1 and kinds[run[0]] == "ON"]] = True
    texts = [characters[place] for place in order]
    return order, _with_brackets(texts, mirrored[order])


def _stretches(kinds: Sequence[str]) -> Iterator[Span]:
    """What is turned in a line that runs from left to right: each stretch between two letters that do not."""
    begin, end = None, 0
    for place, kind in enumerate([*kinds, "L"]):
        if kind in LEFT_TO_RIGHT:
            if begin is not None:
                yield begin, end
            begin = None
        elif kind in RIGHT_TO_LEFT:
            begin, end = place if begin is None else begin, place + 1


def _kept_runs(kinds: Sequence[str], begin: int, end: int) -> list[Span]:
    """A stretch in runs whose characters keep their order: of Latin, with what stands between, numbers, single ones."""
    runs: list[Span] = []
    place = begin
    for first, last in _joined(kinds, _words(kinds, begin, end)):
        runs += [(one, one + 1) for one in range(place, first)]
        runs.append((first, last))
        place = last
    return runs + [(one, one + 1) for one in range(place, end)]


def _words(kinds: Sequence[str], begin: int, end: int) -> list[Span]:
    """The runs of Latin letters, of digits, and of numbers with what belongs to them."""
    kept = [kind in LEFT_TO_RIGHT or kind in _DIGIT for kind in kinds]
    for place in range(begin, end):
        digits = [begin <= near < end and kinds[near] in _DIGIT for near in (place - 1, place + 1)]
        kept[place] |= kinds[place] in _INSIDE_NUMBER and all(digits)
        kept[place] |= kinds[place] in _BESIDE_NUMBER and any(digits)
    bordered = pairwise([False, *kept[begin:end], False])
    edges = [begin + at for at, (before, after) in enumerate(bordered) if before != after]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _joined(kinds: Sequence[str], words: Sequence[Span]) -> list[Span]:
    """The same, those beside each other joined where one of them is Latin and no letter from right to left between."""
    runs, was_latin = list[Span](), False
    for begin, end in words:
        is_latin = count(kinds[begin:end], LEFT_TO_RIGHT) > 0
        if runs and (is_latin or was_latin) and not count(kinds[runs[-1][1] : begin], RIGHT_TO_LEFT):
            runs[-1] = (runs[-1][0], end)
            was_latin = True
        else:
            runs.append((begin, end))
            was_latin = is_latin
    return runs


def _with_brackets(characters: list[str], turned: NDArray[np.bool_]) -> list[str]:
    """Brackets that were turned round are mirrored; not where they fit together less well then.

    Whether a recognizer gives the shape that is seen or the sign that was meant depends on how it was trained.
    """
    if not any(character in MIRRORED for character in characters):
        return characters
    mirrored = [
        MIRRORED.get(character, character) if flag else character
        for character, flag in zip(characters, turned.tolist(), strict=True)
    ]
    return mirrored if _unmatched(mirrored) <= _unmatched(characters) else characters


def _unmatched(characters: Sequence[str]) -> int:
    """How many brackets have no partner."""
    alone, expected = 0, list[str]()
    for character in characters:
        if character in _CLOSING:
            expected.append(_CLOSING[character])
        elif expected and character == expected[-1]:
            expected.pop()
        elif character in MIRRORED:
            alone += 1
    return alone + len(expected)
