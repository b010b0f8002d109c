"""Does the arbiter's side keep its promises, whatever happens in which order? With an arbiter that forks nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.errors import HaltServer
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrsvc.worker.retire import Reason
from ocrsvc.worker.rota import Rota
from ocrsvc.worker.scoreboard import NOBODY, Board, Slot, State
from ocrsvc.worker.succession import backoff_s

BASE = 3


class Cfg:
    """gunicorn's configuration, with the two settings that a reload touches."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.graceful_timeout = 30

    def set(self, name: str, value: object) -> None:
        setattr(self, name, value)


class Processes:
    """gunicorn's arbiter as in arbiter.py of 27.0.1, over processes that exist only in a table."""

    def __init__(self, base: int) -> None:
        self.now_s = 100.0
        self.log = logging.getLogger("test-rota")
        self.cfg = Cfg(base)
        self.rota = Rota(Board(), clock=lambda: self.now_s)
        self.WORKERS: dict[int, Any] = {}
        self.ended: list[int] = []
        self._count: int | None = None
        self._pid = 1000
        self.num_workers = base
        self.turn()

    @property
    def num_workers(self) -> int:
        assert self._count is not None
        return self._count

    @num_workers.setter
    def num_workers(self, count: int) -> None:
        before, self._count = self._count, count
        self.rota.count_changed(self, count, before)

    def turn(self) -> None:
        """One turn of the arbiter's loop: murder_workers, which looks at each worker, then manage_workers."""
        for worker in list(self.WORKERS.values()):
            worker.tmp.last_update()
        self.manage()

    def manage(self) -> None:
        for _ in range(self.num_workers - len(self.WORKERS)):
            self._fork()
        oldest_first = sorted(self.WORKERS)
        for pid in oldest_first[: max(0, len(self.WORKERS) - self.num_workers)]:
            self.ended.append(pid)
            self.slot(pid).state = State.DRAINING

    def signal(self, change: int) -> None:
        """SIGTTIN or SIGTTOU."""
        if change > 0 or self.num_workers > 1:
            self.num_workers += change
            self.manage()

    def hang_up(self) -> None:
        """SIGHUP, as in Arbiter.reload()."""
        self.cfg = Cfg(BASE)
        self.num_workers = self.cfg.workers
        self.rota.reload(self)
        for _ in range(self.cfg.workers):
            self._fork()
        self.manage()
        assert self.cfg.graceful_timeout == 0, "the loop would wait for the old workers"

    def reap(self, pid: int) -> None:
        worker = self.WORKERS.pop(pid)
        self.rota.after_exit(self, worker)

    def slot(self, pid: int) -> Slot:
        return self.rota.board.slot(self.WORKERS[pid].place)

    def pids(self, state: State) -> list[int]:
        return [pid for pid in sorted(self.WORKERS) if self.slot(pid).state == state]

    def make_ready(self, pid: int) -> None:
        slot, head = self.slot(pid), self.rota.board.head
        slot.state, slot.ready_s, head.ever_ready, head.boot_failures, head.backoff_until_s = 2, self.now_s, 1, 0, 0.0

    def drain_replaced(self) -> None:
        """What each worker's own watch does: drain once the successor is ready."""
        for pid in self.pids(State.READY):
            slot = self.slot(pid)
            if slot.granted and slot.successor != NOBODY and self.rota.board.slot(slot.successor).state == State.READY:
                slot.state, slot.drained_s = State.DRAINING, self.now_s

    def settle(self) -> None:
        """Let everything that is under way come to its end."""
        for _ in range(6 * BASE):
            self.now_s += 61.0
            for pid in self.pids(State.DRAINING):
                self.reap(pid)
            for pid in self.pids(State.BOOTING):
                self.make_ready(pid)
            self.drain_replaced()
            self.turn()

    def _fork(self) -> None:
        self._pid += 1
        worker = SimpleNamespace(pid=self._pid, cfg=self.cfg, tmp=SimpleNamespace(last_update=lambda: self.now_s))
        self.rota.before_fork(self, worker)
        self.WORKERS[self._pid] = worker
        self.slot(self._pid).pid = 0


def all_ready() -> Processes:
    processes = Processes(BASE)
    for pid in list(processes.WORKERS):
        processes.make_ready(pid)
    return processes


def want(processes: Processes, pid: int, reason: Reason = Reason.RSS_SOFT) -> None:
    processes.slot(pid).reason, processes.slot(pid).wanted_s = reason, processes.now_s


def test_the_successor_is_forked_before_the_old_worker_is_touched_and_the_count_comes_back() -> None:
    processes = all_ready()
    old = processes.pids(State.READY)[1]
    want(processes, old)
    processes.turn()
    assert processes.pids(State.READY) == sorted(set(processes.WORKERS) - set(processes.pids(State.BOOTING)))
    (new,) = processes.pids(State.BOOTING)
    assert processes.slot(old).successor == processes.WORKERS[new].place
    processes.make_ready(new)
    processes.drain_replaced()
    assert processes.pids(State.DRAINING) == [old]
    processes.reap(old)
    processes.turn()
    assert (processes.num_workers, len(processes.WORKERS), processes.ended) == (BASE, BASE, [])
    assert processes.rota.board.head.recycles[Reason.RSS_SOFT] == 1


def test_a_successor_that_dies_leaves_the_old_worker_serving_and_the_next_try_waits() -> None:
    processes = all_ready()
    old = processes.pids(State.READY)[0]
    want(processes, old)
    processes.turn()
    processes.reap(processes.pids(State.BOOTING)[0])
    processes.turn()
    assert (len(processes.WORKERS), processes.slot(old).state, processes.slot(old).granted) == (BASE, State.READY, 0)
    processes.now_s += 1.1
    processes.turn()
    assert processes.slot(old).granted == 1


def test_a_worker_that_dies_while_its_successor_loads_is_not_missed() -> None:
    processes = all_ready()
    old = processes.pids(State.READY)[0]
    want(processes, old)
    processes.turn()
    processes.reap(old)
    processes.settle()
    assert (len(processes.pids(State.READY)), processes.num_workers) == (BASE, BASE)


def test_a_reload_replaces_every_worker_and_never_holds_more_than_one_model_above_the_base() -> None:
    processes = all_ready()
    old = set(processes.WORKERS)
    processes.hang_up()
    assert set(processes.WORKERS) == old, "nothing is forked before the next look"
    processes.settle()
    assert not old & set(processes.WORKERS)
    assert (len(processes.pids(State.READY)), processes.cfg.workers, processes.cfg.graceful_timeout) == (BASE, BASE, 30)
    assert processes.rota.board.head.most_live == BASE + 1
    assert processes.ended == []


def test_the_service_ends_with_a_reason_when_nothing_was_ever_ready() -> None:
    processes = Processes(1)
    for _ in range(2):
        processes.reap(processes.pids(State.BOOTING)[0])
        processes.turn()
    with pytest.raises(HaltServer) as halt:
        processes.reap(processes.pids(State.BOOTING)[0])
    assert halt.value.exit_status == 3
    assert "3 workers died before they were ready" in str(halt.value.reason)


def test_the_service_ends_at_once_when_the_engine_cannot_be_opened_here_and_says_so_once() -> None:
    processes = all_ready()
    processes.rota.board.head.ever_ready, processes.rota.board.head.unusable = 0, 1
    first, second, _ = processes.WORKERS
    with pytest.raises(HaltServer):
        processes.reap(first)
    processes.reap(second)
    assert len(processes.WORKERS) == 1


def test_once_a_worker_was_ready_no_number_of_failed_boots_ends_the_service() -> None:
    processes = all_ready()
    want(processes, processes.pids(State.READY)[0])
    for _ in range(20):
        processes.now_s += 61.0
        processes.turn()
        processes.reap(processes.pids(State.BOOTING)[0])
    assert len(processes.pids(State.READY)) == BASE


def test_the_back_off_doubles_up_to_a_minute() -> None:
    assert [backoff_s(failures) for failures in (1, 2, 3, 6, 7, 1000)] == [1, 2, 4, 32, 60, 60]


Event = Callable[[Processes, int], None]


def _on(state: State, act: Callable[[Processes, int], object]) -> Event:
    """Do something to one of the workers in a state, if there is any."""

    def event(processes: Processes, which: int) -> None:
        if pids := processes.pids(state):
            act(processes, pids[which % len(pids)])

    return event


EVENTS: dict[str, Event] = {
    "turn": lambda processes, _: processes.turn(),
    "ttin": lambda processes, _: processes.signal(+1),
    "ttou": lambda processes, _: processes.signal(-1),
    "hup": lambda processes, _: processes.hang_up(),
    "wait": lambda processes, which: setattr(processes, "now_s", processes.now_s + which),
    "want": _on(State.READY, want),
    "ready": _on(State.BOOTING, Processes.make_ready),
    "boot failure": _on(State.BOOTING, Processes.reap),
    "crash": _on(State.READY, Processes.reap),
    "exit": _on(State.DRAINING, Processes.reap),
    "drain": lambda processes, _: processes.drain_replaced(),
}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0, 5)), max_size=60))
def test_whatever_happens_one_is_replaced_at_a_time_and_the_base_comes_back(events: list[tuple[str, int]]) -> None:
    processes = all_ready()
    for name, which in events:
        EVENTS[name](processes, which)
        standings = processes.rota.board.live()
        assert sum(standing.granted for standing in standings) <= 1
        assert len(standings) == len(processes.WORKERS) <= BASE + 1
        assert processes.ended == [], "the arbiter itself never ends a worker"
    processes.settle()
    assert (len(processes.pids(State.READY)), processes.num_workers) == (BASE, BASE)
