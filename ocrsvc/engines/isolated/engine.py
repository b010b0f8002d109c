"""An engine whose handles read in child processes, with the interface of every engine.

A handle belongs to one engine thread and has one child. When the child is due for replacement, its successor opens
while it still reads, and takes over between two reads.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ocrsvc.engines.isolated.child import HANG, LOG, Child, ChildLost, CrashHandling, Spawner
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import BadModel, DeadlineExceeded, EngineFailed, EngineUnavailable, OcrsvcError
from ocrsvc.results import EngineInfo, Page, Task
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes, read_process_bytes
from ocrsvc.system.thread_plan import ThreadPlan

# Back-off starts when this many children in a row died while opening; at once after an engine error or a timeout.
_TRIES_BEFORE_BACKOFF: Final = 3
_LONGEST_BACKOFF_S: Final = 60.0
# A memory limit below this multiple of a child's memory after warm-up is ignored: each new child would exceed it.
_MIN_LIMIT_RATIO: Final = 1.1
# Share of the memory, and of the GPU's memory, that all children at their limit and one successor may use together.
_MEMORY_SHARE: Final = 0.8
# If a child got less time than this, because of a short deadline, its hang is not blamed on the image.
_HANG_S: Final = 10.0
# Causes of death of a child that opened too slowly: the worker's time limit, or the child's own timer.
_TOO_LATE: Final = (HANG, "SIGALRM")


class ChildPool:
    """Starts a worker's children, delays starts after failures, and decides on replacements. Thread-safe.

    `children` is the number of children in the whole service, which share its memory and perhaps a GPU.
    """

    def __init__(self, spawner: Spawner, settings: Settings, children: int = 1) -> None:
        self._spawner, self._settings, self._children = spawner, settings, children
        self.deadline_s = settings.deadline_s
        self._memory_limit_bytes = self._share_of(read_memory_bytes(), settings.child_memory_bytes)
        # Held while a successor opens, so that at most one handle has two children.
        self.replacement_lock = threading.Lock()
        self._failures, self._reason = 0, ""
        self._failure: Exception | None = None
        self._retry_at_s = 0.0
        self._logged: set[str] = set()
        self.info: EngineInfo | None = None  # describes the engine of the child that opened last

    def start_child(self) -> Child:
        """Start a child, which then opens its engine. Raises EngineFailed during a back-off, ChildLost."""
        if time.monotonic() < self._retry_at_s:
            raise EngineFailed(
                f"The engine cannot be opened again: {self._reason}", "See the log; the service keeps trying."
            ) from self._failure
        return Child(self._spawner, self._settings.boot_limit_s)

    def note_opened(self, child: Child) -> None:
        """End the back-off, because a child is ready."""
        self._failures = 0
        self.info = child.ready.info

    def note_failure(self, failure: ChildLost | OcrsvcError) -> None:
        """Delay the next start by 1, 2, 4, … 60 s; after the first deaths, which may be chance, retry at once."""
        self._failures += 1
        is_late = isinstance(failure, ChildLost) and failure.cause in _TOO_LATE
        if is_late or isinstance(failure, OcrsvcError):
            self._failures = max(self._failures, _TRIES_BEFORE_BACKOFF)
        if isinstance(failure, OcrsvcError):
            self._reason = failure.detail
        elif is_late:
            self._reason = f"it did not open within {self._settings.boot_limit_s:g} s (OCRSVC_BOOT_LIMIT_S)."
        else:
            self._reason = f"its process ended ({failure.cause})."
        self._failure = failure.with_traceback(None)
        if (late := self._failures - _TRIES_BEFORE_BACKOFF) >= 0:
            self._retry_at_s = time.monotonic() + min(2.0 ** min(late, 16), _LONGEST_BACKOFF_S)
        LOG.error("The engine did not open in a child: %s", self._reason)

    def replacement_reason(self, child: Child) -> str:
        """The reason to replace a child; empty if there is none."""
        max_images = self._settings.child_max_images
        if max_images and child.images >= max_images:
            return "images"
        ready = child.ready
        given_bytes = bytes_of(self._settings.child_gpu_bytes, ready.gpu_total_bytes)
        gpu_limit_bytes = self._share_of(ready.gpu_total_bytes, given_bytes)
        for reason, variable, limit_bytes, used_bytes, footprint_bytes in (
            ("memory", "OCRSVC_CHILD_MEMORY_BYTES", self._memory_limit_bytes, child.private_bytes, ready.private_bytes),
            ("GPU memory", "OCRSVC_CHILD_GPU_BYTES", gpu_limit_bytes, child.gpu_bytes, ready.gpu_bytes),
        ):
            if not 0 < limit_bytes <= used_bytes:
                continue
            if limit_bytes >= _MIN_LIMIT_RATIO * footprint_bytes:
                return reason
            if variable not in self._logged:
                self._logged.add(variable)
                LOG.error(
                    "%s is %s, but a child uses %s after its warm-up: this limit is ignored, for replacing is no help.",
                    *(variable, limit_bytes, footprint_bytes),
                )
        return ""

    def _share_of(self, total_bytes: int, given_bytes: int | None) -> int:
        """The memory limit per child: the operator's, else an equal share of the total; 0 means no limit."""
        return int(_MEMORY_SHARE * total_bytes) // (self._children + 1) if given_bytes is None else given_bytes


class IsolatedHandle:
    """Reads in a child process; replaces the child if it fails or is due for replacement. See engines.contract.Handle.

    A child is killed `grace_s` after a read's deadline, not at once: engines check deadlines only between lines, and a
    new child must load the models. `grace_s` is below the executor's STUCK_S. Raises EngineUnavailable, BadModel.
    """

    def __init__(self, pool: ChildPool, denylist: CrashDenylist, grace_s: float = 3.0, model: str = "") -> None:
        self._pool, self._grace_s = pool, grace_s
        self._crash_handling = CrashHandling(self._read_in_child, denylist, model)
        self._hang_s = min(_HANG_S, pool.deadline_s)
        self._successor: Child | None = None
        self._child: Child | None = None
        self._replacement = contextlib.ExitStack()  # releases replacement_lock
        try:
            self._child = self._open(math.inf)
        except OcrsvcError as error:
            if isinstance(bad := error.__cause__, BadModel):
                raise BadModel(bad.detail, bad.remedy) from error
            raise EngineUnavailable(error.detail, error.remedy) from error

    @property
    def child(self) -> Child:
        """The current child. Raises EngineFailed if there is none."""
        if self._child is None:
            raise EngineFailed("This engine thread currently has no child process.")
        return self._child

    def warm_up(self) -> None:
        """Do nothing, because a child is warm when it is ready."""

    def read(self, tasks: Sequence[Task]) -> list[Page | OcrsvcError]:
        """See engines.contract.Handle."""
        return self._crash_handling.read(tasks)

    def close(self) -> None:
        """Let the child close its engine; see engines.contract.Handle."""
        if self._child is not None:
            self._child.end(kill=False)
            self._child = None
        if self._successor is not None:
            self._take_successor().end()

    def _read_in_child(self, tasks: list[Task]) -> list[Page | OcrsvcError]:
        """The child's answers. Raises ChildLost; OcrsvcError if no child opened in time, or the engine failed."""
        deadline = max(task.deadline for task in tasks)
        child = self._ready_child(deadline)
        began_s = time.monotonic()
        try:
            answers = child.read(tasks, deadline + self._grace_s)
        except ChildLost as lost:
            if lost.cause == HANG and time.monotonic() - began_s < self._hang_s:
                lost.is_blamed = False
            LOG.warning("CHILD %s LOST: %s, after %s images", child.ready.pid, lost.cause, child.images)
            self._child = None
            child.end()
            if self._successor is None:
                with contextlib.suppress(EngineFailed, ChildLost):
                    self._successor = self._pool.start_child()
            raise
        self._start_replacement(child)
        return answers

    def _ready_child(self, until_s: float) -> Child:
        if self._child is None:
            self._child = self._open(until_s)
        elif self._successor is not None and (successor := self._take_if_ready(self._successor, 0.0)):
            old, self._child = self._child, successor
            LOG.info(
                "CHILD %s RECYCLED: %s, after %s images", old.ready.pid, self._pool.replacement_reason(old), old.images
            )
            old.end(kill=False)
        return self._child

    def _start_replacement(self, child: Child) -> None:
        """Start a successor if the child is due for replacement and no other handle is starting one."""
        if (
            self._successor is not None
            or not self._pool.replacement_reason(child)
            or not self._pool.replacement_lock.acquire(blocking=False)
        ):
            return
        self._replacement.callback(self._pool.replacement_lock.release)
        try:
            self._successor = self._pool.start_child()
        except (EngineFailed, ChildLost):
            self._replacement.close()

    def _open(self, until_s: float) -> Child:
        """Wait for a ready child, or start one. Raises DeadlineExceeded, or EngineFailed during a back-off."""
        while True:
            if self._successor is None:
                try:
                    self._successor = self._pool.start_child()
                except ChildLost as lost:
                    self._pool.note_failure(lost)
            elif child := self._take_if_ready(self._successor, until_s):
                return child
            elif time.monotonic() >= until_s:
                raise DeadlineExceeded("The engine did not open again before the deadline of this request.")

    def _take_if_ready(self, child: Child, until_s: float) -> Child | None:
        """Return the opening child if it is ready by `until_s`, else None; a child that fails to open is discarded."""
        try:
            if not child.wait_ready(until_s):
                return None
        except (ChildLost, OcrsvcError) as failure:
            self._take_successor().end()
            self._pool.note_failure(failure)
            return None
        self._pool.note_opened(child)
        return self._take_successor()

    def _take_successor(self) -> Child:
        child, self._successor = self._successor, None
        assert child is not None, "only called with a successor"
        self._replacement.close()
        return child


class IsolatedEngine:
    """An engine in child processes; the worker itself loads no model. Raises EngineUnavailable, BadModel."""

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
        # `serial_open` False: handles may open at the same time, because each has a process of its own.
        self.traits = replace(self._spare.child.ready.traits, serial_open=False, decodes=True, any_thread=True)

    def describe(self) -> EngineInfo:
        """See engines.contract.Engine. Describes the child that opened last."""
        assert self._pool.info is not None, "the first handle has opened a child"
        return self._pool.info

    def memory_bytes(self) -> int:
        """Private memory of the fork server and all its children."""
        server = self._spawner.pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
            return sum(map(read_process_bytes, (server, *map(int, children))))
        return 0

    def open_handle(self) -> IsolatedHandle:
        """See engines.contract.Engine."""
        spare, self._spare = self._spare, None
        return spare or IsolatedHandle(self._pool, self._denylist, model=self._digest)

    def close(self) -> None:
        """End all children; see engines.contract.Engine."""
        if self._spare is not None:
            self._spare.close()
        self._spawner.close()
