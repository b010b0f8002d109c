"""Shared worker threads: idle threads help with a single page and stop helping when other pages arrive."""

import threading
from collections.abc import Iterator

import pytest

from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads

LIMIT_S = 60.0


@pytest.fixture
def shared_threads() -> Iterator[SharedThreads]:
    shared_threads = SharedThreads(3)
    yield shared_threads
    shared_threads.close()


def test_all_threads_work_on_a_single_page_at_once(shared_threads: SharedThreads) -> None:
    together = threading.Barrier(3)

    def work(_: int) -> int:
        return together.wait(LIMIT_S)  # passes only when three threads are inside at once

    with shared_threads.page():
        assert sorted(shared_threads.map(work, range(3))) == [0, 1, 2]


def test_no_thread_helps_if_there_is_only_one_or_every_thread_has_a_page(shared_threads: SharedThreads) -> None:
    one, before = SharedThreads(1), threading.active_count()
    with one.page(), shared_threads.page(), shared_threads.page(), shared_threads.page():
        for threads in (one, shared_threads):
            assert set(threads.map(lambda _: threading.get_ident(), range(20))) == {threading.get_ident()}
            with threads.all_threads() as alone:
                assert not alone
    assert threading.active_count() == before
    one.close()


def test_only_one_call_at_a_time_gets_all_threads(shared_threads: SharedThreads) -> None:
    with shared_threads.page(), shared_threads.all_threads() as first, shared_threads.all_threads() as second:
        assert (first, second) == (True, False)
        assert set(shared_threads.map(lambda _: threading.get_ident(), range(9))) == {threading.get_ident()}
    with shared_threads.page(), shared_threads.all_threads() as again:
        assert again


@pytest.mark.parametrize("bad", [0, 7])
def test_failure_reaches_the_caller_and_frees_all_threads(shared_threads: SharedThreads, bad: int) -> None:
    def work(item: int) -> None:
        if item == bad:
            raise ValueError("this line cannot be read")

    with shared_threads.page():
        with pytest.raises(ValueError, match="this line"):
            shared_threads.map(work, range(20))
        with shared_threads.all_threads() as alone:
            assert alone
