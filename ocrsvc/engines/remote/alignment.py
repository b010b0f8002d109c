"""Puts a remote model's text into the lines that the local engine found, so that boxes and confidences stay.

The texts are aligned character by character (Levenshtein distance, in bit-parallel code: 20,000 characters take 20 ms).
A line takes the part of the remote text that its characters are aligned with. It keeps its own text if fewer than half
of the characters are equal, unless the lines between two aligned ones are as many on both sides.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final

from rapidfuzz.distance import Levenshtein

from ocrsvc.imaging.word_split import word_begins
from ocrsvc.results import Box, Character, Line, Word

_MIN_EQUAL: Final = 0.5
# Product of the lengths of both texts above which they are not aligned: 100,000 characters each take half a second.
_MAX_PRODUCT: Final = 10**10
_WORD_END: Final = re.compile(r"\S*")
_LINE_END: Final = re.compile(r"[^\n]*")
_FULL_LINE: Final = re.compile(r"[^\n]*\S[^\n]*")


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the characters of one text are in another: the index, and whether the character is equal."""

    index: list[int]
    is_equal: list[bool]


def align(lines: Sequence[Line], texts: Sequence[str]) -> tuple[Line, ...]:
    """The lines with the text of the remote lines `texts`, and with words placed in the boxes of their own words."""
    local, remote = "\n".join(line.text for line in lines), "\n".join(texts)
    if len(local) * len(remote) > _MAX_PRODUCT:
        return tuple(lines)
    parts = _parts(lines, _places(local, remote), remote)
    _pair_gaps(parts, remote)
    found = (None if part is None else " ".join(remote[part[0] : part[1]].split()) for part in parts)
    return tuple(_with_text(line, text) if text else line for line, text in zip(lines, found, strict=True))


def _places(text: str, other: str) -> _Places:
    index, is_equal = list[int](), list[bool]()
    for step in Levenshtein.opcodes(text, other):
        for at in range(step.src_end - step.src_start):
            # Deleted characters have no place, so they get that of the next one.
            index.append(step.dest_start + (0 if step.tag == "delete" else at))
            is_equal.append(step.tag == "equal")
    return _Places(index, is_equal)


def _parts(lines: Sequence[Line], places: _Places, remote: str) -> list[tuple[int, int] | None]:
    """The part of the remote text for each line; None for a line that is too different from it."""
    begins = list(accumulate((len(line.text) + 1 for line in lines), initial=0))
    equal = [
        [at for at in range(begin, begin + len(line.text)) if places.is_equal[at]]
        for begin, line in zip(begins, lines, strict=False)
    ]
    # A line ends before the first character of the next one.
    limits, limit = list[int](), len(remote)
    for found in reversed(equal):
        limits.append(limit)
        limit = places.index[found[0]] if found else limit
    parts: list[tuple[int, int] | None] = []
    end = 0
    for line, begin, own, limit in zip(lines, begins, equal, reversed(limits), strict=False):
        part = _part(line, begin, own, places, remote, end, limit) if own else None
        parts.append(part)
        end = end if part is None else part[1]
    return parts


def _part(
    line: Line, begin: int, equal: Sequence[int], places: _Places, remote: str, least: int, most: int
) -> tuple[int, int] | None:
    """The part for the line that begins at an index of the local text, within [least, most) of the remote text."""
    first, last = places.index[equal[0]], places.index[equal[-1]]
    # A remote line that belongs to no other line is taken whole, also with words that the local engine did not see.
    whole = remote.rfind("\n", 0, first) + 1, _LINE_END.match(remote, last).end()  # type: ignore[union-attr]
    if least <= whole[0] and whole[1] <= most and _is_similar(line, equal, whole):
        return whole
    ahead, behind = equal[0] - begin, begin + len(line.text) - equal[-1]
    part = _to_words(remote, max(least, whole[0], first - ahead), min(most, last + behind), least, most)
    return part if _is_similar(line, equal, part) else None


def _is_similar(line: Line, equal: Sequence[int], part: tuple[int, int]) -> bool:
    return len(equal) >= _MIN_EQUAL * max(len(line.text), part[1] - part[0])


def _to_words(text: str, begin: int, end: int, least: int, most: int) -> tuple[int, int]:
    """Extend a part of a text to whole words, within [least, most)."""
    while begin > least and not text[begin - 1].isspace():
        begin -= 1
    word = _WORD_END.match(text, end, most)
    return begin, end if word is None or text[end - 1 : end].isspace() else word.end()


def _pair_gaps(parts: list[tuple[int, int] | None], remote: str) -> None:
    """Give lines between two aligned ones the remote lines between them, if they are as many."""
    number = 0
    while number < len(parts):
        if parts[number] is not None:
            number += 1
            continue
        after = next((at for at in range(number, len(parts)) if parts[at] is not None), len(parts))
        before, following = parts[number - 1] if number else None, parts[after] if after < len(parts) else None
        begin, end = before[1] if before else 0, following[0] if following else len(remote)
        rest = [line.span() for line in _FULL_LINE.finditer(remote, begin, end)]
        if len(rest) == after - number:
            parts[number:after] = rest
        number = after


def _with_text(line: Line, text: str) -> Line:
    words = None if line.words is None else tuple(_words(line, text))
    return replace(line, text=text, words=words)


def _words(line: Line, text: str) -> Iterator[Word]:
    """The words of a text, in the places of the line's own characters that they are aligned with."""
    units = [unit for word in line.words or () for unit in _units(word)]
    if not units:
        return
    places = _places("".join(text.split()), "".join(unit.text for unit in units))
    with_characters = any(word.characters for word in line.words or ())
    begins, done = [*word_begins(text), len(text)], 0
    for begin, end in pairwise(begins):
        word = text[begin:end].strip()
        own = [units[min(at, len(units) - 1)] for at in places.index[done : done + len(word)]]
        done += len(word)
        characters = [replace(unit, text=text) for unit, text in zip(own, word, strict=True)]
        confidence = sum(unit.confidence for unit in own) / len(own)
        yield Word(word, confidence, _around(own), tuple(characters) if with_characters else ())


def _units(word: Word) -> Iterator[Character]:
    """The characters of a word, which share its length equally if their boxes are unknown."""
    if "".join(character.text for character in word.characters) == word.text:
        for character in word.characters:
            yield from (replace(character, text=text) for text in character.text)
        return
    upper_left, upper_right, lower_right, lower_left = word.box
    for at, text in enumerate(word.text):
        shares = at / len(word.text), (at + 1) / len(word.text)
        upper = [_between(upper_left, upper_right, share) for share in shares]
        lower = [_between(lower_left, lower_right, share) for share in shares]
        yield Character(text, word.confidence, (upper[0], upper[1], lower[1], lower[0]))


def _between(one: tuple[float, float], other: tuple[float, float], share: float) -> tuple[float, float]:
    return one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share


def _around(units: Sequence[Character]) -> Box:
    """The box from the first to the last of characters of one line, which may run from right to left."""
    (x, y), (to_x, to_y) = units[0].box[0], units[0].box[1]

    def along(unit: Character) -> float:
        return (unit.box[0][0] - x) * (to_x - x) + (unit.box[0][1] - y) * (to_y - y)

    left, right = min(units, key=along), max(units, key=along)
    return left.box[0], right.box[1], right.box[2], left.box[3]
