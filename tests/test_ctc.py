"""CTC best path and alignment, against paths worked by hand and against every path there is."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.engines.ppocr.pipeline.ctc import align, best_path

CHARACTERS = ["", "a", "b", " "]


def path(*steps: int, sure: tuple[float, ...] = ()) -> Path:
    return best_path(np.array(steps, np.int64), np.array(sure, np.float32), CHARACTERS)


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
    assert "".join(path(*steps, sure=(0.9,)).characters) == text


def test_confidence_is_the_mean_over_the_characters() -> None:
    assert path(1, 0, 2, sure=(0.8, 0.6)).confidence == pytest.approx(0.7)


def test_nothing_read_has_no_confidence() -> None:
    assert path(0, 0).confidence == 0.0


def test_each_character_knows_the_steps_it_stands_on() -> None:
    found = path(0, 1, 1, 0, 2, sure=(0.9, 0.9))
    assert (found.first.tolist(), found.last.tolist(), found.steps) == ([1, 4], [2, 4], 5)


@pytest.mark.parametrize("seed", range(20))
def test_alignment_is_the_likeliest_of_all_paths_that_spell_the_text(seed: int) -> None:
    random = np.random.default_rng(seed)
    table = random.dirichlet(np.ones(3), size=5)
    some_path = [1, *random.integers(0, 3, 4)]  # begins with a letter, so that there is a text
    labels = np.array([step for step, _ in itertools.groupby(some_path) if step])
    spelling = [
        steps
        for steps in itertools.product(range(3), repeat=5)
        if [step for step, _ in itertools.groupby(steps) if step] == labels.tolist()
    ]
    likeliest = max(spelling, key=lambda steps: math.prod(table[step, one] for step, one in enumerate(steps)))
    scores = np.log(table)
    places = align(labels, scores[:, labels], scores[:, 0])
    assert [int(labels[place]) if place >= 0 else 0 for place in places] == list(likeliest)


def test_a_line_of_many_characters_is_aligned_too() -> None:
    labels = np.arange(1, 101)
    scores = np.where(np.eye(100, dtype=bool), 0.0, -np.inf)
    assert align(labels, scores, np.full(100, -9.0)).tolist() == list(range(100))
