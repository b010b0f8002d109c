"""Text direction of a line, and conversion between logical order (as typed) and visual order (left to right).

As in Unicode's bidirectional algorithm (UAX #9), runs of Latin letters and numbers keep their order in right-to-left
text, everything else is reversed, and its brackets are mirrored. Latin words stay together with numbers beside them.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEFT_TO_RIGHT: Final = frozenset({"L"})
RIGHT_TO_LEFT: Final = frozenset({"R", "AL"})

# A line runs from left to right above this ratio of Latin to Arabic or Hebrew letters; long Latin names are common.
MOSTLY: Final = 2

Span = tuple[int, int]  # indices of the first character and of the character after the last
_DIGIT: Final = frozenset({"EN", "AN"})
_INSIDE_NUMBER: Final = frozenset({"CS", "ES"})  # classes of separators inside numbers: 12.5 or 3/4
_BESIDE_NUMBER: Final = frozenset({"ET"})  # class of units beside numbers: 5% or $3

_PAIRS: Final = ("()", "[]", "{}", "<>", "«»", "‹›", "（）", "【】")
_CLOSING: Final = {pair[0]: pair[1] for pair in _PAIRS}
MIRRORED: Final = _CLOSING | {pair[1]: pair[0] for pair in _PAIRS}


def runs_from_right_to_left(text: str) -> bool | None:
    """Whether a line runs from right to left as a whole; None without letters."""
    return _are_right_to_left([unicodedata.bidirectional(character) for character in text])


def _are_right_to_left(kinds: Sequence[str]) -> bool | None:
    """Whether a line runs from right to left, by its characters' bidirectional classes; None without letters."""
    leftwards, rightwards = count(kinds, RIGHT_TO_LEFT), count(kinds, LEFT_TO_RIGHT)
    return MOSTLY * leftwards >= rightwards if leftwards or rightwards else None


def count(kinds: Sequence[str], wanted: frozenset[str]) -> int:
    """Count the characters that have one of the wanted classes."""
    return sum(kind in wanted for kind in kinds)


def visual_order(text: str) -> str:
    """Convert a line from logical to visual order; applied twice, it returns the original."""
    return text if text.isascii() else "".join(logical_order(text)[1])


def logical_order(characters: Sequence[str]) -> tuple[list[int], list[str]]:
    """Sort characters from visual into logical order; returns their indices, and the characters, brackets mirrored."""
    kinds = [unicodedata.bidirectional(character[:1]) for character in characters]
    if not count(kinds, RIGHT_TO_LEFT):
        return list(range(len(characters))), list(characters)
    reversed_spans = [(0, len(kinds))] if _are_right_to_left(kinds) else list(_right_to_left_spans(kinds))
    order, mirrored = list(range(len(kinds))), np.zeros(len(kinds), bool)
    for begin, end in reversed_spans:
        runs = _kept_runs(kinds, begin, end)
        order[begin:end] = [place for run in reversed(runs) for place in range(*run)]
        mirrored[[run[0] for run in runs if run[1] - run[0] == 1 and kinds[run[0]] == "ON"]] = True
    texts = [characters[place] for place in order]
    return order, _with_brackets(texts, mirrored[order])


def _right_to_left_spans(kinds: Sequence[str]) -> Iterator[Span]:
    """The spans of right-to-left letters between the Latin letters of a left-to-right line."""
    begin, end = None, 0
    for place, kind in enumerate([*kinds, "L"]):
        if kind in LEFT_TO_RIGHT:
            if begin is not None:
                yield begin, end
            begin = None
        elif kind in RIGHT_TO_LEFT:
            begin, end = place if begin is None else begin, place + 1


def _kept_runs(kinds: Sequence[str], begin: int, end: int) -> list[Span]:
    """Split a span into runs whose characters keep their order: Latin words, numbers, and single characters."""
    runs: list[Span] = []
    place = begin
    for first, last in [*_joined(kinds, _words(kinds, begin, end)), (end, end)]:
        runs += [(index, index + 1) for index in range(place, first)] + [(first, last)]
        place = last
    return runs[:-1]


def _words(kinds: Sequence[str], begin: int, end: int) -> list[Span]:
    """The runs of Latin letters and numbers, with separators inside numbers (12.5) and units beside them (5%)."""
    kept = [kind in LEFT_TO_RIGHT or kind in _DIGIT for kind in kinds]
    for place in range(begin, end):
        digits = [begin <= near < end and kinds[near] in _DIGIT for near in (place - 1, place + 1)]
        kept[place] |= kinds[place] in _INSIDE_NUMBER and all(digits)
        kept[place] |= kinds[place] in _BESIDE_NUMBER and any(digits)
    bordered = pairwise([False, *kept[begin:end], False])
    edges = [begin + at for at, (before, after) in enumerate(bordered) if before != after]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _joined(kinds: Sequence[str], words: Sequence[Span]) -> list[Span]:
    """Merge neighbouring runs of words if one is Latin and there is no right-to-left letter between them."""
    runs, was_latin = list[Span](), False
    for begin, end in words:
        is_latin = count(kinds[begin:end], LEFT_TO_RIGHT) > 0
        can_join = bool(runs) and (is_latin or was_latin)
        is_joined = can_join and not count(kinds[runs[-1][1] : begin], RIGHT_TO_LEFT)
        runs.append((runs.pop()[0] if is_joined else begin, end))
        was_latin = is_latin or is_joined
    return runs


def _with_brackets(characters: list[str], turned: NDArray[np.bool_]) -> list[str]:
    """Mirror brackets in reversed runs, unless more are unmatched then: some recognizers have already mirrored them."""
    if not any(character in MIRRORED for character in characters):
        return characters
    pairs = zip(characters, turned.tolist(), strict=True)
    mirrored = [MIRRORED.get(character, character) if flag else character for character, flag in pairs]
    return mirrored if _unmatched(mirrored) <= _unmatched(characters) else characters


def _unmatched(characters: Sequence[str]) -> int:
    """Count the brackets without a matching one."""
    alone, expected = 0, list[str]()
    for character in characters:
        if character in _CLOSING:
            expected.append(_CLOSING[character])
        elif expected and character == expected[-1]:
            expected.pop()
        elif character in MIRRORED:
            alone += 1
    return alone + len(expected)
