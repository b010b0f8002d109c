"""Opens the engine of a process, runs its threads behind a queue until the process ends, and says how they are."""

from __future__ import annotations

from collections.abc import Callable

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.opening import open_engine
from ocrsvc.errors import NotReady
from ocrsvc.model_serving.model_list import ModelList
from ocrsvc.model_serving.only_model import only_model
from ocrsvc.pipeline.decode_job import DecodeJob, DecodingHandle
from ocrsvc.pipeline.result_cache import ResultCache, open_result_cache
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page
from ocrsvc.serving.executor import Executor
from ocrsvc.serving.work_queue import Priority
from ocrsvc.settings.settings import Settings
from ocrsvc.system.allocator import give_back
from ocrsvc.system.thread_plan import ThreadPlan


class EngineLifecycle:
    """One engine with its threads, its queue and its result cache. Made cheaply; `start` loads the models.

    Args:
        settings: The effective settings.
        plan: How many engine threads this process runs.
        engine_opener: Opens the engine; the default is the one that the settings name.
    """

    def __init__(self, settings: Settings, plan: ThreadPlan, engine_opener: Callable[[], Engine] | None = None) -> None:
        self._settings, self._plan = settings, plan
        self._open_engine = engine_opener or (lambda: open_engine(settings, plan))
        self._result_cache: ResultCache | None = None
        self._engine: Engine | None = None
        self._executor: Executor[DecodeJob, Page] | None = None
        self.ready = False

    def start(self) -> None:
        """Load the engine and warm every thread's handle; returns when the first request would be served at full speed.

        Raises:
            EngineUnavailable: The engine cannot be opened here.
        """
        self._result_cache = open_result_cache(self._settings)
        engine = self._open_engine()
        self._executor = Executor(
            lambda: DecodingHandle(engine.open_handle()),
            threads=self._plan.engine_threads,
            places=self._settings.queue_size,
            batch=engine.traits.best_batch,
            serial_open=engine.traits.serial_open,
            on_idle=give_back,
        )
        self._engine = engine
        self._executor.start()
        self.ready = True

    def stop(self, timeout_s: float) -> None:
        """Finish what is queued (at most `timeout_s`), then close the engine. Safe to call when never started."""
        self.ready = False
        if self._executor is not None and self._executor.stop(timeout_s) and self._engine is not None:
            self._engine.close()
        if self._result_cache is not None:
            self._result_cache.close()

    def describe(self) -> EngineInfo:
        """Which engine reads here. Raises NotReady before `start`."""
        if self._engine is None:
            raise _not_ready()
        return self._engine.describe()

    @property
    def has_models(self) -> bool:
        """Whether requests may choose among the models of a repository."""
        return self._settings.models is not None

    def models(self) -> ModelList:
        """The models that requests may name, and how each version is. Raises EngineUnavailable."""
        return only_model(self._settings.engine)

    def check_capacity(self, priority: Priority) -> None:
        """Raises QueueFull or NotReady when a read would be refused now; asked before a body is received."""
        self._running()[1].queue.check_capacity(priority)

    def waiting(self) -> int:
        """Images admitted that no engine thread has taken yet."""
        return self._executor.queue.waiting() if self._executor is not None else 0

    def stuck_threads(self) -> int:
        """Engine threads that still work on what should have been answered a while ago."""
        return self._executor.stuck_threads() if self._executor is not None else 0

    def _running(self) -> tuple[Engine, Executor[DecodeJob, Page]]:
        """The engine, and the executor in front of it. Raises NotReady before `start` and after `stop`."""
        if not self.ready or self._engine is None or self._executor is None:
            raise _not_ready()
        return self._engine, self._executor


def _not_ready() -> NotReady:
    return NotReady("The engine of this worker is not warm yet.", "Send the request again in a moment.", 2)
