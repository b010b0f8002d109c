"""CTC decoding checked against hand-worked paths and a slow reference search."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ppocr_support import give_up_at
from support import data_of

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.engines.ppocr.pipeline.ctc import beam_search, best_path, pad, prune
from ocrsvc.errors import DeadlineExceeded

CHARACTERS = ["", "a", "b", " "]
Table = NDArray[np.float64]
Text = tuple[int, ...]


def path(*steps: int, sure: tuple[float, ...] = ()) -> Path:
    return best_path(np.array(steps, np.int64), np.array(sure, np.float32), CHARACTERS)


@pytest.mark.parametrize(("steps", "text"), data_of("ctc_paths"))
def test_best_path_collapses_repeats_and_drops_blanks(steps: list[int], text: str) -> None:
    assert "".join(path(*steps, sure=(0.9,)).characters) == text


def test_characters_have_their_steps_and_the_confidence_is_their_mean() -> None:
    found = path(0, 1, 1, 0, 2, sure=(0.8, 0.6))
    assert (found.first.tolist(), found.last.tolist(), found.steps) == ([1, 4], [2, 4], 5)
    assert found.confidence == pytest.approx(0.7)
    assert path(0, 0).confidence == 0.0


def logits(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def probabilities(scores: NDArray[np.float32]) -> Table:
    powers = np.exp(scores.astype(np.float64))
    shares: Table = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def slow_search(table: Table, width: int, keep: int) -> Text:
    """Reference: A. Hannun et al. 2014, algorithm 1 without a language model."""
    beam: dict[Text, tuple[float, float]] = {(): (1.0, 0.0)}
    for step in table:
        grown: dict[Text, list[float]] = defaultdict(lambda: [0.0, 0.0])
        top = [one for one in np.argsort(-step)[:keep].tolist() if one]
        for text, (blank, inked) in beam.items():
            grown[text][0] += (blank + inked) * step[0]
            for one in top:
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
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 6), st.integers(1, 5), st.integers(2, 4))
def test_a_narrow_beam_equals_the_reference_search(seed: int, steps: int, classes: int, width: int, keep: int) -> None:
    scores, keep = logits(seed, 2, steps, classes), min(keep, classes)
    expected = [slow_search(table, width, keep) for table in probabilities(scores)]
    assert search(scores, width, keep) == expected


def test_a_text_with_many_paths_beats_the_likeliest_path() -> None:
    table = np.log(np.array([[[0.4, 0.35, 0.25], [0.4, 0.35, 0.25]]], np.float32))
    assert search(table, 10, 3) == [(1,)]  # blank blank: 0.16; aa, a blank, blank a: 0.4025


def test_a_line_reads_the_same_alone_and_in_any_batch() -> None:
    lines = [prune(logits(seed, 1, length, 200)) for seed, length in enumerate((30, 7, 19))]
    alone = [beam_search(line, 10)[0].tolist() for line in lines]
    assert [text.tolist() for text in beam_search(pad(lines), 10)] == alone


def test_the_search_stops_when_its_check_raises() -> None:
    with pytest.raises(DeadlineExceeded):
        beam_search(prune(logits(1, 2, 50, 9)), 4, give_up_at(4))
