"""Bytes held together, and requests of one caller: never more than allowed, and nothing held afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrsvc.errors import BodyTooLarge, QueueFull, TooManyAtOnce
from ocrsvc.serving.memory_budget import Budget, Callers, Share


def test_what_is_held_is_free_again_when_its_request_ends() -> None:
    budget = Budget(100)
    first, second = Share(budget), Share(budget)
    first.take(70)
    with pytest.raises(QueueFull, match="OCRSVC_REQUEST_MEMORY_BYTES") as refusal:
        second.take(31)
    assert refusal.value.retry_after_s >= 1
    second.take(30)
    first.release()
    first.release()
    second.take(70)
    second.release()
    assert budget.held_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["take", "give_back", "release"]), st.integers(0, 60))))
def test_no_more_than_the_total_is_held_whatever_the_requests_do(steps: list[tuple[int, str, int]]) -> None:
    budget, held = Budget(100), [0] * 4
    shares = [Share(budget) for _ in held]
    for who, what, size in steps:
        if what == "release":
            shares[who].release()
            held[who] = 0
        elif what == "give_back":
            shares[who].give_back(min(size, held[who]))
            held[who] -= min(size, held[who])
        elif sum(held) + size <= 100:
            shares[who].take(size)
            held[who] += size
        else:
            with pytest.raises(BodyTooLarge if held[who] + size > 100 else QueueFull):
                shares[who].take(size)
        assert budget.held_bytes == sum(held) <= 100


def test_what_can_never_fit_is_told_apart_from_what_does_not_fit_now() -> None:
    budget = Budget(100)
    other, share = Share(budget), Share(budget)
    other.take(60)
    with share.holding(40):
        with pytest.raises(QueueFull):
            share.take(60)
        with pytest.raises(BodyTooLarge, match="100 bytes"):
            share.take(61)
    assert (share.held_bytes, budget.held_bytes) == (0, 60)


def test_beside_others_a_request_fills_no_more_than_its_part_and_alone_all() -> None:
    budget = Budget(100)
    other, share = Share(budget), Share(budget)
    other.take(10)
    with pytest.raises(QueueFull):
        share.take(60, part=0.5)
    other.release()
    share.take(100, part=0.5)


def test_what_is_handed_over_is_held_by_the_share_that_has_it() -> None:
    share = Share(Budget(100))
    share.take(60)
    handed_over = share.split(60)
    with pytest.raises(BodyTooLarge):
        handed_over.take(41)
    with pytest.raises(QueueFull):
        share.take(41)


def test_what_is_given_back_after_the_end_of_its_request_is_not_counted_twice() -> None:
    budget = Budget(100)
    share = Share(budget)
    with share.holding(60):
        share.release()
    assert (share.held_bytes, budget.held_bytes) == (0, 0)


def test_a_caller_over_its_cap_is_refused_and_the_others_are_not() -> None:
    callers = Callers(2)
    callers.enter("a")
    callers.enter("a")
    with pytest.raises(TooManyAtOnce, match="OCRSVC_CALLER_REQUESTS") as refusal:
        callers.enter("a")
    assert refusal.value.retry_after_s >= 1
    callers.enter("b")
    callers.leave("a")
    callers.enter("a")


def test_callers_without_a_request_are_forgotten() -> None:
    callers = Callers(1)
    for number in range(1000):
        callers.enter(str(number))
        callers.leave(str(number))
    assert len(callers) == 0
