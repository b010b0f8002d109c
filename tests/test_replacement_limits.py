"""When and why a worker is replaced: the pure decision functions."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrsvc.telemetry.worker_table import Reason
from ocrsvc.worker.watch import Bounds, Limits, Usage, calibrate, calibrate_gpu, reason_to_replace

MB = 10**6
GB = 10**9
FOOTPRINT = 300 * MB


ALL = Limits(1000, 3600.0, rss=Bounds(800 * MB, 1000 * MB), gpu=Bounds(800 * MB, 1000 * MB))
KINDS = ("rss", "gpu")


def reason_of(limits: Limits, kind: str, usage: Usage) -> Reason:
    """The reason to replace a worker whose only relevant measurement is `usage` of this kind."""
    return reason_to_replace(limits, 10, 10.0, **{"rss": Usage(), "gpu": Usage()} | {kind: usage})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Usage(FOOTPRINT), "none"),
        (Usage(800 * MB - 1), "none"),
        (Usage(800 * MB), "soft"),
        (Usage(1000 * MB), "hard"),
        # Another step as large as the largest so far would reach the hard limit.
        (Usage(750 * MB, max_step_bytes=249 * MB), "none"),
        (Usage(750 * MB, max_step_bytes=250 * MB), "growth"),
    ],
)
def test_memory_reasons(kind: str, found: Usage, reason: str) -> None:
    expected = Reason.NONE if reason == "none" else Reason[f"{kind}_{reason}".upper()]
    assert reason_of(ALL, kind, found) is expected


def test_largest_step_is_kept_and_neither_the_first_check_nor_loading_a_model_is_one() -> None:
    usage = Usage()
    for now_bytes in (100, 400, 390, 450):
        usage = usage.then(now_bytes)
    assert usage == Usage(450, 300)
    assert usage.then(950, is_step=False) == Usage(950, 300)


def life(kind: str, growths: list[int], bounds: Bounds, footprint: int) -> Iterator[tuple[int, Reason]]:
    """Memory in bytes and reason at each check of a worker that grows by `growths` between checks."""
    limits, now = Limits(rss=bounds) if kind == "rss" else Limits(gpu=bounds), footprint
    usage = Usage()
    for growth in growths:
        now += growth
        usage = usage.then(now)
        yield now, reason_of(limits, kind, usage)


@given(
    kind=st.sampled_from(KINDS),
    batch=st.integers(1, 500 * MB),
    rooms=st.floats(0.01, 20.0),
    shares=st.lists(st.floats(-1.0, 1.0), max_size=20),
)
def test_leak_is_noticed_before_the_hard_limit(kind: str, batch: int, rooms: float, shares: list[float]) -> None:
    soft = FOOTPRINT + int(rooms * batch) + 1
    bounds = Bounds(soft, soft + batch + 1)
    growths = [int(share * batch) for share in shares] + [batch] * 50
    now, reason = next((now, reason) for now, reason in life(kind, growths, bounds, FOOTPRINT) if reason)
    assert now < bounds.hard_bytes
    assert reason.name.endswith(("SOFT", "GROWTH"))


AMOUNTS = {
    "footprint": st.integers(1, 4 * GB),
    "memory": st.integers(0, 64 * GB),
    "workers": st.integers(1, 64),
    "soft": st.none() | st.integers(0, 8 * GB),
    "hard": st.none() | st.integers(0, 8 * GB),
}


@given(**AMOUNTS)
def test_steady_worker_is_never_replaced(
    footprint: int, memory: int, workers: int, soft: int | None, hard: int | None
) -> None:
    rss = calibrate(soft, hard, footprint_bytes=footprint, memory_bytes=memory, workers=workers)
    gpu = calibrate_gpu(soft, hard, footprint_bytes=footprint, gpu_memory_bytes=memory, workers=workers)
    found = Usage(footprint)
    assert reason_to_replace(Limits(rss=rss, gpu=gpu), 10**6, 1e6, found, found) is Reason.NONE


@pytest.mark.parametrize(
    ("gpu", "bounds"),
    [
        # (0.85 * 24 - 2) / 2 and (0.95 * 24 - 2) / 2 GB leave room for a successor.
        (24 * GB, Bounds(9200 * MB, 10400 * MB)),
        # With room for a successor: (0.85 * 6 - 2) / 2 = 1.55 GB, below the footprint. Without: 0.85 and 0.95 * 6 / 2.
        (6 * GB, Bounds(2550 * MB, 2850 * MB)),
        # 0.85 * 4.4 / 2 GB is below the footprint of 2 GB; 0.95 * 4.4 / 2 GB is not.
        (4400 * MB, Bounds(0, 2090 * MB)),
        (4 * GB, Bounds()),
    ],
)
def test_small_gpu_is_shared_without_room_for_a_successor(gpu: int, bounds: Bounds) -> None:
    assert calibrate_gpu(None, None, footprint_bytes=2 * GB, gpu_memory_bytes=gpu, workers=2) == bounds


@pytest.mark.parametrize(
    ("calibrated", "bounds"),
    [
        # (0.8 * 10 GB - 0.1 GB) / 2 and (0.9 * 10 GB - 0.1 GB) / 2.
        (calibrate, Bounds(3950 * MB, 4450 * MB)),
        # (0.85 * 10 GB - 0.1 GB) / 2 and (0.95 * 10 GB - 0.1 GB) / 2.
        (calibrate_gpu, Bounds(4200 * MB, 4700 * MB)),
    ],
)
def test_set_limits_are_kept_and_zero_is_no_limit(calibrated: Callable[..., Bounds], bounds: Bounds) -> None:
    whole = "memory_bytes" if calibrated is calibrate else "gpu_memory_bytes"
    given = {"footprint_bytes": 100 * MB, whole: 10 * GB, "workers": 2}
    assert calibrated(500 * MB, 0, **given) == Bounds(500 * MB, 0)
    assert calibrated(None, None, **given) == bounds


def test_calibrated_limits_leave_room_for_the_models_of_all_workers() -> None:
    without = calibrate(None, None, footprint_bytes=FOOTPRINT, memory_bytes=16 * GB, workers=2)
    reserved = calibrate(None, None, footprint_bytes=FOOTPRINT, memory_bytes=16 * GB, workers=2, reserved_bytes=GB)
    assert (without.soft_bytes - reserved.soft_bytes, without.hard_bytes - reserved.hard_bytes) == (GB, GB)
