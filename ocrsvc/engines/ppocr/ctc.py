"""From character probabilities to text: CTC (A. Graves et al., ICML 2006), best path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.lines import LineText

BLANK = 0


def decode_greedy(probabilities: NDArray[np.float32], characters: Sequence[str]) -> LineText:
    """Best path: the likeliest character of each step, repeats collapsed, blanks dropped.

    Args:
        probabilities: (T, C) for one line, each row summing to 1; class 0 is blank.
        characters: C texts; the first stands for blank and is never read.

    Returns:
        The text, and as confidence the mean probability of the steps that gave a character.
    """
    best = probabilities.argmax(axis=1)
    first_of_run = np.ones(len(best), bool)
    first_of_run[1:] = best[1:] != best[:-1]
    steps = np.flatnonzero(first_of_run & (best != BLANK))
    if not len(steps):
        return LineText("", 0.0)
    text = "".join([characters[index] for index in best[steps]])
    return LineText(text, float(probabilities[steps, best[steps]].mean()))
