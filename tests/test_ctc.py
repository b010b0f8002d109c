"""CTC best path, against paths worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ocrsvc.engines.ppocr.ctc import best_path

CHARACTERS = ["", "a", "b", " "]


def path(*steps: int, certainty: float = 0.9) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Probabilities whose best path is `steps`."""
    rest = (1 - certainty) / (len(CHARACTERS) - 1)
    table = np.full((len(steps), len(CHARACTERS)), rest, np.float32)
    table[np.arange(len(steps)), list(steps)] = certainty
    return table


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((0, 0, 0), ""),
        ((1, 1, 0, 2, 2), "ab"),
        ((1, 0, 1), "aa"),
        ((1, 1, 1), "a"),
        ((1, 3, 2), "a b"),
        ((2, 1, 1, 2), "bab"),
    ],
)
def test_repeats_collapse_and_blanks_go(steps: tuple[int, ...], text: str) -> None:
    assert "".join(best_path(path(*steps), CHARACTERS).characters) == text


def test_confidence_is_the_mean_over_the_characters_and_not_the_blanks() -> None:
    table = np.concatenate([path(1, certainty=0.8), path(0, certainty=0.3), path(2, certainty=0.6)])
    assert best_path(table, CHARACTERS).confidence == pytest.approx(0.7)


def test_nothing_read_has_no_confidence() -> None:
    assert best_path(path(0, 0), CHARACTERS).confidence == 0.0


def test_each_character_knows_the_steps_it_stands_on() -> None:
    found = best_path(path(0, 1, 1, 0, 2), CHARACTERS)
    assert (found.first.tolist(), found.last.tolist(), found.steps) == ([1, 4], [2, 4], 5)
