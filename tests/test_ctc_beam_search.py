"""CTC prefix beam search, against the sum over every path and against a slow search written from the paper."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.ctc import Steps, beam_search, pad, prune
from ocrsvc.errors import DeadlineExceeded

Table = NDArray[np.float64]
Text = tuple[int, ...]


def logits(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def probabilities(scores: NDArray[np.float32]) -> Table:
    powers = np.exp(scores.astype(np.float64))
    shares: Table = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def probability_of_each_text(table: Table) -> dict[Text, float]:
    """By adding up all paths."""
    sums: dict[Text, float] = defaultdict(float)
    for path in itertools.product(range(table.shape[1]), repeat=table.shape[0]):
        text = tuple(one for one, _ in itertools.groupby(path) if one)
        sums[text] += math.prod(table[step, one] for step, one in enumerate(path))
    return sums


def slow_search(table: Table, width: int, keep: int) -> Text:
    """A. Hannun et al. 2014, algorithm 1 without a language model, with dicts."""
    beam: dict[Text, tuple[float, float]] = {(): (1.0, 0.0)}
    for step in table:
        grown: dict[Text, list[float]] = defaultdict(lambda: [0.0, 0.0])
        top = np.argsort(-step)[:keep].tolist()
        for text, (blank, inked) in beam.items():
            grown[text][0] += (blank + inked) * step[0]
            for one in top:
                if one == 0:
                    continue
                if text and text[-1] == one:
                    grown[text][1] += inked * step[one]
                    grown[(*text, one)][1] += blank * step[one]
                else:
                    grown[(*text, one)][1] += (blank + inked) * step[one]
        best = sorted(grown, key=lambda text: -sum(grown[text]))[:width]
        beam = {text: (grown[text][0], grown[text][1]) for text in best}
    return max(beam, key=lambda text: sum(beam[text]))


def search(scores: NDArray[np.float32], width: int, keep: int) -> list[Text]:
    return [tuple(text.tolist()) for text in beam_search(prune(scores, keep), width)]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 4))
def test_a_wide_beam_finds_the_likeliest_text(seed: int, steps: int, classes: int) -> None:
    scores = logits(seed, 1, steps, classes)
    sums = probability_of_each_text(probabilities(scores[0]))
    (found,) = search(scores, 64, classes)
    assert sums[found] == pytest.approx(max(sums.values()), rel=1e-5)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 6), st.integers(1, 5), st.integers(2, 4))
def test_a_narrow_beam_keeps_what_the_slow_search_keeps(
    seed: int, steps: int, classes: int, width: int, keep: int
) -> None:
    scores = logits(seed, 2, steps, classes)
    keep = min(keep, classes)
    expected = [slow_search(table, width, keep) for table in probabilities(scores)]
    assert search(scores, width, keep) == expected


def test_a_text_of_many_paths_beats_the_likeliest_path() -> None:
    table = np.log(np.array([[[0.4, 0.35, 0.25], [0.4, 0.35, 0.25]]], np.float32))
    assert search(table, 10, 3) == [(1,)]  # blank blank: 0.16; aa, a blank, blank a: 0.4025


@pytest.mark.parametrize(("classes", "keep"), [(5, 3), (400, 4), (1000, 10), (3862, 10), (18710, 10)])
def test_pruning_keeps_the_greatest_scores(classes: int, keep: int) -> None:
    scores = logits(1, 2, 9, classes)
    steps = prune(scores, keep)
    expected = np.sort(np.argsort(-scores, axis=2)[:, :, :keep], axis=2)
    assert np.array_equal(np.sort(steps.classes, axis=2), expected)
    assert np.allclose(steps.blank, scores[:, :, 0] - scores.max(axis=2))


def test_a_line_reads_the_same_alone_and_in_any_batch() -> None:
    lines = [prune(logits(seed, 1, length, 200)) for seed, length in enumerate((30, 7, 19))]
    alone = [beam_search(line, 10)[0].tolist() for line in lines]
    together: Steps = pad(lines)
    assert [text.tolist() for text in beam_search(together, 10)] == alone


def test_the_search_stops_between_two_steps() -> None:
    calls = itertools.count(1)

    def check() -> None:
        if next(calls) == 4:
            raise DeadlineExceeded("Too late.")

    with pytest.raises(DeadlineExceeded):
        beam_search(prune(logits(1, 2, 50, 9)), 4, check)
    assert next(calls) == 5
