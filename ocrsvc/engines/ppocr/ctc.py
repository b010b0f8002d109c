"""From character probabilities to text: CTC (A. Graves et al., ICML 2006), best path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLANK = 0


@dataclass(frozen=True, slots=True)
class Path:
    """The characters of one line, where each stands, and how sure they are.

    Attributes:
        characters: What was read, one text for each character.
        first, last: (N,) the first and the last step of each.
        steps: Steps in the whole line.
        confidence: Mean probability of the characters, in [0, 1]; 0 for none.
    """

    characters: list[str]
    first: NDArray[np.intp]
    last: NDArray[np.intp]
    steps: int
    confidence: float


def best_path(probabilities: NDArray[np.float32], classes: Sequence[str]) -> Path:
    """The likeliest class of each step, repeats collapsed, blanks dropped.

    Args:
        probabilities: (T, C) for one line, each row summing to 1; class 0 is blank.
        classes: C texts; the first stands for blank and is never read.
    """
    best = probabilities.argmax(axis=1)
    begins = np.flatnonzero(np.concatenate(([True], best[1:] != best[:-1])))
    ends = np.append(begins[1:], len(best)) - 1
    inked = best[begins] != BLANK
    first, last = begins[inked], ends[inked]
    characters = [classes[index] for index in best[first]]
    confidence = float(probabilities[first, best[first]].mean()) if characters else 0.0
    return Path(characters, first, last, len(best), confidence)
