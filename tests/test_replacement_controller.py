"""The replacement controller keeps its invariants for any order of events; a simulated arbiter forks nothing."""

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import data_of

from ocrsvc.telemetry.worker_table import NO_SUCCESSOR, Granted, Head, Reason, Snapshot, State, WorkerEntry, WorkerTable
from ocrsvc.worker.replacement_controller import ReplacementController, is_next_to_load, next_grant

BASE = 3


class GunicornConfig:
    """gunicorn's configuration, with the two settings that a reload changes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.graceful_timeout = 30

    def set(self, name: str, value: object) -> None:
        setattr(self, name, value)


class Arbiter:
    """A simulation of gunicorn 27.0.1's arbiter, whose workers exist only in a table."""

    def __init__(self, base: int) -> None:
        self.now_s = 100.0
        self.free_bytes = 1000
        self.log = logging.getLogger("test-controller")
        self.cfg = GunicornConfig(base)
        self.table = WorkerTable()
        self.head = self.table.head
        self.controller: Any = ReplacementController(self.table, clock=lambda: self.now_s)
        self.WORKERS: dict[int, Any] = {}
        self.ended: list[int] = []
        self.killed: list[tuple[int, int]] = []
        self.forks_fail = False
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
        if before is None:
            self.controller.worker_table.head.base = count
        else:
            self.controller.set_count(self)

    def turn(self) -> None:
        """One turn of the arbiter's loop: murder_workers (extended by the controller), then manage_workers."""
        self.controller.run_once(self)
        self.manage()

    def manage(self) -> None:
        for _ in range(self.num_workers - len(self.WORKERS)):
            self._try_to_fork()
        oldest_first = sorted(self.WORKERS)
        for pid in oldest_first[: max(0, len(self.WORKERS) - self.num_workers)]:
            self.ended.append(pid)
            self.entry(pid).state = State.DRAINING

    def signal(self, change: int) -> None:
        if change > 0 or self.num_workers > 1:
            self.num_workers += change
            self.manage()

    def reload(self) -> None:
        self.cfg = GunicornConfig(BASE)
        self.num_workers = self.cfg.workers
        self.controller.reload(self)
        for _ in range(self.cfg.workers):
            self._try_to_fork()
        self.manage()
        assert self.cfg.graceful_timeout == 0, "or the arbiter would wait for the old workers"

    def kill_worker(self, pid: int, sig: int) -> None:
        self.killed.append((pid, sig))

    def reap(self, pid: int) -> None:
        worker = self.WORKERS.pop(pid)
        self.controller.after_exit(self, worker)

    def entry(self, pid: int) -> WorkerEntry:
        entry: WorkerEntry = self.table.entry(self.WORKERS[pid].slot_number)
        return entry

    def pids(self, state: State) -> list[int]:
        return [pid for pid in sorted(self.WORKERS) if self.entry(pid).state == state]

    def make_ready(self, pid: int) -> None:
        entry, head = self.entry(pid), self.head
        entry.state, entry.ready_s, head.ever_ready, head.boot_failures, head.backoff_until_s = 2, self.now_s, 1, 0, 0.0

    def read_gpu(self, free_bytes: int) -> None:
        """Record free GPU memory as each worker's monitor does; a model takes 100 bytes."""
        self.head.gpu_footprint_bytes = 100
        self.now_s += 0.1
        for pid in self.pids(State.READY):
            self.entry(pid).gpu_free_bytes, self.entry(pid).gpu_read_s = free_bytes, self.now_s

    def drain_replaced(self) -> None:
        """Drain replaced workers as their monitors do: once the successor is ready or DRAIN_FIRST is granted."""
        for pid in self.pids(State.READY):
            entry = self.entry(pid)
            if entry.granted == Granted.DRAIN_FIRST or (
                entry.granted
                and entry.successor != NO_SUCCESSOR
                and self.table.entry(entry.successor).state == State.READY
            ):
                entry.state, entry.drained_s = State.DRAINING, self.now_s

    def settle(self) -> None:
        for _ in range(6 * BASE):
            self.now_s += 61.0
            for pid in self.pids(State.DRAINING):
                self.reap(pid)
            for pid in self.pids(State.BOOTING):
                self.make_ready(pid)
            self.drain_replaced()
            self.read_gpu(self.free_bytes)
            self.turn()

    def _try_to_fork(self) -> None:
        if not self.controller.is_backing_off():
            self._fork()

    def _fork(self) -> None:
        self._pid += 1
        worker = SimpleNamespace(pid=self._pid, cfg=self.cfg)
        self.controller.before_fork(worker)
        if self.forks_fail:
            self.controller.fork_refused(self, BlockingIOError(11, "try again"))
            return
        self.WORKERS[self._pid] = worker
        self.entry(self._pid).pid = 0


def all_ready() -> Arbiter:
    arbiter = Arbiter(BASE)
    for pid in list(arbiter.WORKERS):
        arbiter.make_ready(pid)
    return arbiter


def request_replacement(arbiter: Arbiter, pid: int, reason: Reason = Reason.RSS_SOFT) -> None:
    arbiter.entry(pid).reason, arbiter.entry(pid).wanted_s = reason, arbiter.now_s


def test_memory_reasons_go_before_a_reload() -> None:
    arbiter = all_ready()
    *_, pid = arbiter.pids(State.READY)
    request_replacement(arbiter, pid, Reason.RSS_HARD)
    arbiter.reload()
    assert arbiter.entry(pid).reason == Reason.RSS_HARD
    arbiter.turn()
    assert arbiter.entry(pid).granted == Granted.SUCCESSOR


def test_reload_forgets_the_models_footprint() -> None:
    arbiter = all_ready()
    arbiter.read_gpu(free_bytes=50)
    arbiter.reload()
    arbiter.turn()
    assert Granted.SUCCESSOR in [arbiter.entry(pid).granted for pid in arbiter.pids(State.READY)]


def test_single_worker_drains_first_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    arbiter = Arbiter(1)
    (pid,) = arbiter.WORKERS
    arbiter.make_ready(pid)
    request_replacement(arbiter, pid)
    arbiter.read_gpu(0)
    with caplog.at_level(logging.WARNING):
        arbiter.turn()
    assert arbiter.entry(pid).granted == Granted.DRAIN_FIRST
    assert "no other is ready, so requests wait during the load" in caplog.text


@pytest.mark.parametrize(("failures", "serves", "said"), data_of("failed_boots"))
def test_a_failed_boot_is_logged(failures: int, serves: bool, said: str, caplog: pytest.LogCaptureFixture) -> None:
    arbiter = Arbiter(2)
    failed, other = arbiter.WORKERS
    if serves:
        arbiter.make_ready(other)
    arbiter.head.boot_failures = failures
    arbiter.reap(failed)
    arbiter.controller.fork_refused(arbiter, BlockingIOError(11, "try again"))
    assert said in caplog.text
    assert ("s; the other workers keep serving." in caplog.text) is serves


def ready(slot: int, **more: Any) -> Snapshot:
    return Snapshot(slot, State.READY, gpu_read_s=5.0, gpu_free_bytes=1000, **more)


@pytest.mark.parametrize(
    ("workers", "exited_s", "kind"),
    [
        ([ready(0, reason=Reason.RELOAD), ready(1)], 0.0, Granted.SUCCESSOR),
        # 100 bytes for the model and 901 for the largest step of any worker exceed the 1000 free bytes.
        ([ready(0, reason=Reason.RELOAD), ready(1, gpu_max_step_bytes=901)], 0.0, Granted.DRAIN_FIRST),
        ([ready(0, reason=Reason.RELOAD), ready(1, gpu_max_step_bytes=900)], 0.0, Granted.SUCCESSOR),
        # The lowest reading of all workers counts.
        ([ready(0, reason=Reason.RELOAD), replace(ready(1), gpu_free_bytes=99)], 0.0, Granted.DRAIN_FIRST),
        # Wait for a reading newer than the last exit, which released memory.
        ([ready(0, reason=Reason.RELOAD), ready(1)], 5.0, None),
        # Without readings there is no GPU.
        ([Snapshot(0, State.READY, reason=Reason.RELOAD), Snapshot(1, State.READY)], 5.0, Granted.SUCCESSOR),
        ([ready(0, reason=Reason.RELOAD), Snapshot(1, State.BOOTING)], 0.0, None),
        ([ready(0, reason=Reason.RELOAD), Snapshot(1, State.DRAINING)], 0.0, None),
        ([ready(0, reason=Reason.RELOAD)], 0.0, None),
    ],
)
def test_free_gpu_memory_admits_a_successor(workers: list[Snapshot], exited_s: float, kind: Granted | None) -> None:
    grant = next_grant(Head(base=2, exited_s=exited_s, gpu_footprint_bytes=100), workers, 10.0)
    assert (grant[1] if grant else None) is kind


def test_workers_load_in_fork_order() -> None:
    workers = [
        Snapshot(0, State.BOOTING, forked_s=3.0),
        Snapshot(1, State.READY, forked_s=1.0),
        Snapshot(2, State.BOOTING, forked_s=2.0),
        Snapshot(3, State.BOOTING, forked_s=2.0),
    ]
    assert [slot for slot in (0, 2, 3) if is_next_to_load(slot, workers)] == [2]


Event = Callable[[Arbiter, int], None]


def _on(state: State, act: Callable[[Arbiter, int], object]) -> Event:
    def event(arbiter: Arbiter, which: int) -> None:
        if pids := arbiter.pids(state):
            act(arbiter, pids[which % len(pids)])

    return event


EVENTS: dict[str, Event] = {
    "turn": lambda arbiter, _: arbiter.turn(),
    "ttin": lambda arbiter, _: arbiter.signal(+1),
    "ttou": lambda arbiter, _: arbiter.signal(-1),
    "hup": lambda arbiter, _: arbiter.reload(),
    "wait": lambda arbiter, which: setattr(arbiter, "now_s", arbiter.now_s + which),
    "want": _on(State.READY, request_replacement),
    "ready": _on(State.BOOTING, Arbiter.make_ready),
    "boot failure": _on(State.BOOTING, Arbiter.reap),
    "crash": _on(State.READY, Arbiter.reap),
    "exit": _on(State.DRAINING, Arbiter.reap),
    "drain": lambda arbiter, _: arbiter.drain_replaced(),
    "gpu": lambda arbiter, which: arbiter.read_gpu(40 * which),
}


@settings(max_examples=300, deadline=None)
@given(
    events=st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0, 5)), max_size=60),
    free_bytes=st.sampled_from([0, 1000]),
)
def test_random_events_never_replace_two_workers_at_once(events: list[tuple[str, int]], free_bytes: int) -> None:
    arbiter = all_ready()
    arbiter.free_bytes = free_bytes
    for name, which in events:
        first_before = arbiter.head.drain_first
        EVENTS[name](arbiter, which)
        snapshots = arbiter.table.live()
        assert sum(bool(snapshot.granted) for snapshot in snapshots) <= 1
        assert len(snapshots) == len(arbiter.WORKERS) <= BASE + 1
        assert arbiter.ended == [], "the arbiter never ends a worker itself"
        is_short = len(arbiter.WORKERS) < BASE
        assert name != "turn" or not is_short or arbiter.controller.is_backing_off()
        if arbiter.head.drain_first > first_before:
            assert len(arbiter.pids(State.READY)) == BASE, "DRAIN_FIRST is granted only while all workers serve"
    arbiter.settle()
    assert (len(arbiter.pids(State.READY)), arbiter.num_workers) == (BASE, BASE)


def test_refused_fork_frees_the_slot_and_is_granted_again() -> None:
    arbiter = all_ready()
    old = next(iter(arbiter.WORKERS))
    request_replacement(arbiter, old)
    arbiter.forks_fail = True
    arbiter.turn()
    assert (arbiter.entry(old).granted, arbiter.entry(old).successor) == (Granted.NOTHING, NO_SUCCESSOR)
    assert len(arbiter.table.live()) == arbiter.num_workers == BASE
    waits_s = []
    for _ in range(8):
        began_s = arbiter.now_s
        while arbiter.controller.is_backing_off():
            arbiter.now_s += 1.0
        waits_s.append(arbiter.now_s - began_s)
        arbiter.turn()
    assert waits_s == [1, 2, 4, 8, 16, 32, 60, 60]
    arbiter.forks_fail = False
    arbiter.settle()
    assert old not in arbiter.WORKERS
    assert len(arbiter.WORKERS) == BASE


def test_backoff_is_short_while_no_worker_serves() -> None:
    arbiter = all_ready()
    arbiter.forks_fail = True
    for pid in list(arbiter.WORKERS):
        arbiter.reap(pid)
    for _ in range(10):
        arbiter.now_s += 4.0
        assert not arbiter.controller.is_backing_off()
        arbiter.turn()


@pytest.mark.parametrize("ending", ["dies", "drains"])
def test_backoff_shortens_when_the_last_worker_ends(ending: str) -> None:
    arbiter = Arbiter(1)
    (pid,) = arbiter.WORKERS
    arbiter.make_ready(pid)
    for _ in range(8):
        arbiter.controller.fork_refused(arbiter, BlockingIOError(11, "try again"))
    assert arbiter.head.backoff_until_s == arbiter.now_s + 60.0
    if ending == "dies":
        arbiter.reap(pid)
    else:
        arbiter.entry(pid).state, arbiter.entry(pid).drained_s = State.DRAINING, arbiter.now_s
        arbiter.turn()
    arbiter.now_s += 4.0
    assert not arbiter.controller.is_backing_off()


@pytest.mark.parametrize(("unusable", "failures"), [(1, 1), (0, 3)])
def test_service_waits_for_loading_workers_before_it_ends(unusable: int, failures: int) -> None:
    arbiter = Arbiter(2)
    failed, loading = arbiter.WORKERS
    arbiter.head.boot_failures, arbiter.head.unusable = failures, unusable
    arbiter.reap(failed)
    arbiter.now_s += 61.0
    arbiter.turn()
    assert list(arbiter.WORKERS) == [loading]
    arbiter.make_ready(loading)
    arbiter.turn()
    assert len(arbiter.WORKERS) == 2, "the failed worker is replaced"
