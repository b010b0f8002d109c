"""CTC decoding (A. Graves et al., ICML 2006): best path, and alignment of a text with the steps.

The class of each step is chosen inside the model's graph (see graph/rewrite.py); here repeats collapse and blanks drop.
The beam search is in ctc_beam_search.py; the steps on which its characters stand are found by `align`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import Path

BLANK: Final = 0


def best_path(best: NDArray[np.int64], probabilities: NDArray[np.float32], classes: Sequence[str]) -> Path:
    """The likeliest class of each step, repeats collapsed, blanks dropped.

    Args:
        best: (T,) the likeliest class of each step of one line; class 0 is blank.
        probabilities: (N,) the probability of each character at its first step.
        classes: Texts by class; the first stands for blank and is never read.
    """
    begins = np.flatnonzero(np.concatenate(([True], best[1:] != best[:-1])))
    ends = np.append(begins[1:], len(best)) - 1
    not_blank = best[begins] != BLANK
    first, last = begins[not_blank], ends[not_blank]
    characters = [classes[index] for index in best[first].tolist()]
    confidence = float(probabilities.mean()) if characters else 0.0
    return Path(characters, first, last, len(best), confidence, probabilities)


def align(labels: NDArray[np.intp], scores: NDArray[np.float64], blank: NDArray[np.float64]) -> NDArray[np.intp]:
    """On which character each step of the likeliest path stands that spells `labels`.

    Args:
        labels: (L,) classes, L > 0, none of them blank.
        scores: (T, L) log probability of each label at each step; -inf where it has none.
        blank: (T,) log probability of blank at each step.

    Returns:
        (T,) the place of the character in `labels`, -1 on blanks. Every character has a step.
    """
    states = np.empty((len(blank), 2 * len(labels) + 1))
    states[:, 0::2], states[:, 1::2] = blank[:, None], scores
    may_skip = np.zeros(states.shape[1], bool)
    may_skip[3::2] = labels[1:] != labels[:-1]
    backpointers = np.zeros(states.shape, np.int8)
    best = np.full(states.shape[1], -np.inf)
    best[:2] = states[0, :2]
    for step in range(1, len(states)):
        ways = np.full((3, len(best)), -np.inf)
        ways[0], ways[1, 1:] = best, best[:-1]
        ways[2, 2:] = np.where(may_skip[2:], best[:-2], -np.inf)
        backpointers[step] = ways.argmax(axis=0)
        best = ways.max(axis=0) + states[step]
    at = len(best) - 1 - int(best[-2] > best[-1])
    path = np.empty(len(states), np.intp)
    for step in range(len(states) - 1, -1, -1):
        path[step] = at
        at -= int(backpointers[step, at])
    return cast("NDArray[np.intp]", np.where(path % 2 == 1, path // 2, -1))
