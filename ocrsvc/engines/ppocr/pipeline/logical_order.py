"""Text from right to left: from the order in which it stands on the page to the one in which it is read.

CTC gives the characters of a line from left to right, whatever the script. `imaging.bidirectional_text` undoes what
Unicode's bidirectional algorithm (UAX #9) does to show a text, with the same results as the package PaddleOCR's.

Packages that implement UAX #9 return a string; here each character has a place, so the order itself is needed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText, Path
from ocrsvc.engines.ppocr.pipeline.character_places import CharacterPlaces
from ocrsvc.imaging.bidirectional_text import logical_order


def in_logical_order(line: LineText) -> LineText:
    """A line of a recognizer that reads from right to left, in logical order; one without such letters as it is.

    The characters of its path follow, so their steps are not ascending any more.
    """
    path = line.path
    if path is None:
        return line
    order, characters = logical_order(path.characters)
    if order == list(range(len(order))):
        return line
    return replace(line, text="".join(characters), path=_rearranged(path, np.array(order), characters))


def by_steps(path: Path) -> Path:
    """The path of a line in logical order, its characters as they stand on the line from left to right."""
    order = np.argsort(path.first, kind="stable")
    return _rearranged(path, order, [path.characters[place] for place in order.tolist()])


def _rearranged(path: Path, order: NDArray[np.intp], characters: list[str]) -> Path:
    return Path(characters, path.first[order], path.last[order], path.steps, path.confidence, path.probabilities[order])


def by_path(path: Path, found: CharacterPlaces) -> CharacterPlaces:
    """The places of the characters of `by_steps(path)` as those of the path's characters, in their order."""
    logical = np.argsort(path.first, kind="stable")[found.places]
    order = np.argsort(logical)
    left, right, top, bottom = (sides[order] for sides in (found.left, found.right, found.top, found.bottom))
    return CharacterPlaces(logical[order], left, right, top, bottom, found.line_top, found.line_bottom)
