"""Which thread runs the detector, and how many large passes run at once; the sessions report when they run."""

import threading
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest
from ppocr_support import WatchedSession

from ocrsvc.engines.ppocr.pipeline.detector import ARENA_VALUES, Detector
from ocrsvc.engines.ppocr.runtime.session import Session
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.errors import DeadlineExceeded
from ocrsvc.results import Pixels

LIMIT_S = 60.0
SMALL = np.zeros((32, 32), np.uint8)
# So large that its memory is not kept for the next run.
LARGE = np.zeros((32, ARENA_VALUES // 96 + 32), np.uint8)


@pytest.fixture
def shared_threads() -> Iterator[SharedThreads]:
    shared_threads = SharedThreads(2)
    yield shared_threads
    shared_threads.close()


def watched(shared_threads: SharedThreads) -> tuple[WatchedSession, WatchedSession, Detector]:
    narrow, wide = WatchedSession(), WatchedSession()
    return narrow, wide, Detector(cast(Session, narrow), cast(Session, wide), shared_threads)


def start_reading(detector: Detector, shared_threads: SharedThreads, pixels: Pixels) -> threading.Thread:
    """Start reading a page in another thread; returns the thread."""

    def run_pass() -> None:
        with shared_threads.page():
            detector.run(pixels)

    thread = threading.Thread(target=run_pass)
    thread.start()
    return thread


def test_large_passes_take_turns_and_small_passes_run_beside_them(shared_threads: SharedThreads) -> None:
    narrow, wide, detector = watched(shared_threads)
    pages = [start_reading(detector, shared_threads, LARGE)]
    assert wide.entered.acquire(timeout=LIMIT_S)
    pages.append(start_reading(detector, shared_threads, SMALL))
    assert narrow.entered.acquire(timeout=LIMIT_S)
    pages.append(start_reading(detector, shared_threads, LARGE))
    narrow.go_on.set()
    wide.go_on.set()
    for page in pages:
        page.join(LIMIT_S)
    assert (wide.runs, wide.most, narrow.runs) == (2, 1, 1)


def test_a_cancelled_pass_stops_waiting_and_the_next_one_runs(shared_threads: SharedThreads) -> None:
    _, wide, detector = watched(shared_threads)
    stop, given_up = threading.Event(), threading.Event()

    def check() -> None:
        if stop.is_set():
            raise DeadlineExceeded("Too late.")

    def run_pass() -> None:
        with shared_threads.page(), pytest.raises(DeadlineExceeded):
            detector.run(LARGE, check)
        given_up.set()

    first = start_reading(detector, shared_threads, LARGE)
    assert wide.entered.acquire(timeout=LIMIT_S)
    waiting = threading.Thread(target=run_pass)
    waiting.start()
    last = start_reading(detector, shared_threads, LARGE)
    stop.set()
    assert given_up.wait(LIMIT_S)
    wide.go_on.set()
    for thread in (first, waiting, last):
        thread.join(LIMIT_S)
    assert wide.runs == 2
