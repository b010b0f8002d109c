"""The local engine beside a remote model: few handles, one per core, for the many threads that wait for the model."""

from contextlib import suppress
from dataclasses import replace
from queue import Empty, LifoQueue

from ocrsvc.engines.contract import Handle
from ocrsvc.engines.open_engine import open_engine_in_process
from ocrsvc.errors import EngineUnavailable, OcrsvcError
from ocrsvc.results import Check, Page, ReadTask
from ocrsvc.serving.work_queue import CLIENT_CHECK_S
from ocrsvc.settings.settings import Settings
from ocrsvc.system.cgroup import read_cpus
from ocrsvc.system.thread_plan import ThreadPlan


class LocalEngine:
    """The engine of OCRSVC_REMOTE_LOCAL, opened and warm. Raises EngineUnavailable, BadModel."""

    def __init__(self, settings: Settings, plan: ThreadPlan) -> None:
        self.name = settings.remote_local
        threads = max(1, round(read_cpus() / plan.workers))
        settings = settings.model_copy(update={"engine": self.name})
        self._engine = open_engine_in_process(settings, replace(plan, engine_threads=threads))
        info = self._engine.describe()
        self.version = f"{info.name} {info.version}"
        self._idle: LifoQueue[Handle] = LifoQueue()
        try:
            if not self._engine.traits.any_thread:
                raise EngineUnavailable(
                    f"OCRSVC_REMOTE_LOCAL={self.name}: the engine belongs to one thread.",
                    "Name one that any thread may use, such as ppocr.",
                )
            for _ in range(threads):
                handle = self._engine.open_handle()
                self._idle.put(handle)
                handle.warm_up()
        except BaseException:
            self.close()
            raise

    def read(self, task: ReadTask) -> Page:
        """Wait for an idle handle, then read an image without tables, regions and bar codes. Raises OcrsvcError."""
        options = replace(task.options, tables=False, layout=False, barcodes=False)
        handle = self._take(task.check)
        try:
            page = handle.read([replace(task, options=options)])[0]
        finally:
            self._idle.put(handle)
        if isinstance(page, OcrsvcError):
            raise page
        return page

    def close(self) -> None:
        """Close the handles, which must be idle, and free the engine."""
        while not self._idle.empty():
            self._idle.get_nowait().close()
        self._engine.close()

    def _take(self, check: Check) -> Handle:
        """Wait for an idle handle. Raises the errors of `check`."""
        while True:
            check()
            with suppress(Empty):
                return self._idle.get(timeout=CLIENT_CHECK_S)
