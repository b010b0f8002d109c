"""Is what one process writes on the board what the others read, and are slots given out and freed as they should be?"""

from __future__ import annotations

import os

import pytest

from ocrsvc.telemetry.worker_limits import Reason
from ocrsvc.telemetry.worker_table import NOBODY, SLOTS, Snapshot, State, WorkerTable


def test_a_child_process_writes_what_its_parent_reads() -> None:
    board = WorkerTable()
    place = board.take(1.0)
    child = os.fork()
    if child == 0:
        slot = board.slot(place)
        slot.state, slot.reason, slot.wanted_s, slot.pid = State.READY, Reason.RSS_SOFT, 2.5, os.getpid()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert board.live() == [Snapshot(place, State.READY, child, Reason.RSS_SOFT, wanted_s=2.5, forked_s=1.0)]
    assert board.live()[0].wants


def test_a_slot_that_is_taken_again_remembers_nothing_of_the_worker_before() -> None:
    board = WorkerTable()
    first = board.slot(board.take(1.0))
    first.granted, first.successor, first.reason, first.rss_bytes, first.in_flight = 1, 5, 3, 7, 9
    board.free(0)
    assert board.live() == []
    assert board.take(2.0) == 0
    assert board.live() == [Snapshot(0, State.BOOTING, successor=NOBODY, forked_s=2.0)]
    assert (first.rss_bytes, first.in_flight, first.forked_s) == (0, 0, 2.0)


def test_the_lowest_free_slot_is_taken_and_the_most_that_lived_is_kept() -> None:
    board = WorkerTable()
    assert [board.take(0.0) for _ in range(3)] == [0, 1, 2]
    board.free(1)
    assert board.take(0.0) == 1
    assert (board.head.high, board.head.most_live) == (3, 3)


def test_the_board_holds_as_many_workers_as_it_says() -> None:
    board = WorkerTable()
    for _ in range(SLOTS):
        board.take(0.0)
    with pytest.raises(StopIteration):
        board.take(0.0)


def test_the_loads_are_those_of_the_siblings_that_accept() -> None:
    board = WorkerTable()
    for state, in_flight in ((State.READY, 3), (State.READY, 5), (State.DRAINING, 7), (State.BOOTING, 0)):
        slot = board.slot(board.take(0.0))
        slot.state, slot.in_flight = state, in_flight
    assert list(board.loads(besides=0)) == [5]


def test_what_the_others_hold_of_the_card_counts_while_they_leave_too_but_is_not_settled() -> None:
    board = WorkerTable()
    for state, gpu_bytes in ((State.READY, 3), (State.READY, 5), (State.READY, 7)):
        slot = board.slot(board.take(0.0))
        slot.state, slot.gpu_bytes = state, gpu_bytes
    assert board.card(besides=0) == (12, True)
    board.slot(2).state = State.DRAINING
    assert board.card(besides=0) == (12, False)
    assert board.card(besides=2) == (8, True)
