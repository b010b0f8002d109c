"""The crash denylist: shared between processes, bounded in size and time, robust against torn writes."""

from dataclasses import replace

import numpy as np
import pytest
from support import Clock

from ocrsvc.engines.isolated.child import digest_of
from ocrsvc.results import Image, Pixels, ReadOptions, ReadTask
from ocrsvc.serving.crash_denylist import CrashDenylist


def mark(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_entries_expire() -> None:
    clock = Clock(1000.0)
    denylist = CrashDenylist(4, 60.0, clock)
    assert denylist.is_empty()
    denylist.note(mark(7), 2, "hang")
    clock.now_s += 59.9
    assert (denylist.is_empty(), denylist.crashes(mark(7))) == (False, 2)
    clock.now_s += 0.2
    assert (denylist.is_empty(), denylist.crashes(mark(7)), denylist.entries()) == (True, 0, [])


@pytest.mark.parametrize("waits_s", [(1, 1), (50, 20)], ids=["the first to expire", "one that has expired"])
def test_a_full_denylist_replaces_the_entry_that_expires_first(waits_s: tuple[int, int]) -> None:
    clock = Clock(1000.0)
    denylist = CrashDenylist(2, 60.0, clock)
    for number, wait_s in zip((1, 2, 3), (*waits_s, 0), strict=True):
        denylist.note(mark(number), 2, "hang")
        clock.now_s += wait_s
    assert sorted(int(entry.hash, 16) for entry in denylist.entries()) == [2, 3]


@pytest.mark.parametrize("torn_at", [0, 20, 30, 45, 52])
def test_a_half_written_record_counts_as_empty(torn_at: int) -> None:
    denylist = CrashDenylist(1, 60.0)
    denylist.note(mark(7), 2, "SIGSEGV")
    memoryview(denylist._records).cast("B")[torn_at] ^= 0xFF
    assert denylist.entries() == []
    denylist.note(mark(8), 2, "hang")
    assert denylist.crashes(mark(8)) == 2


def a_task(seed: int = 0) -> ReadTask:
    return ReadTask(Image(np.random.default_rng(seed).integers(0, 256, (40, 30, 3), np.uint8), "png"))


def with_pixels(task: ReadTask, pixels: Pixels) -> ReadTask:
    return replace(task, image=replace(task.image, pixels=pixels))


ONE_CHANGED = a_task().image.pixels.copy()
ONE_CHANGED[5, 5, 0] ^= 1


@pytest.mark.parametrize(
    "other",
    [
        with_pixels(a_task(), ONE_CHANGED),
        with_pixels(a_task(), a_task().image.pixels.reshape(30, 40, 3)),
        *(
            replace(a_task(), options=ReadOptions(**options))
            for options in ({"detect": False}, {"rotate": "0"}, {"upright_boxes": True}, {"unwarp": False})
        ),
    ],
)
def test_the_digest_changes_exactly_with_the_engines_input(other: ReadTask) -> None:
    assert digest_of(other) != digest_of(a_task())
    same = replace(a_task(), image=Image(a_task().image.pixels.copy(), "jpeg"), deadline=5.0)
    assert digest_of(same) == digest_of(a_task())
