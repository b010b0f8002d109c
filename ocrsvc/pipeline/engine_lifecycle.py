"""Opens the engine of a process, runs its threads behind a queue until the process ends, and says how they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ocrsvc.engines.contract import Engine, EngineTraits
from ocrsvc.engines.opening import open_engine
from ocrsvc.errors import NotReady, OcrsvcError, OperatorError
from ocrsvc.model_serving.model_status import ModelList
from ocrsvc.model_serving.only_model import check_only_model, only_model
from ocrsvc.pipeline.decode_job import DecodeJob, DecodingHandle
from ocrsvc.pipeline.leased_handles import MOST_BATCH, LeasedHandles, may_join
from ocrsvc.pipeline.read_context import ReadRequest
from ocrsvc.pipeline.result_cache import ResultCache, open_result_cache
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page, ReadOptions
from ocrsvc.serving.executor import Executor
from ocrsvc.serving.work_queue import Priority
from ocrsvc.settings.settings import Settings
from ocrsvc.system.allocator import give_back
from ocrsvc.system.thread_plan import ThreadPlan

if TYPE_CHECKING:
    # Loaded where there is a model repository alone.
    from ocrsvc.model_serving.loaded_models import LoadedModels
    from ocrsvc.model_serving.worker_models import WorkerModels

_FAILED_STOP_S: Final = 5.0

ModelsOpener = Callable[[Executor[DecodeJob, Page]], "WorkerModels"]
"""Makes the models of a worker, given its engine threads."""


class EngineLifecycle:
    """One engine with its threads, its queue and its result cache. Made cheaply; `start` loads the models.

    Args:
        settings: The effective settings.
        plan: How many engine threads this process runs.
        engine_opener: Opens the engine; the default is the one that the settings name.
        models_opener: Where the settings name a model repository: makes what loads the versions that the engine threads
            read with; the default opens them as the settings say. Not used with an `engine_opener`.

    Attributes:
        is_leaving: Whether the service is about to end, and so is not ready though it reads on.
    """

    def __init__(
        self,
        settings: Settings,
        plan: ThreadPlan,
        engine_opener: Callable[[], Engine] | None = None,
        models_opener: ModelsOpener | None = None,
    ) -> None:
        self._settings, self._plan = settings, plan
        self._open_engine = engine_opener or (lambda: open_engine(settings, plan))
        self._result_cache: ResultCache | None = None
        self._engine: Engine | None = None
        self._open_models = models_opener
        if models_opener is None and engine_opener is None and settings.models is not None:
            self._open_models = self._open_worker_models
        self._models: WorkerModels | None = None
        self._executor: Executor[DecodeJob, Page] | None = None
        self._is_open = False
        self.is_leaving: Callable[[], bool] = bool

    @property
    def settings(self) -> Settings:
        """The effective settings."""
        return self._settings

    @property
    def ready(self) -> bool:
        """Whether the engine is warm, and the service is not about to end: what load balancers are told."""
        return self._is_open and not self.is_leaving()

    def start(self) -> None:
        """Load the engine and warm every thread's handle; returns when the first request would be served at full speed.

        Raises:
            EngineUnavailable: The engine cannot be opened here.
            OcrsvcError: As WorkerModels.load_ahead.
        """
        self._result_cache = open_result_cache(self._settings)
        if self._open_models is not None:
            self._start_models(self._open_models)
        else:
            self._start_engine()
        self._is_open = True

    def _start_engine(self) -> None:
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

    def _start_models(self, open_models: ModelsOpener) -> None:
        """Start threads that read with any version, and load those that are to be there from the beginning."""
        self._executor = executor = Executor(
            lambda: LeasedHandles(self._close_own_handles),
            threads=self._plan.engine_threads,
            places=self._settings.queue_size,
            batch=MOST_BATCH,
            on_idle=give_back,
            may_join=may_join,
        )
        executor.start()
        try:
            self._models = open_models(executor)
            self._models.load_ahead()
        except BaseException:
            self.stop(_FAILED_STOP_S)
            raise

    def _open_worker_models(self, threads: Executor[DecodeJob, Page]) -> WorkerModels:
        from ocrsvc.model_repository.key_source import read_model_key
        from ocrsvc.model_serving.worker_models import open_worker_models

        return open_worker_models(self._settings, self._plan, threads, key=read_model_key(self._settings))

    def _close_own_handles(self) -> None:
        if self._models is not None:
            self._models.loaded.close_own_handles()

    def stop(self, timeout_s: float) -> None:
        """Finish what is queued (at most `timeout_s`), then close the engine. Safe to call when never started."""
        self._is_open = False
        if self._models is not None:
            self._models.loaded.stop()
        if self._executor is not None and self._executor.stop(timeout_s):
            if self._engine is not None:
                self._engine.close()
            if self._models is not None:
                self._models.loaded.close()
        if self._result_cache is not None:
            self._result_cache.close()

    def describe(self) -> EngineInfo:
        """Which engine reads here, or reads what names no model. Raises NotReady before `start`."""
        if self._models is not None:
            return self._models.describe()
        if self._engine is None:
            raise _not_ready()
        return self._engine.describe()

    @property
    def has_models(self) -> bool:
        """Whether requests may choose among the models of a repository."""
        return self._settings.models is not None

    def check_model(self, options: ReadOptions) -> None:
        """Raises UnknownModel where no model here is what the options want, NotReady before there are any."""
        if self._models is not None:
            self._models.router.resolve(options)
        elif self._open_models is not None:
            raise _not_ready()
        else:
            check_only_model(options, self._settings.engine)

    def models(self) -> ModelList:
        """The models that requests may name, and how each version is. Raises EngineUnavailable, NotReady."""
        if self._models is not None:
            try:
                return self._models.list()
            except OperatorError as error:
                raise NotReady("The models cannot be listed now.", "Send the request again in a moment.", 2) from error
        if self._open_models is not None:
            raise _not_ready()
        return only_model(self._settings.engine)

    @property
    def worker_models(self) -> WorkerModels | None:
        """The models of the repository; None without one, and before `start`."""
        return self._models

    @property
    def loaded_models(self) -> LoadedModels | None:
        """What this worker has loaded of a repository; None without one, and before `start`."""
        return None if self._models is None else self._models.loaded

    def check_capacity(self, priority: Priority) -> None:
        """Raises QueueFull or NotReady when a read would be refused now; asked before a body is received."""
        self._running().queue.check_capacity(priority)

    def waiting(self) -> int:
        """Images admitted that no engine thread has taken yet."""
        return self._executor.queue.waiting() if self._executor is not None else 0

    def stuck_threads(self) -> int:
        """Engine threads that still work on what should have been answered a while ago."""
        return self._executor.stuck_threads() if self._executor is not None else 0

    def _running(self) -> Executor[DecodeJob, Page]:
        """What is in front of the engine. Raises NotReady before `start` and after `stop`."""
        if not self._is_open or self._executor is None:
            raise _not_ready()
        return self._executor

    def _traits(self, request: ReadRequest) -> EngineTraits:
        """Of the engine that reads the request."""
        engine = self._engine if request.lease is None else request.lease.engine
        if engine is None:
            raise _not_ready()
        return engine.traits

    def _note_page(self, request: ReadRequest, page: Page) -> None:
        """Have the version that has read a page judged by it, where there are several."""
        if request.lease is not None and self._models is not None and self._models.checks is not None:
            self._models.checks.note_page(request.lease.version, page)

    def _note_failure(self, request: ReadRequest, error: OcrsvcError) -> None:
        """The same of a page that was not read."""
        if request.lease is not None and self._models is not None and self._models.checks is not None:
            self._models.checks.note_failure(request.lease.version, error)

    def _engine_info(self, request: ReadRequest) -> EngineInfo:
        """What reads the request."""
        return self.describe() if request.lease is None else request.lease.describe()


def _not_ready() -> NotReady:
    return NotReady("The engine of this worker is not warm yet.", "Send the request again in a moment.", 2)
