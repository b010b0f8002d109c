"""Batching work of many requests by bucket, with bounded cost, and one result per item."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import wait_until

from ocrsvc.serving.batcher import Batcher, Limits

FAR_S = 30.0
SOON = Limits(max_cost=100, max_items=8, max_wait_s=0.0)
LATE = Limits(max_cost=100, max_items=8, max_wait_s=FAR_S)


class Model:
    """A model that returns upper-case texts, records its runs, fails on "bad", and waits for `gate`."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.gate = gate
        self.runs: list[tuple[str, list[str]]] = []

    def __call__(self, bucket: str, works: Sequence[str]) -> list[str]:
        self.runs.append((bucket, list(works)))
        if self.gate is not None:
            assert self.gate.wait(FAR_S)
        if "bad" in works:
            raise ValueError("cannot read this")
        return [work.upper() for work in works]


@contextmanager
def batching(model: Callable[[str, Sequence[str]], Sequence[str]], limits: Limits) -> Iterator[Batcher[str, str, str]]:
    batcher: Batcher[str, str, str] = Batcher(model, limits)
    try:
        yield batcher
    finally:
        batcher.close()


def test_work_submitted_during_a_batch_forms_the_next() -> None:
    gate = threading.Event()
    model = Model(gate)
    with batching(model, SOON) as batcher:
        first = batcher.submit("narrow", "a", 1)
        wait_until(lambda: model.runs, "the first run")
        rest = [batcher.submit("narrow", text, 1) for text in "bcd"]
        gate.set()
        assert [future.result(FAR_S) for future in (first, *rest)] == ["A", "B", "C", "D"]
    assert model.runs == [("narrow", ["a"]), ("narrow", ["b", "c", "d"])]


def test_a_full_batch_does_not_wait() -> None:
    model = Model()
    with batching(model, LATE) as batcher:
        futures = [batcher.submit("wide", text, 50) for text in "ab"]
        assert [future.result(FAR_S / 2) for future in futures] == ["A", "B"]
    assert model.runs == [("wide", ["a", "b"])]


def test_only_the_failing_item_of_a_batch_fails() -> None:
    with batching(Model(), LATE) as batcher:
        good, bad, other = (batcher.submit("narrow", text, 1) for text in ("a", "bad", "b"))
    assert (good.result(0), other.result(0)) == ("A", "B")
    with pytest.raises(ValueError, match="cannot read this"):
        bad.result(0)


def test_cancelled_work_never_reaches_the_model() -> None:
    model = Model()
    with batching(model, LATE) as batcher:
        gone, kept = batcher.submit("narrow", "gone", 1), batcher.submit("narrow", "a", 1)
        assert gone.cancel()
    assert (kept.result(0), model.runs) == ("A", [("narrow", ["a"])])


@given(
    st.lists(st.tuples(st.sampled_from(["narrow", "wide"]), st.integers(1, 150)), max_size=40),
    st.integers(1, 120),
    st.integers(1, 6),
)
def test_every_item_runs_once_in_order_and_batches_stay_within_limits(
    pieces: list[tuple[str, int]], max_cost: int, max_items: int
) -> None:
    costs = {str(number): cost for number, (_, cost) in enumerate(pieces)}
    model = Model()
    batcher: Batcher[str, str, str] = Batcher(model, Limits(max_cost, max_items, FAR_S))
    futures = [batcher.submit(bucket, str(number), cost) for number, (bucket, cost) in enumerate(pieces)]
    batcher.close()
    assert [future.result(0) for future in futures] == [str(number) for number in range(len(pieces))]
    for bucket in ("narrow", "wide"):
        ran = [work for name, works in model.runs if name == bucket for work in works]
        assert ran == [str(number) for number, (name, _) in enumerate(pieces) if name == bucket]
    for _, works in model.runs:
        assert len(works) <= max_items
        assert len(works) == 1 or sum(costs[work] for work in works) <= max_cost
