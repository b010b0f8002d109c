"""Processes share the worker table; entries are allocated and freed in order."""

import os
from typing import Any

import pytest

from ocrsvc.telemetry.worker_table import NO_SUCCESSOR, Reason, Snapshot, State, WorkerEntry, WorkerTable


def test_parent_reads_what_a_child_writes() -> None:
    worker_table = WorkerTable()
    place = worker_table.allocate(1.0)
    child = os.fork()
    if child == 0:
        entry = worker_table.entry(place)
        entry.state, entry.reason, entry.wanted_s, entry.pid = State.READY, Reason.RSS_SOFT, 2.5, os.getpid()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert worker_table.live() == [Snapshot(place, State.READY, child, Reason.RSS_SOFT, wanted_s=2.5, forked_s=1.0)]
    assert worker_table.live()[0].awaits_grant


class _BeginsToDrain:
    """An entry whose worker starts to drain after `reads` of its fields were read."""

    def __init__(self, entry: WorkerEntry, reads: int) -> None:
        self._entry, self._reads = entry, reads

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._entry, name)
        self._reads -= 1
        if not self._reads:
            self._entry.drained_s, self._entry.state = 9.0, State.DRAINING
        return value


@pytest.mark.parametrize("reads", range(1, 20))
def test_snapshot_during_the_start_of_a_drain_is_consistent(reads: int) -> None:
    worker_table = WorkerTable()
    entry = worker_table.entry(worker_table.allocate(1.0))
    entry.state = State.READY
    worker_table._entries = [_BeginsToDrain(entry, reads)]  # type: ignore[assignment]
    [worker] = worker_table.live()
    assert worker.state is State.READY or worker.drained_s == 9.0


def test_lowest_free_entry_is_taken_and_cleared_and_the_maximum_recorded() -> None:
    worker_table = WorkerTable()
    first = worker_table.entry(worker_table.allocate(1.0))
    first.granted, first.successor, first.reason, first.rss_bytes, first.in_flight = 1, 5, 3, 7, 9
    worker_table.free(0)
    assert worker_table.live() == []
    assert worker_table.allocate(2.0) == 0
    assert worker_table.live() == [Snapshot(0, State.BOOTING, successor=NO_SUCCESSOR, forked_s=2.0)]
    assert (first.rss_bytes, first.in_flight, first.forked_s) == (0, 0, 2.0)
    assert [worker_table.allocate(0.0) for _ in range(2)] == [1, 2]
    worker_table.free(1)
    assert worker_table.allocate(0.0) == 1
    assert (worker_table.head.high, worker_table.head.most_live) == (3, 3)


def test_requests_in_flight_are_those_of_ready_siblings() -> None:
    worker_table = WorkerTable()
    for state, in_flight in ((State.READY, 3), (State.READY, 5), (State.DRAINING, 7), (State.BOOTING, 0)):
        entry = worker_table.entry(worker_table.allocate(0.0))
        entry.state, entry.in_flight = state, in_flight
    assert list(worker_table.requests_in_flight(excluding=0)) == [5]


def test_gpu_use_of_others_includes_draining_workers_as_unsettled() -> None:
    worker_table = WorkerTable()
    for state, gpu_bytes in ((State.READY, 3), (State.READY, 5), (State.READY, 7)):
        entry = worker_table.entry(worker_table.allocate(0.0))
        entry.state, entry.gpu_bytes = state, gpu_bytes
    assert worker_table.gpu_use_of_others(0) == (12, True)
    worker_table.entry(2).state = State.DRAINING
    assert worker_table.gpu_use_of_others(0) == (12, False)
    assert worker_table.gpu_use_of_others(2) == (8, True)
