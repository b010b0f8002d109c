"""Failures while versions are loaded, proved and drained affect no request and no other version."""

import atexit
import errno
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from models_support import make_fake
from support import wait_until
from test_loaded_models import FAR_S, MIB, serving, version
from test_model_watcher import fake_version, prover, serving_worker

from ocrsvc.errors import ClientGone, EngineUnavailable, ModelUnavailable, NotReady, OperatorError
from ocrsvc.models.model_control import CHECK_S, open_control
from ocrsvc.models.proof.verdicts import LOADS_FOLDER, MAX_CRASHES, CrashGuard, Verdicts
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import FILE, Judgement, StateStore, Verdict
from ocrsvc.models.version_loader import LoadState
from ocrsvc.models.watcher import MAX_FAILURES
from ocrsvc.settings.settings import Settings
from ocrsvc.system.child_process import Program

T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Make the call in another thread; returns its future."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with one version of the model `fake`."""
    make_fake(tmp_path / "models", 1)
    return tmp_path / "models"


def test_requests_waiting_for_a_successor_are_not_limited() -> None:
    with serving(15, max_waiting=1) as (models, machine, _):
        models.preload(version("a"))
        gate = machine.gates["b/10"] = threading.Event()
        models.retire(version("a"))
        waiting = [in_thread(lambda: models.preload(version("b")))]
        wait_until(lambda: [one.version.name for one in models.list() if one.state is LoadState.LOADING] == ["b"])
        waiting += [in_thread(lambda: models.lease(version("b")).close()) for _ in range(3)]
        gate.set()
        assert [one.result(FAR_S) for one in waiting] == [None] * 4


def test_concurrent_leases_and_retirements_stay_consistent() -> None:
    """Twelve threads, five versions (two fit, one fails), clients that disconnect, and a clock that jumps."""
    outcomes: Counter[str] = Counter()
    with serving(25, any_thread=False, max_waiting=6) as (models, machine, _):
        machine.failures["e/10"] = OSError("gone from the disk")
        names, done = "abcde", threading.Event()

        def ask(seed: int) -> None:
            chance, turns = random.Random(seed), 0
            # How many of the first requests succeed depends on the order of the threads.
            while turns < 80 or outcomes["read"] <= 100:
                turns += 1
                name = chance.choice(names)
                try:
                    with closing(models.lease(version(name), machine.now_s + 2.0, random_disconnects(chance))) as lease:
                        assert lease.version == version(name)
                        lease.describe()
                        if chance.random() < 0.1:
                            models.retire(version(chance.choice(names)))
                    outcomes["read"] += 1
                except (NotReady, ModelUnavailable, ClientGone) as error:
                    outcomes[type(error).__name__] += 1

        def tick() -> None:
            chance, jump_s = random.Random(0), 0.0
            while not done.wait(0.002):
                jump_s += 5.0 if chance.random() < 0.01 else 0.0
                machine.now_s = time.monotonic() + jump_s

        clients = [in_thread(partial(ask, seed)) for seed in range(12)]
        ticker = in_thread(tick)
        try:
            for client in clients:
                client.result(FAR_S)
            wait_until(lambda: models.is_settled)
            assert machine.max_bytes <= 25 * MIB
            assert {one.leases for one in models.list()} <= {0}
            assert models.held_bytes() == machine.held_bytes
            machine.failures.clear()
            for name in names:
                # The clock advances, so that versions loaded just now can be evicted.
                models.preload(version(name), machine.now_s + 100 * FAR_S)
        finally:
            done.set()
        ticker.result(FAR_S)
    assert outcomes.total() >= 12 * 80
    assert outcomes["read"] > 100, outcomes


def random_disconnects(chance: random.Random) -> Callable[[], None]:
    """Make a check that sometimes raises ClientGone."""

    def check() -> None:
        if chance.random() < 0.3:
            raise ClientGone("It has gone.")

    return check


def test_a_worker_that_ends_does_not_wait_for_a_version_that_drains() -> None:
    with serving(15) as (models, _, _), closing(models.lease(version("a"))):
        waiting_call = in_thread(lambda: models.lease(version("b")))
        wait_until(lambda: models.list()[0].state is LoadState.DRAINING)
        models.stop()
        assert isinstance(waiting_call.exception(FAR_S), NotReady)
        wait_until(lambda: models.is_settled, "the loading thread ends")


def test_lack_of_room_is_not_a_failure_of_the_version(models: Path) -> None:
    worker = serving_worker(models)
    make_fake(models, 2)
    load, is_busy = worker.loaded.preload, True

    def preload(wanted: Any, deadline: float = FAR_S) -> None:
        if is_busy and wanted.number == 2:
            raise ModelUnavailable("There is no room: all others are being used.")
        load(wanted, deadline)

    worker.loaded.preload = preload  # type: ignore[method-assign, assignment]
    for _ in range(2 * MAX_FAILURES):
        worker.now_s += 61
        worker.round()
    assert worker.available() == [2]
    is_busy = False
    worker.now_s += 61
    worker.round()
    assert [one.number for one in worker.loaded.versions()] == [2]


def test_last_state_stays_while_the_file_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(tmp_path / "state")
    made = make_fake(tmp_path / "models", 1, "mine")
    store.record_verdict(made.digest, Verdict(accepted=True))
    control = open_control(tmp_path / "models", tmp_path / "state")
    store.record_verdict("other", Verdict(accepted=False))
    opened = Path.open

    def refuse(path: Path, *how: Any, **more: Any) -> Any:
        if path.name == FILE:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *how, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        control._checked_s -= CHECK_S
        assert [one.name for one in control.catalogue().available] == ["mine", "ppocr"]
        with pytest.raises(OperatorError, match="Too many open files"):
            control.load("mine")
    control._checked_s -= CHECK_S
    assert set(control.catalogue().state.verdicts) == {made.digest, "other"}


def test_requests_do_not_wait_for_the_repositorys_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_fake(tmp_path / "models", 1, "mine")
    control = open_control(tmp_path / "models", tmp_path / "state")
    is_scanning, may_continue = threading.Event(), threading.Event()
    scan = ModelRepository.scan

    def hang(repository: ModelRepository) -> Any:
        is_scanning.set()
        assert may_continue.wait(FAR_S)
        return scan(repository)

    monkeypatch.setattr(ModelRepository, "scan", hang)
    rescan = in_thread(control.rescan)
    assert is_scanning.wait(FAR_S)
    StateStore(tmp_path / "state").record_verdict(made.digest, Verdict(accepted=True))
    control._checked_s -= CHECK_S
    waiting_call = in_thread(control.catalogue)
    try:
        assert waiting_call.result(FAR_S * 2 / 3).models["mine"].available == (made,)
    finally:
        may_continue.set()
        rescan.result(FAR_S)


@pytest.mark.parametrize(
    ("sent", "kind"), [(signal.SIGTERM, "unknown"), (signal.SIGKILL, "killed"), (signal.SIGSEGV, "crash")]
)
def test_signal_to_the_trial_process_does_not_refuse_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, kind: str
) -> None:
    started: list[Program] = []

    class Held(Program):
        """A program that is stopped before it can ignore signals."""

        def __init__(self, *about: Any, **more: Any) -> None:
            super().__init__(*about, **more)
            self.process.send_signal(signal.SIGSTOP)
            started.append(self)

    def end() -> bool:
        for one in (sent, signal.SIGCONT):
            started[0].process.send_signal(one)
        return False

    monkeypatch.setattr("ocrsvc.models.proof.prover.Program", Held)
    found = replace(prover(tmp_path), is_stopping=end).prove(fake_version(tmp_path, 1), None)
    assert (found.kind, sent.name in found.reason) == (kind, True)


def test_a_version_whose_proof_is_killed_twice_is_refused(models: Path) -> None:
    worker = serving_worker(models)
    worker.prover._prove = lambda _candidate, _serving: Judgement("killed", "It ended with SIGKILL.")
    digest = make_fake(models, 2).digest
    worker.round()
    assert digest not in worker.control.store.read().verdicts
    worker.now_s += 61
    worker.round()
    assert worker.control.store.read().verdicts[digest].kind == "crash"


def test_watcher_survives_an_unexpected_error(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = serving_worker(models)
    looks = []

    def look() -> None:
        looks.append(1)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(worker.watcher, "look", look)
    monkeypatch.setattr("ocrsvc.models.watcher._RETRY_S", 0.01)
    worker.watcher.start()
    wait_until(lambda: len(looks) > 2)
    worker.watcher.stop()


REFUSED = 9


def guard_of(folder: Path) -> CrashGuard:
    """The crash guard that keeps its state in the folder."""
    return CrashGuard(folder / "state", Verdicts(Settings(), StateStore(folder / "state")))


def in_child(call: Callable[[], None]) -> int:
    """Make the call in a child process; returns its exit code, or minus the signal that ended it."""
    child = os.fork()
    if not child:
        try:
            call()
        except EngineUnavailable:
            os._exit(REFUSED)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_version_that_crashes_its_workers_is_refused(tmp_path: Path) -> None:
    version, store = make_fake(tmp_path / "models", 1), StateStore(tmp_path / "state")
    guard = guard_of(tmp_path)

    def load_and_die() -> None:
        with guard.loading(version):
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(MAX_CRASHES):
        assert in_child(load_and_die) == -signal.SIGKILL
    assert in_child(load_and_die) == REFUSED
    verdict = store.read().verdicts[version.digest]
    assert (verdict.accepted, verdict.kind) == (False, "crash")
    # The refusal has cleared the crash count.
    assert in_child(load_and_die) == -signal.SIGKILL


def test_crash_of_the_whole_service_does_not_count(tmp_path: Path) -> None:
    version, guard = make_fake(tmp_path / "models", 1), guard_of(tmp_path)

    def die() -> None:
        with guard.loading(version):
            os.kill(os.getpid(), signal.SIGKILL)

    def service() -> None:
        for _ in range(MAX_CRASHES):
            in_child(die)
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(service)
    assert len(list((tmp_path / "state" / LOADS_FOLDER).iterdir())) == MAX_CRASHES
    with guard.loading(version):
        pass
    assert not list((tmp_path / "state" / LOADS_FOLDER).iterdir())


def test_orderly_exit_during_a_load_leaves_no_mark(tmp_path: Path) -> None:
    version, guard, marks = make_fake(tmp_path / "models", 1), guard_of(tmp_path), tmp_path / "state" / LOADS_FOLDER

    def load_and_exit() -> None:
        atexit._clear()
        with guard.loading(version):
            assert list(marks.iterdir())
            atexit._run_exitfuncs()
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(load_and_exit) == -signal.SIGKILL
    assert not list(marks.iterdir())
