"""A worker's models are loaded on demand, leased, and closed when they are retired or memory is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from support import wait_until

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.model.description import Description
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import BadModel, ClientGone, EngineUnavailable, ModelUnavailable, NotReady, OcrsvcError
from ocrsvc.models.loaded_models import LoadedModels, VersionRetired
from ocrsvc.models.loaded_version import ModelMemory
from ocrsvc.models.version_loader import LoadState
from ocrsvc.results import EngineInfo, Page, ReadTask
from ocrsvc.serving.executor import Executor
from ocrsvc.serving.work_queue import Job
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import MODEL_LEASES

FAR_S = 30.0
MIB = 1 << 20


class FakeOpener:
    """Opens versions, whose number is their size in MiB; opening can be delayed by a gate or made to fail."""

    def __init__(self, traits: EngineTraits) -> None:
        self.traits = traits
        self.now_s = self.load_s = 0.0
        self.held_bytes = self.max_bytes = self.grown_bytes = 0
        self.opened, self.closed, self.closed_s = list[str](), list[str](), list[float]()
        self.gates, self.failures = dict[str, threading.Event](), dict[str, BaseException]()
        self.handle_threads: list[str] = []
        self.measures = False

    def open(self, version: ModelVersion) -> OpenedEngine:
        if (gate := self.gates.get(str(version))) is not None:
            assert gate.wait(FAR_S)
        self.now_s += self.load_s
        self.opened.append(str(version))
        if (failure := self.failures.get(str(version))) is not None:
            raise failure
        self.held_bytes += version.number * MIB
        self.max_bytes = max(self.max_bytes, self.held_bytes)
        return MeasuredEngine(self, version) if self.measures else OpenedEngine(self, version)


class OpenedEngine:
    """An engine that a FakeOpener opened."""

    def __init__(self, machine: FakeOpener, version: ModelVersion) -> None:
        self.machine, self.version, self.traits = machine, version, machine.traits

    def describe(self) -> EngineInfo:
        return EngineInfo("fake", "none", "0", "cpu", "none", "none")

    def open_handle(self) -> OpenedHandle:
        return OpenedHandle(self)

    def close(self) -> None:
        self.machine.held_bytes -= self.version.number * MIB
        self.machine.closed.append(str(self.version))
        self.machine.closed_s.append(self.machine.now_s)


class MeasuredEngine(OpenedEngine):
    """An engine that reports its memory."""

    def memory_bytes(self) -> int:
        return self.version.number * MIB + self.machine.grown_bytes


class OpenedHandle:
    """A handle that checks and records the threads that use it."""

    def __init__(self, engine: OpenedEngine) -> None:
        self.engine = engine
        self.thread = threading.current_thread().name

    def warm_up(self) -> None:
        assert threading.current_thread().name == self.thread

    def read(self, _tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        return []

    def close(self) -> None:
        assert self.engine.traits.any_thread or threading.current_thread().name == self.thread
        self.engine.machine.handle_threads.append(self.thread)


def version(name: str, size_mib: int = 10) -> ModelVersion:
    """A version of this size, which is its number."""
    return ModelVersion(name, size_mib, Description(engine="fake"), Path("nowhere"), f"digest of {name}")


@contextmanager
def serving(
    budget_mib: int | None = None, *, any_thread: bool = True, max_waiting: int = 8
) -> Iterator[tuple[LoadedModels, FakeOpener, Mock]]:
    machine, counts = FakeOpener(EngineTraits(any_thread=any_thread)), Mock(spec=WorkerMetrics)
    executor: Executor[Job[str]] = Executor(list, threads=2, places=8)
    executor.start()
    budget_bytes = None if budget_mib is None else budget_mib * MIB
    models = LoadedModels(
        machine.open,
        executor,
        ModelMemory(budget_bytes, lambda: machine.held_bytes, bool),
        load_limit_s=FAR_S,
        max_waiting=max_waiting,
        metrics=counts,
        clock=lambda: machine.now_s,
    )
    try:
        yield models, machine, counts
    finally:
        models.stop()
        executor.run_in_each(models.close_own_handles)
        assert executor.stop(FAR_S)
        models.close()
        assert machine.held_bytes == 0


@pytest.mark.parametrize("any_thread", [True, False])
def test_version_is_loaded_when_every_engine_thread_has_a_handle(any_thread: bool) -> None:
    with serving(any_thread=any_thread) as (models, machine, _):
        for name in "ab":
            models.preload(version(name))
        for name in "ab":
            models.retire(version(name))
            wait_until(lambda: f"{name}/10" in machine.closed)  # noqa: B023  called at once
        own = ["engine-0", "engine-1"]
        assert sorted(machine.handle_threads[:2]) == own
        # With a version already loaded, handles are opened outside engine threads if the engine allows any thread.
        assert sorted(machine.handle_threads[2:]) == (["models"] * 2 if any_thread else own)


def test_requests_for_one_version_share_a_load() -> None:
    with serving() as (models, machine, _):
        machine.gates["a/10"] = threading.Event()
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(models.lease, version("a")) for _ in range(4)]
            wait_until(lambda: [one.state for one in models.list()] == [LoadState.LOADING])
            machine.gates["a/10"].set()
            for one in asked:
                one.result(FAR_S).close()
        assert machine.opened == ["a/10"]


def test_lease_of_a_retired_version_raises_or_reloads_it() -> None:
    with serving() as (models, machine, _):
        models.preload(version("a"))
        models.retire(version("a"))
        wait_until(lambda: machine.closed)
        with pytest.raises(VersionRetired):
            models.lease(version("a"), reload=False)
        for _ in range(3):
            models.lease(version("a")).close()
            wait_until(lambda: models.is_settled)
        assert machine.opened == ["a/10", "a/10"]


def test_least_recently_used_version_is_evicted() -> None:
    with serving(30) as (models, machine, _):
        for number, name in enumerate(("a", "b", "c", "a", "d", "a")):
            machine.now_s = float(number)
            models.lease(version(name)).close()
        assert (machine.opened, machine.closed) == (["a/10", "b/10", "c/10", "d/10"], ["b/10"])
        assert machine.max_bytes <= 30 * MIB


def test_version_in_use_is_drained_before_eviction() -> None:
    with serving(15) as (models, machine, _):
        used = models.lease(version("a"))
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(models.lease, version("b"))
            wait_until(lambda: models.list()[0].state is LoadState.DRAINING)
            # A request for the draining version is served after the one that waits.
            back = pool.submit(models.lease, version("a"))
            assert machine.opened == ["a/10"]
            used.close()
            asked.result(FAR_S).close()
            back.result(FAR_S).close()
        assert (machine.opened, machine.max_bytes) == (["a/10", "b/10", "a/10"], 10 * MIB)


def test_version_that_stays_in_use_is_kept_and_waiting_requests_are_refused() -> None:
    with serving(15) as (models, machine, _):
        used = models.lease(version("a"))
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(models.lease, version("b"))
            wait_until(lambda: models.list()[0].state is LoadState.DRAINING)
            machine.now_s = 1000.0
            with pytest.raises(ModelUnavailable, match="no room for the model b/10"):
                asked.result(FAR_S)
        models.lease(version("a")).close()
        used.close()


def test_pinned_versions_are_not_evicted() -> None:
    with serving(25) as (models, machine, _):
        models.is_pinned = lambda one: one.name == "a"
        for number, name in enumerate("abc"):
            machine.now_s = float(number)
            models.lease(version(name)).close()
        assert machine.closed == ["b/10"]
        models.is_pinned = lambda one: one.name in "ac"
        with pytest.raises(ModelUnavailable, match="beside the pinned ones"):
            models.lease(version("d"))


def test_version_larger_than_the_budget_is_refused() -> None:
    with serving(30) as (models, machine, _):
        with pytest.raises(EngineUnavailable, match=r"The model a/40 takes 41943040 bytes, .* 31457280"):
            models.preload(version("a", 40))
        assert machine.closed == ["a/40"]
        with pytest.raises(EngineUnavailable):
            models.preload(version("a", 40))
        assert machine.opened == ["a/40"]


def test_failed_load_refuses_waiting_requests_and_backs_off() -> None:
    with serving() as (models, machine, _):
        machine.failures["a/10"] = BadModel("a/10: det.onnx does not match the manifest.", "Copy it again.")
        for _ in range(3):
            with pytest.raises(ModelUnavailable, match=r"a/10 cannot be loaded: .* Copy it again"):
                models.lease(version("a"))
        assert machine.opened == ["a/10"]
        machine.now_s = 1.0
        with pytest.raises(ModelUnavailable) as refused:
            models.lease(version("a"))
        assert (machine.opened, refused.value.retry_after_s) == (["a/10", "a/10"], 2)
        assert str(models.list()[0].failure).startswith("a/10: det.onnx")
        del machine.failures["a/10"]
        machine.now_s = 3.0
        models.lease(version("a")).close()


def test_request_past_its_deadline_gets_retry_after() -> None:
    with serving() as (models, machine, _):
        machine.gates["a/10"] = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(models.lease, version("a"), 5.0)
            wait_until(lambda: [one.state for one in models.list()] == [LoadState.LOADING])
            machine.now_s = 5.0
            with pytest.raises(NotReady, match="still being loaded"):
                asked.result(FAR_S)
        machine.now_s = 8.0
        machine.gates["a/10"].set()
        models.preload(version("a"))
        models.retire(version("a"))
        wait_until(lambda: machine.closed)
        # The last load took 8 s, so a request with 2 s left is refused at once.
        with pytest.raises(NotReady) as refused:
            models.lease(version("a"), machine.now_s + 2.0)
        assert refused.value.retry_after_s == 8


def test_request_of_a_disconnected_client_stops_waiting() -> None:
    with serving() as (models, machine, _):
        machine.gates["a/10"] = threading.Event()
        with pytest.raises(ClientGone):
            models.lease(version("a"), check=Mock(side_effect=ClientGone("The client closed its connection.")))
        machine.gates["a/10"].set()
        wait_until(lambda: models.is_loaded(version("a")))


def test_number_of_waiting_requests_is_limited() -> None:
    with serving(max_waiting=1) as (models, machine, _):
        machine.gates["a/10"] = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(models.lease, version("a"))
            wait_until(models.list)
            with pytest.raises(ModelUnavailable, match="1 requests already wait"):
                models.lease(version("b"))
            machine.gates["a/10"].set()
            asked.result(FAR_S).close()


def test_loaded_version_stays_at_least_as_long_as_its_load_took() -> None:
    with serving(15) as (models, machine, counts):
        machine.load_s = 4.0
        models.lease(version("a")).close()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(models.lease, version("b"))
            wait_until(lambda: models.list()[-1].state is LoadState.LOADING)
            for now_s in (5.0, 6.0, 7.0):
                machine.now_s = now_s
                models.lease(version("a")).close()
            machine.now_s = 8.0
            asked.result(FAR_S).close()
        assert machine.closed_s == [8.0]
        leases = [call.args[2] for call in counts.count.call_args_list if call.args[0] == MODEL_LEASES]
        assert leases == ["miss", "miss", "hit", "hit", "hit"]


def test_isolated_engines_report_their_current_memory() -> None:
    with serving(100) as (models, machine, _):
        machine.measures = True
        models.preload(version("a", 20))
        models.preload(version("b", 20))
        assert models.held_bytes() == 40 * MIB
        machine.grown_bytes = 25 * MIB
        machine.now_s = 1.0
        # a and b have grown to 45 MiB each, so one of them must be closed.
        models.preload(version("c", 20))
        assert machine.closed == ["a/20"]


def test_loading_continues_after_an_engine_raised_system_exit() -> None:
    with serving() as (models, machine, _):
        machine.failures["a/10"] = SystemExit("raised by the engine")
        with pytest.raises(ModelUnavailable, match="raised by the engine"):
            models.lease(version("a"))
        models.lease(version("b")).close()
