"""Batched line recognition, as on a GPU, gives the same text alone and in any batch (real model, on the CPU)."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ppocr_support import LINE, load, read, text_of

from ocrsvc.engines.ppocr.engine import PpocrEngine
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL
from ocrsvc.engines.ppocr.pipeline.recognition_batches import BUCKETS_PX, BatchRunner, LineImage, bucket_of, own_steps
from ocrsvc.engines.ppocr.pipeline.recognizer import WIDTHS_PX, Recognizer
from ocrsvc.engines.ppocr.runtime.model_parts import RECOGNITION, built_in_part, read_dictionary
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.session import ModelRunner, SessionConfig
from ocrsvc.errors import DeadlineExceeded
from ocrsvc.results import Page, Pixels
from ocrsvc.serving.batcher import Limits

SMALL = Limits(max_cost=4 * 48 * 480, max_items=4, max_wait_s=0.001)


@pytest.fixture(scope="module")
def recognizer() -> Iterator[Recognizer]:
    session = open_model(built_in_part(RECOGNITION), SessionConfig("cpu", batched=True))
    runs = BatchRunner(session, SMALL)
    yield Recognizer(runs, read_dictionary(built_in_part(RECOGNITION), session.metadata))
    runs.close()


def line(width: int) -> Pixels:
    return np.asarray(cv2.resize(load("line.png"), (width, 48), interpolation=cv2.INTER_AREA), np.uint8)


def test_a_line_reads_the_same_alone_and_in_any_batch(recognizer: Recognizer) -> None:
    crops = [line(width) for width in (448, 464, 470, 480, 432, 300, 310)]
    alone = [recognizer.read([crop])[0] for crop in crops]
    assert alone[0].text == LINE
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(recognizer.read, [crops, crops[::-1], crops[2:5], crops[:1]]))
    texts = [[read.text for read in batch] for batch in batches]
    expected = [read.text for read in alone]
    assert texts == [expected, expected[::-1], expected[2:5], expected[:1]]
    for one, other in zip(alone, batches[0], strict=True):
        assert other.confidence == pytest.approx(one.confidence, abs=1e-4)


def test_a_page_reads_the_same_in_batches_and_line_by_line() -> None:
    pages: list[list[Page]] = []
    for batched in (False, True):
        engine = PpocrEngine(SessionConfig("cpu", batched=batched), batch=SMALL)
        decoders = ("greedy", "beam")
        pages.append([read(engine.open_handle(), load("notice.png"), decoder=decoder) for decoder in decoders])
        engine.close()
    for one, other in zip(*pages, strict=True):
        assert one.text.split() == other.text.split() == text_of("notice").split()
        for apart, together in zip(one.lines, other.lines, strict=True):
            assert (together.box, together.confidence) == (apart.box, pytest.approx(apart.confidence, abs=0.05))


@given(st.integers(1, WIDTHS_PX[-1]))
def test_a_line_gets_the_smallest_bucket_and_exactly_its_own_steps(width: int) -> None:
    bucket = bucket_of(width)
    assert bucket in BUCKETS_PX
    assert bucket >= width
    assert all(smaller < width for smaller in BUCKETS_PX if smaller < bucket)
    steps = own_steps(width, bucket, bucket // 8)
    assert 8 * (steps - 1) < width <= 8 * steps


def test_lines_of_a_cancelled_page_are_dropped_before_their_batch() -> None:
    entered, gate, ran = threading.Event(), threading.Event(), []

    def run(cuts: Sequence[LineImage], _padded: int, _outputs: Sequence[str]) -> list[NDArray[Any]]:
        entered.set()
        assert gate.wait(30)
        ran.append(len(cuts))
        return [np.zeros((len(cuts), 4), np.int64), np.zeros((len(cuts), 4), np.float32)]

    def check() -> None:
        if entered.is_set():
            raise DeadlineExceeded("Too late.")

    runs = BatchRunner(cast(ModelRunner, SimpleNamespace(input_format=USUAL)), SMALL, run=run)
    with pytest.raises(DeadlineExceeded):
        runs.map(lambda decided: decided.best, [LineImage(line(480))] * 12, check)
    gate.set()
    neighbour = runs.map(lambda decided: len(decided.best), [LineImage(line(480))])
    runs.close()
    assert neighbour == [4]
    # The batch that was running when the page was cancelled, and the neighbour's line.
    assert sum(ran) <= SMALL.max_items + 1
