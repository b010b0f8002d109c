"""Puts a remote model's text into the lines that the local engine found, so that boxes and confidences stay.

The texts are aligned character by character (Levenshtein distance, in bit-parallel code: 20,000 characters take 20 ms).
A line takes the part of the remote text that its characters are aligned with. It keeps its own text if fewer than half
of the characters are equal, unless both texts have the same number of lines between two aligned lines.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

from rapidfuzz.distance import Levenshtein

from ocrsvc.imaging.word_split import word_begins
from ocrsvc.results import Box, Character, Line, Word

_MIN_EQUAL: Final = 0.5
# Product of the lengths of both texts above which they are not aligned: 100,000 characters each take half a second.
_MAX_PRODUCT: Final = 10**10
_WORD_END: Final = re.compile(r"\S*")
_FULL_LINE: Final = re.compile(r"[^\n]*\S[^\n]*")

# For each character of a text its index in another text, and the step: equal, replace or delete.
_Places = list[tuple[int, str]]


def align(lines: Sequence[Line], texts: Sequence[str]) -> tuple[Line, ...]:
    """The local lines with the text of the remote lines `texts`; new words get the boxes of the words they replace."""
    local, remote = "\n".join(line.text for line in lines), "\n".join([*texts, ""])
    if len(local) * len(remote) > _MAX_PRODUCT:
        return tuple(lines)
    parts = _parts(lines, _places(local, remote), remote)
    _pair_gaps(parts, remote)
    found = ("" if part is None else " ".join(remote[part[0] : part[1]].split()) for part in parts)
    return tuple(
        replace(line, text=text, words=line.words and tuple(_words(line.words, text))) if text else line
        for line, text in zip(lines, found, strict=True)
    )


def _places(text: str, other: str) -> _Places:
    """For each character of `text`, its index in `other` (if deleted, that of what follows) and the edit step."""
    return [
        (step.dest_start + (0 if step.tag == "delete" else at), step.tag)
        for step in Levenshtein.opcodes(text, other)
        for at in range(step.src_end - step.src_start)
    ]


def _parts(lines: Sequence[Line], places: _Places, remote: str) -> list[tuple[int, int] | None]:
    """For each local line the matching part of the remote text; None if no part is similar enough."""
    begins = list(accumulate((len(line.text) + 1 for line in lines), initial=0))
    equal = [
        [at for at in range(begin, begin + len(line.text)) if places[at][1] == "equal"]
        for begin, line in zip(begins, lines, strict=False)
    ]
    # A line's part ends at the latest before the first remote character that matches the next line.
    limits, limit = list[int](), len(remote)
    for found in reversed(equal):
        limits.append(limit)
        limit = places[found[0]][0] if found else limit
    parts: list[tuple[int, int] | None] = []
    end = 0
    for line, begin, own, limit in zip(lines, begins, equal, reversed(limits), strict=False):
        part = _part(line, begin, own, places, remote, end, limit) if own else None
        parts.append(part)
        end = end if part is None else part[1]
    return parts


def _part(
    line: Line, offset: int, equal: Sequence[int], places: _Places, remote: str, least: int, most: int
) -> tuple[int, int] | None:
    """Begin and end of a local line in the remote text, within [least, most); locally it begins at `offset`."""
    first, last = places[equal[0]][0], places[equal[-1]][0]
    # If no other local line matches this remote line, take all of it: the local engine may have missed some words.
    whole = remote.rfind("\n", 0, first) + 1, remote.index("\n", last)
    if least <= whole[0] and whole[1] <= most and _is_similar(line, equal, whole):
        return whole
    ahead, behind = equal[0] - offset, offset + len(line.text) - equal[-1]
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
    """Between two aligned lines, pair local and remote lines one to one if there are equally many of them."""
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


def _words(own: Sequence[Word], text: str) -> Iterator[Word]:
    """The words of the new text, with the positions of the characters of `own` that they are aligned with."""
    units = [unit for word in own for unit in _units(word)]
    places = _places("".join(text.split()), "".join(unit.text for unit in units))
    begins, done = [*word_begins(text), len(text)], 0
    for begin, end in pairwise(begins if units else []):
        word = text[begin:end].strip()
        spots, done = places[done : done + len(word)], done + len(word)
        # Characters that the local engine missed get the box of a neighbour that it read.
        found = [units[at] for at, tag in spots if tag != "delete"] or [units[min(spots[0][0], len(units) - 1)]]
        aligned = [units[at] if tag != "delete" else found[-1] for at, tag in spots]
        characters = [replace(unit, text=character) for unit, character in zip(aligned, word, strict=True)]
        confidence = sum(unit.confidence for unit in found) / len(found)
        yield Word(word, confidence, _around(found), tuple(characters) if own[0].characters else ())


def _units(word: Word) -> Iterator[Character]:
    """The characters of a word; each has the word's box if its own is unknown."""
    known = "".join(character.text for character in word.characters) == word.text
    for unit in word.characters if known else [Character(word.text, word.confidence, word.box)]:
        yield from (replace(unit, text=character) for character in unit.text)


def _around(units: Sequence[Character]) -> Box:
    """The box around these characters of one line, which may run from right to left."""
    (x, y), (to_x, to_y) = units[0].box[:2]

    def along(unit: Character) -> float:
        return (unit.box[0][0] - x) * (to_x - x) + (unit.box[0][1] - y) * (to_y - y)

    left, right = min(units, key=along), max(units, key=along)
    return left.box[0], right.box[1], right.box[2], left.box[3]
