"""Splits lines into PaddleX's word groups, for the member `returnWordBox`.

A group is one Chinese character, a run of ASCII letters and digits (with hyphens inside it and dots before digits), or
a run of other characters including spaces. The groups, joined, are the line's text.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.formats.boxes import to_boxes, to_frames, whole
from ocrsvc.results import Box, Line

Frames = NDArray[np.float64]
"""(N, 4) boxes: left, top, right, bottom in pixels of the image as displayed."""

_GROUP: Final = re.compile("[\u4e00-\u9fff]|[0-9A-Za-z](?:[0-9A-Za-z-]|\\.(?=[0-9]))*|[^\u4e00-\u9fff0-9A-Za-z]+")


def to_word_members(lines: Sequence[Line]) -> dict[str, object]:
    """PaddleX's word members: texts and boxes of each line's word groups; a line without words is one group."""
    placed = [_groups_of(line) for line in lines]
    return {
        "text_word_boxes": [whole(frames).tolist() for _, frames in placed],
        "text_word": [texts for texts, _ in placed],
    }


def frame_lines(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Make a line of each word group, so that a box is drawn around it."""
    placed = (zip(*_groups_of(line), strict=True) for line in lines)
    return tuple(Line(text, 1.0, _box_of(frame)) for text, frame in chain.from_iterable(placed) if text.strip())


def _box_of(frame: NDArray[np.float64]) -> Box:
    left, top, right, bottom = frame.tolist()
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _groups_of(line: Line) -> tuple[list[str], Frames]:
    """The texts of a line's word groups, and their boxes."""
    characters = [character for word in line.words or () for character in word.characters]
    places = _places(line.text, [character.text for character in characters])
    if not places:
        return [line.text], to_frames(to_boxes([line]))
    begins = [group.start() for group in _GROUP.finditer(line.text)]
    frames = _with_gaps(to_frames(to_boxes(characters)), places)
    joined = [np.minimum.reduceat(frames[:, :2], begins), np.maximum.reduceat(frames[:, 2:], begins)]
    ends = [*begins[1:], len(line.text)]
    return [line.text[begin:end] for begin, end in zip(begins, ends, strict=True)], np.hstack(joined)


def _places(text: str, characters: Sequence[str]) -> list[int]:
    """For each character of the text its index in `characters`, -1 for a space; empty if text and characters differ."""
    places: list[int] = []
    for number, character in enumerate(characters):
        while len(places) < len(text) and text[len(places)].isspace():
            places.append(-1)
        if not text.startswith(character, len(places)):
            return []
        places += [number] * len(character)
    rest = text[len(places) :]
    return [] if rest.strip() or not characters else places + [-1] * len(rest)


def _with_gaps(frames: Frames, places: Sequence[int]) -> Frames:
    """A box per character of a text; a space gets the gap between its neighbours."""
    at = np.array(places)
    before = np.maximum.accumulate(at)
    after = np.minimum.accumulate(np.where(at < 0, len(frames), at)[::-1])[::-1]
    every: Frames = frames[at]
    spaces = at < 0
    # A space at an end of the text has only one neighbour, which is used twice.
    every[spaces] = _between(frames[np.maximum(before, 0)], frames[np.minimum(after, len(frames) - 1)])[spaces]
    return every


def _between(before: Frames, after: Frames) -> Frames:
    """Boxes for spaces: on each axis the gap between the two neighbours or, if these overlap, the extent of both."""
    joined = np.hstack([np.minimum(before[:, :2], after[:, :2]), np.maximum(before[:, 2:], after[:, 2:])])
    for low, high in ((0, 2), (1, 3)):
        begin = np.minimum(before[:, high], after[:, high])
        end = np.maximum(before[:, low], after[:, low])
        apart = begin < end
        joined[apart, low], joined[apart, high] = begin[apart], end[apart]
    return joined
