"""An engine whose handles run in child processes, behind the engine contract."""

from __future__ import annotations

import os
from dataclasses import replace

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.isolated.child_pool import MEMORY_SHARE, ChildPool, Limits
from ocrsvc.engines.isolated.handle import IsolatedHandle
from ocrsvc.engines.isolated.spawner import Spawner
from ocrsvc.errors import EngineUnavailable
from ocrsvc.records import EngineInfo
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.system.thread_plan import ThreadPlan


class IsolatedEngine:
    """The engine that the settings name, in children; this process loads no model.

    Args:
        settings: The effective settings.
        plan: Of this worker.
        denylist: Shared by all workers.
        limits: When children are replaced or ended.

    Raises:
        EngineUnavailable: The first child could not open it.
    """

    def __init__(self, settings: Settings, plan: ThreadPlan, denylist: CrashDenylist, limits: Limits) -> None:
        if not hasattr(os, "memfd_create"):
            raise EngineUnavailable("OCRSVC_ISOLATION=process needs Linux.", "Set OCRSVC_ISOLATION=thread.")
        self._spawner = Spawner(settings, plan)
        self._pool = ChildPool(self._spawner, limits)
        self._denylist = denylist
        try:
            self._spare: IsolatedHandle | None = IsolatedHandle(self._pool, denylist)
        except BaseException:
            self._spawner.close()
            raise
        self._traits = replace(self._spare.child.opened.driving, serial_open=False, decodes=True)

    @property
    def traits(self) -> EngineTraits:
        """See engines.contract.Engine. What must not be opened twice at once in a process may be in several."""
        return self._traits

    def describe(self) -> EngineInfo:
        """See engines.contract.Engine. Of the child opened last: a model may have been made since the start."""
        assert self._pool.info is not None, "the first handle has opened a child"
        return self._pool.info

    def open_handle(self) -> IsolatedHandle:
        """See engines.contract.Engine."""
        spare, self._spare = self._spare, None
        return spare or IsolatedHandle(self._pool, self._denylist)

    def close(self) -> None:
        """End every child; see engines.contract.Engine."""
        if self._spare is not None:
            self._spare.close()
        self._spawner.close()


def limits_for(settings: Settings, plan: ThreadPlan) -> Limits:
    """The limits of children, after the settings and the memory of this machine or container."""
    children, memory_bytes = plan.workers * plan.engine_threads, settings.child_memory_bytes
    if memory_bytes is None:
        memory_bytes = int(MEMORY_SHARE * read_memory_bytes()) // (children + 1)
    return Limits(
        settings.child_max_images,
        memory_bytes,
        settings.deadline_s,
        open_s=settings.boot_limit_s,
        gpu_bytes=settings.child_gpu_bytes,
        children=children,
    )
