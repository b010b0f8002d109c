"""The crash denylist: shared by all processes, bounded in entries and time, and safe from torn writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support import Clock

from ocrsvc.engines.isolated.crash_handling import digest_of
from ocrsvc.records import Image, ReadOptions, ReadTask
from ocrsvc.serving.crash_denylist import CrashDenylist, Entry


def mark(number: int) -> bytes:
    """The digest of an image."""
    return number.to_bytes(16, "big")


def test_what_is_noted_is_found_and_listed() -> None:
    denylist = CrashDenylist(4, 60.0)
    denylist.note(mark(7), 2, "SIGSEGV")
    [entry] = denylist.entries()
    assert (entry.hash, entry.cause, entry.crashes, entry.is_refused) == (f"{7:032x}", "SIGSEGV", 2, True)
    assert 59 < entry.left_s <= 60
    assert (denylist.crashes(mark(7)), denylist.crashes(mark(8))) == (2, 0)


def test_a_new_count_takes_the_place_of_the_old_one() -> None:
    denylist = CrashDenylist(4, 60.0)
    denylist.note(mark(7), 1, "hang")
    denylist.note(mark(7), 2, "SIGABRT")
    assert [(entry.crashes, entry.cause) for entry in denylist.entries()] == [(2, "SIGABRT")]


def test_an_entry_expires_and_the_denylist_is_empty_again() -> None:
    clock = Clock(1000.0)
    denylist = CrashDenylist(4, 60.0, clock)
    assert denylist.is_empty()
    denylist.note(mark(7), 2, "hang")
    clock.now_s += 59.9
    assert (denylist.is_empty(), denylist.crashes(mark(7))) == (False, 2)
    clock.now_s += 0.2
    assert (denylist.is_empty(), denylist.crashes(mark(7)), denylist.entries()) == (True, 0, [])


def test_when_it_is_full_the_entry_that_expires_first_makes_room() -> None:
    clock = Clock(1000.0)
    denylist = CrashDenylist(2, 60.0, clock)
    for number in (1, 2, 3):
        clock.now_s += 1
        denylist.note(mark(number), 2, "hang")
    assert sorted(int(entry.hash, 16) for entry in denylist.entries()) == [2, 3]


def test_expired_entries_make_room_before_living_ones() -> None:
    clock = Clock(1000.0)
    denylist = CrashDenylist(2, 60.0, clock)
    denylist.note(mark(1), 2, "hang")
    clock.now_s += 50
    denylist.note(mark(2), 2, "hang")
    clock.now_s += 20
    denylist.note(mark(3), 2, "hang")
    assert sorted(int(entry.hash, 16) for entry in denylist.entries()) == [2, 3]


def test_an_image_that_was_read_after_all_is_forgotten() -> None:
    denylist = CrashDenylist(4, 60.0)
    denylist.note(mark(7), 1, "hang")
    denylist.clear(mark(7))
    assert denylist.crashes(mark(7)) == 0


@pytest.mark.parametrize(("asked", "forgotten", "left"), [(f"{1:032x}", 1, [2]), (None, 2, []), ("nothing", 0, [1, 2])])
def test_an_operator_can_forget_one_or_all(asked: str | None, forgotten: int, left: list[int]) -> None:
    denylist = CrashDenylist(4, 60.0)
    denylist.note(mark(1), 2, "hang")
    denylist.note(mark(2), 2, "hang")
    assert denylist.forget(asked) == forgotten
    assert sorted(int(entry.hash, 16) for entry in denylist.entries()) == left


def test_every_process_that_was_forked_after_it_shares_it() -> None:
    denylist = CrashDenylist(4, 60.0)
    pid = os.fork()
    if pid == 0:
        denylist.note(mark(7), 2, "SIGSEGV")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert denylist.crashes(mark(7)) == 2


@pytest.mark.parametrize("torn_at", [0, 20, 30, 45, 52])
def test_a_record_that_was_half_written_counts_as_empty(torn_at: int) -> None:
    denylist = CrashDenylist(1, 60.0)
    denylist.note(mark(7), 2, "SIGSEGV")
    memoryview(denylist._records).cast("B")[torn_at] ^= 0xFF
    assert denylist.entries() == []
    denylist.note(mark(8), 2, "hang")
    assert denylist.crashes(mark(8)) == 2


class _Overtaken(CrashDenylist):
    """Another process notes an image of its own between the search for a record and the look at it."""

    is_next = True

    def _read(self, number: int) -> Entry | None:
        if self.is_next:
            self.is_next = False
            self.note(mark(8), 2, "hang")
        return super()._read(number)


def test_a_record_that_another_image_takes_meanwhile_says_nothing_of_the_first() -> None:
    quarantine = _Overtaken(1, 60.0)
    quarantine.is_next = False
    quarantine.note(mark(7), 1, "SIGSEGV")
    quarantine.is_next = True
    assert quarantine.crashes(mark(7)) == 0
    assert quarantine.crashes(mark(8)) == 2


def a_task(seed: int = 0) -> ReadTask:
    return ReadTask(Image(np.random.default_rng(seed).integers(0, 256, (40, 30, 3), np.uint8), "png"))


def with_one_pixel_changed(task: ReadTask) -> ReadTask:
    pixels = task.image.pixels.copy()
    pixels[5, 5, 0] ^= 1
    return replace(task, image=replace(task.image, pixels=pixels))


def reshaped(task: ReadTask) -> ReadTask:
    return replace(task, image=replace(task.image, pixels=task.image.pixels.reshape(30, 40, 3)))


@pytest.mark.parametrize(
    "change",
    [
        with_one_pixel_changed,
        reshaped,
        lambda task: replace(task, options=ReadOptions(detect=False)),
        lambda task: replace(task, options=ReadOptions(rotate="0")),
        lambda task: replace(task, options=ReadOptions(upright_boxes=True)),
        lambda task: replace(task, options=ReadOptions(unwarp=False)),
    ],
)
def test_what_the_engine_would_see_otherwise_is_another_image(change: Callable[[ReadTask], ReadTask]) -> None:
    assert digest_of(change(a_task())) != digest_of(a_task())


def test_the_same_pixels_from_another_file_are_the_same_image() -> None:
    task = a_task()
    other = replace(task, image=Image(task.image.pixels.copy(), "jpeg"), deadline=5.0)
    assert digest_of(task) == digest_of(other)
