"""Idle hands help with a lone page, and go home when pages come."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads

LIMIT_S = 10.0


@pytest.fixture
def crew() -> Iterator[SharedThreads]:
    crew = SharedThreads(3)
    yield crew
    crew.close()


def test_a_lone_page_is_worked_on_by_every_hand_at_once(crew: SharedThreads) -> None:
    together = threading.Barrier(3)

    def work(_: int) -> int:
        return together.wait(LIMIT_S)  # passes only when three threads are inside at once

    with crew.page():
        assert sorted(crew.map(work, range(3))) == [0, 1, 2]


def test_results_come_in_the_order_of_the_items(crew: SharedThreads) -> None:
    with crew.page():
        assert crew.map(lambda item: item * 2, range(100)) == [item * 2 for item in range(100)]


def test_pages_for_every_hand_leave_no_helper(crew: SharedThreads) -> None:
    with crew.page(), crew.page(), crew.page():
        assert set(crew.map(lambda _: threading.get_ident(), range(20))) == {threading.get_ident()}
        with crew.all_hands() as alone:
            assert not alone


def test_helpers_go_home_when_pages_come(crew: SharedThreads) -> None:
    both_inside, more_pages = threading.Barrier(4), threading.Event()
    by_thread: list[int] = []

    def work(item: int) -> None:
        by_thread.append(threading.get_ident())
        if item < 3:
            both_inside.wait(LIMIT_S)
            assert more_pages.wait(LIMIT_S)

    def two_pages_come() -> None:
        both_inside.wait(LIMIT_S)
        with crew.page(), crew.page():
            more_pages.set()
            done.wait(LIMIT_S)

    done, others = threading.Event(), threading.Thread(target=two_pages_come)
    others.start()
    with crew.page():
        crew.map(work, range(30))
    done.set()
    others.join()
    helped = [thread for thread in by_thread if thread != threading.get_ident()]
    assert len(by_thread) == 30
    assert len(helped) == 2  # one item each: the one during which the pages came


def test_all_hands_go_to_one_lone_page_only(crew: SharedThreads) -> None:
    with crew.page(), crew.all_hands() as first, crew.all_hands() as second:
        assert (first, second) == (True, False)
        assert set(crew.map(lambda _: threading.get_ident(), range(9))) == {threading.get_ident()}
    with crew.page(), crew.all_hands() as again:
        assert again


@pytest.mark.parametrize("bad", [0, 7])
def test_a_failure_reaches_the_caller_and_every_hand_comes_back(crew: SharedThreads, bad: int) -> None:
    def work(item: int) -> None:
        if item == bad:
            raise ValueError("this line cannot be read")

    with crew.page():
        with pytest.raises(ValueError, match="this line"):
            crew.map(work, range(20))
        with crew.all_hands() as alone:
            assert alone


def test_one_hand_has_no_helpers() -> None:
    crew, before = SharedThreads(1), threading.active_count()
    with crew.page():
        assert set(crew.map(lambda _: threading.get_ident(), range(5))) == {threading.get_ident()}
        with crew.all_hands() as alone:
            assert not alone
    assert threading.active_count() == before
    crew.close()
