"""When is a worker replaced, and why? The decision alone, without a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrsvc.worker.retire import Limits, Readings, Reason, calibrate, retire

MB = 10**6
GB = 10**9
FOOTPRINT = 300 * MB


def readings(**given: float) -> Readings:
    """A worker that is nowhere near any limit, but for what is given."""
    usual = {"requests": 10, "age_s": 10.0, "rss_bytes": FOOTPRINT, "footprint_bytes": FOOTPRINT}
    return Readings(**{**usual, **given})  # type: ignore[arg-type]  # the table's numbers


ALL = Limits(max_requests=1000, max_age_s=3600.0, rss_soft_bytes=800 * MB, rss_hard_bytes=1000 * MB)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (readings(), Reason.NONE),
        (readings(requests=999), Reason.NONE),
        (readings(requests=1000), Reason.MAX_REQUESTS),
        (readings(age_s=3599.9), Reason.NONE),
        (readings(age_s=3600.0), Reason.MAX_AGE),
        (readings(rss_bytes=800 * MB - 1), Reason.NONE),
        (readings(rss_bytes=800 * MB), Reason.RSS_SOFT),
        (readings(rss_bytes=1000 * MB), Reason.RSS_HARD),
        # The next batch like the largest so far would reach the hard limit.
        (readings(rss_bytes=750 * MB, leap_bytes=249 * MB), Reason.NONE),
        (readings(rss_bytes=750 * MB, leap_bytes=250 * MB), Reason.GROWTH),
        # 20 MB/s for the 15 s that a successor needs are 300 MB.
        (readings(rss_bytes=700 * MB, growth_bytes_per_s=20 * MB, notice_s=15.0), Reason.GROWTH),
        (readings(rss_bytes=690 * MB, growth_bytes_per_s=20 * MB, notice_s=15.0), Reason.NONE),
        # The same trend in a young worker says nothing yet: half of the room, up to 650 MB, is still free.
        (readings(rss_bytes=600 * MB, growth_bytes_per_s=50 * MB, notice_s=15.0), Reason.NONE),
        (readings(rss_bytes=700 * MB, growth_bytes_per_s=-50 * MB, notice_s=15.0), Reason.NONE),
        # What is most pressing is told.
        (readings(rss_bytes=1000 * MB, requests=1000, age_s=3600.0), Reason.RSS_HARD),
    ],
)
def test_a_worker_goes_for_the_reason_that_its_readings_give(found: Readings, reason: Reason) -> None:
    assert retire(found, ALL) is reason


def test_without_limits_a_worker_stays_for_ever() -> None:
    found = readings(requests=10**9, age_s=10.0**9, rss_bytes=10**15, leap_bytes=10**15, growth_bytes_per_s=1e15)
    assert retire(found, Limits()) is Reason.NONE


def life(growths: list[int], limits: Limits, footprint: int) -> Iterator[tuple[int, Reason]]:
    """Memory and verdict at each check of a worker that grows by so much between the checks."""
    rss, leap = footprint, 0
    for growth in growths:
        rss, leap = rss + growth, max(leap, growth)
        yield rss, retire(Readings(1, 1.0, rss, footprint, leap, float(growth * 10), 1.0), limits)


@given(batch=st.integers(1, 500 * MB), rooms=st.floats(0.01, 20.0), shares=st.lists(st.floats(-1.0, 1.0), max_size=20))
def test_a_leak_of_up_to_one_batch_a_check_never_reaches_the_hard_limit_unseen(
    batch: int, rooms: float, shares: list[float]
) -> None:
    soft = FOOTPRINT + int(rooms * batch) + 1
    limits = Limits(rss_soft_bytes=soft, rss_hard_bytes=soft + batch + 1)
    growths = [int(share * batch) for share in shares] + [batch] * 50
    rss, reason = next((rss, reason) for rss, reason in life(growths, limits, FOOTPRINT) if reason)
    assert rss < limits.rss_hard_bytes
    assert reason in (Reason.RSS_SOFT, Reason.GROWTH)


@given(leak=st.integers(1, 100 * MB), times=st.floats(2.01, 50))
def test_a_steady_leak_is_seen_before_the_hard_limit_without_any_soft_one(leak: int, times: float) -> None:
    limits = Limits(rss_hard_bytes=FOOTPRINT + int(leak * times) + 1)
    rss, reason = next((rss, reason) for rss, reason in life([leak] * 52, limits, FOOTPRINT) if reason)
    assert reason is Reason.GROWTH
    assert rss < limits.rss_hard_bytes


@given(
    footprint=st.integers(1, 4 * GB),
    memory=st.integers(0, 64 * GB),
    workers=st.integers(1, 64),
    soft=st.none() | st.integers(0, 8 * GB),
    hard=st.none() | st.integers(0, 8 * GB),
)
def test_a_worker_that_does_not_grow_is_never_replaced_for_its_memory(
    footprint: int, memory: int, workers: int, soft: int | None, hard: int | None
) -> None:
    limits = calibrate(soft, hard, footprint_bytes=footprint, memory_bytes=memory, workers=workers)
    assert retire(Readings(10**6, 1e6, footprint, footprint), limits) is Reason.NONE


@given(footprint=st.integers(50 * MB, 4 * GB), memory=st.integers(4 * GB, 512 * GB), workers=st.integers(1, 64))
def test_calibrated_limits_leave_room_for_a_successor(footprint: int, memory: int, workers: int) -> None:
    limits = calibrate(None, None, footprint_bytes=footprint, memory_bytes=memory, workers=workers)
    for limit, share in ((limits.rss_soft_bytes, 0.8), (limits.rss_hard_bytes, 0.9)):
        assert limit == 0 or workers * limit + footprint <= share * memory + workers


def test_limits_that_are_set_by_hand_are_kept_and_zero_is_none() -> None:
    given = {"footprint_bytes": 100 * MB, "memory_bytes": 10 * GB, "workers": 2}
    assert calibrate(500 * MB, 0, **given) == Limits(rss_soft_bytes=500 * MB)
    # (0.8 * 10 GB - 0.1 GB) / 2 and (0.9 * 10 GB - 0.1 GB) / 2.
    assert calibrate(None, None, **given) == Limits(rss_soft_bytes=3950 * MB, rss_hard_bytes=4450 * MB)
