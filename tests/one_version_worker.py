"""A reader over a repository with room for one version, for tests of what happens when another takes its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from models_support import accept, make_fake
from web_support import picture

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.open_engine import open_engine_in_process
from ocrsvc.errors import EngineUnavailable
from ocrsvc.models.loaded_models import LoadedModels
from ocrsvc.models.loaded_version import EngineThreads, ModelMemory
from ocrsvc.models.model_control import ModelControl
from ocrsvc.models.model_name import WantedModel
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import StateStore
from ocrsvc.models.version_selection import VersionSelector
from ocrsvc.models.watcher import ModelWatcher, watch_models
from ocrsvc.models.worker_models import WorkerModels
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.metrics_store import MetricsStore

PLAN = ThreadPlan(1, 4, 2)
MIB = 1 << 20
PAGE = picture(16, 16, shade=200, suffix=".bmp")


class Worker:
    """A reader over a repository whose versions each take 10 of 15 MiB; those in `broken` cannot be opened."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.broken, self.most_open = folder, set[str](), 0
        self.open_now: list[str] = []
        settings = {"engine": "fake", "models": folder / "models", "models_state": folder / "state", "model": "fake"}
        self.settings = Settings.model_validate(settings)
        self.reader = Reader(self.settings, PLAN, models_opener=self._open)
        self.watcher: ModelWatcher
        self.models: WorkerModels

    def _open(self, threads: EngineThreads) -> WorkerModels:
        memory = ModelMemory(15 * MIB, read_bytes=lambda: 10 * MIB * len(self.open_now), give_back=bool)
        loaded = LoadedModels(self._open_version, threads, memory, most_waiting=1)
        store = StateStore(self.folder / "state")
        control = ModelControl(ModelRepository(self.settings.models), store, loaded.is_loaded)
        selector = VersionSelector(control, WantedModel("fake"))
        self.models = WorkerModels(loaded, control, selector)
        self.watcher = watch_models(self.settings, PLAN, self.models, MetricsStore().worker_metrics())
        return self.models

    def _open_version(self, version: ModelVersion) -> Engine:
        if str(version) in self.broken:
            raise EngineUnavailable(f"{version} is broken.")
        self.open_now.append(str(version))
        self.most_open = max(self.most_open, len(self.open_now))
        engine = open_engine_in_process(self.settings, PLAN, version)

        def close() -> None:
            self.open_now.remove(str(version))

        return _Closing(engine, close)

    def accept(self, number: int) -> None:
        """A version comes that has proved itself."""
        accept(self.folder, make_fake(self.folder / "models", number, fake_latency_s=0.005))

    def look(self) -> None:
        """What the watcher's thread does."""
        self.models.control.rescan()
        self.watcher.follow()


class _Closing:
    """An engine that says when it is closed; see engines.contract.Engine."""

    def __init__(self, engine: Engine, on_close: Callable[[], object]) -> None:
        self._engine, self._on_close = engine, on_close
        self.traits, self.describe, self.open_handle = engine.traits, engine.describe, engine.open_handle

    def close(self) -> None:
        """See engines.contract.Engine."""
        self._on_close()
        self._engine.close()


@contextmanager
def first_version_worker(folder: Path) -> Iterator[Worker]:
    """One that reads with the first version."""
    found = Worker(folder)
    found.accept(1)
    found.reader.start()
    try:
        yield found
    finally:
        found.watcher.stop()
        found.reader.stop(5.0)
