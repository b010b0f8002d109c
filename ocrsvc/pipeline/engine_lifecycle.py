"""Starts and stops a worker's engine threads, their queue and the models, and reports their state."""

from collections.abc import Callable
from typing import Final

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.model.key_source import read_model_key
from ocrsvc.errors import NotReady, OperatorError
from ocrsvc.models.model_control import ModelList
from ocrsvc.models.worker_models import WorkerModels, open_worker_models
from ocrsvc.pipeline.decode_job import MAX_BATCH, DecodeJob, may_join, read_jobs
from ocrsvc.pipeline.result_cache import ResultCache, open_result_cache
from ocrsvc.results import EngineInfo, ReadOptions
from ocrsvc.serving.executor import Executor
from ocrsvc.serving.work_queue import Priority
from ocrsvc.settings.settings import Settings
from ocrsvc.system.allocator import release_free_memory
from ocrsvc.system.thread_plan import ThreadPlan

_FAILED_STOP_S: Final = 5.0

ModelsOpener = Callable[[Executor[DecodeJob]], WorkerModels]  # opens a worker's models, given its engine threads


class EngineLifecycle:
    """A worker's engine threads, queue, models and cache; `engine_opener` overrides the engine of the settings."""

    def __init__(
        self,
        settings: Settings,
        plan: ThreadPlan,
        engine_opener: Callable[[], Engine] | None = None,
        models_opener: ModelsOpener | None = None,
    ) -> None:
        self._settings, self._plan = settings, plan
        self._open_models = models_opener or self._open_worker_models
        self._open_engine = engine_opener
        self._result_cache: ResultCache | None = None
        self._models: WorkerModels | None = None
        self._executor: Executor[DecodeJob] | None = None
        self._is_open = False
        self.is_leaving: Callable[[], bool] = lambda: False  # whether the service will stop soon, but still answers

    @property
    def settings(self) -> Settings:
        """The effective settings."""
        return self._settings

    @property
    def ready(self) -> bool:
        """Whether load balancers should send requests: the engine is warm, and the service will not stop soon."""
        return self._is_open and not self.is_leaving()

    def start(self) -> None:
        """Start the engine threads, and load and warm up the models. Raises the errors of WorkerModels.load_ahead."""
        self._result_cache = open_result_cache(self._settings)
        self._executor = executor = Executor(
            read_jobs,
            threads=self._plan.engine_threads,
            places=self._settings.queue_size,
            batch=MAX_BATCH,
            on_end=self._close_own_handles,
            on_idle=release_free_memory,
            may_join=may_join,
        )
        executor.start()
        try:
            self._models = self._open_models(executor)
            self._models.load_ahead()
        except BaseException:
            self.stop(_FAILED_STOP_S)
            raise
        self._is_open = True

    def _open_worker_models(self, threads: Executor[DecodeJob]) -> WorkerModels:
        key = None if self._open_engine is not None else read_model_key(self._settings)
        return open_worker_models(self._settings, self._plan, threads, key=key, engine_opener=self._open_engine)

    def _close_own_handles(self) -> None:
        if self._models is not None:
            self._models.loaded.close_own_handles()

    def stop(self, timeout_s: float) -> None:
        """Finish queued jobs within `timeout_s`, then close the models. Also works if `start` was never called."""
        self._is_open = False
        if self._models is not None:
            self._models.loaded.stop()
        if self._executor is not None and self._executor.stop(timeout_s) and self._models is not None:
            self._models.loaded.close()
        if self._result_cache is not None:
            self._result_cache.close()

    def describe(self) -> EngineInfo:
        """The engine that reads requests that name no model. Raises NotReady before `start`."""
        return self.worker_models.describe()

    @property
    def has_models(self) -> bool:
        """Whether there is a model repository, so requests may choose a model."""
        return self._settings.models is not None

    @property
    def worker_models(self) -> WorkerModels:
        """The models of this worker. Raises NotReady before the models are opened."""
        if self._models is None:
            raise _not_ready()
        return self._models

    def check_model(self, options: ReadOptions) -> None:
        """Raise UnknownModel if no model matches the options, NotReady before the models are opened."""
        self.worker_models.selector.select(options)

    def models(self) -> ModelList:
        """The models that requests may name, and the state of each version. Raises NotReady."""
        try:
            return self.worker_models.list()
        except OperatorError as error:
            raise NotReady("The models cannot be listed now.", "Send the request again in a moment.", 2) from error

    def check_capacity(self, priority: Priority) -> None:
        """Raise QueueFull or NotReady if the queue would refuse a page now."""
        self._running().queue.check_capacity(priority)

    def waiting(self) -> int:
        """Number of pages with a place in the queue: waiting, or being decoded before they wait."""
        return self._executor.queue.waiting() if self._executor is not None else 0

    def stuck_threads(self) -> int:
        """Number of engine threads that still run a job long after its deadline; see Executor."""
        return self._executor.stuck_threads() if self._executor is not None else 0

    def _running(self) -> Executor[DecodeJob]:
        """The running executor. Raises NotReady before `start` and after `stop`."""
        if not self._is_open or self._executor is None:
            raise _not_ready()
        return self._executor


def _not_ready() -> NotReady:
    return NotReady("The engine of this worker is not warm yet.", "Send the request again in a moment.", 2)
