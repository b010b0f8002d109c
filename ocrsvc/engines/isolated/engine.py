"""An engine whose handles run in child processes, behind the engine contract."""

from __future__ import annotations

import os
from dataclasses import replace

from ocrsvc.engines.isolated.child_pool import ChildPool
from ocrsvc.engines.isolated.handle import IsolatedHandle
from ocrsvc.engines.isolated.spawner import Spawner
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import EngineUnavailable
from ocrsvc.readings import EngineInfo
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_process_bytes
from ocrsvc.system.thread_plan import ThreadPlan


class IsolatedEngine:
    """The engine that the settings name, in children; this process loads no model.

    Args:
        settings: The effective settings.
        plan: Of this worker.
        denylist: Shared by all workers.
        model: What the engine reads with; None for the model that it comes with.

    Raises:
        EngineUnavailable: The first child could not open it.
        BadModel: The first child could not use the model.
    """

    def __init__(
        self, settings: Settings, plan: ThreadPlan, denylist: CrashDenylist, model: ModelVersion | None = None
    ) -> None:
        if not hasattr(os, "memfd_create"):
            raise EngineUnavailable("OCRSVC_ISOLATION=process needs Linux.", "Set OCRSVC_ISOLATION=thread.")
        self._spawner = Spawner(settings, plan, model)
        self._pool = ChildPool(self._spawner, settings, plan.workers * plan.engine_threads)
        self._denylist, self._digest = denylist, "" if model is None else model.digest
        try:
            self._spare: IsolatedHandle | None = IsolatedHandle(self._pool, denylist, model=self._digest)
        except BaseException:
            self._spawner.close()
            raise
        # What must not be opened twice at once in a process may be in several.
        self.traits = replace(self._spare.child.opened.driving, serial_open=False, decodes=True, any_thread=True)

    def describe(self) -> EngineInfo:
        """See engines.contract.Engine. Of the child opened last: a model may have been made since the start."""
        assert self._pool.info is not None, "the first handle has opened a child"
        return self._pool.info

    def memory_bytes(self) -> int:
        """The private memory of the fork server and of every child that runs now."""
        pids = (self._spawner.pid, *self._pool.pids())
        return sum(read_process_bytes(pid) for pid in pids if pid)

    def open_handle(self) -> IsolatedHandle:
        """See engines.contract.Engine."""
        spare, self._spare = self._spare, None
        return spare or IsolatedHandle(self._pool, self._denylist, model=self._digest)

    def close(self) -> None:
        """End every child; see engines.contract.Engine."""
        if self._spare is not None:
            self._spare.close()
        self._spawner.close()
