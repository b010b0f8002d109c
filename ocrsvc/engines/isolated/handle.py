"""The handle of an engine in child processes: asks its child, and replaces one that is lost or due.

One handle belongs to one executor thread, and has one child at a time; when that one is due for replacement, its
successor opens beside it, and they change places between two reads.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Final

from ocrsvc.engines.isolated.child import HANG, Child, ChildLost
from ocrsvc.engines.isolated.child_pool import LOG, ChildPool
from ocrsvc.engines.isolated.crash_handling import CrashHandling
from ocrsvc.errors import BadModel, DeadlineExceeded, EngineFailed, EngineUnavailable, OcrsvcError
from ocrsvc.records import Page, Task
from ocrsvc.serving.crash_denylist import CrashDenylist

# An engine that was killed because of a short deadline says nothing about the image.
_HANG_S: Final = 10.0


class IsolatedHandle:
    """See engines.contract.Handle.

    Args:
        pool: What the handles of this worker share.
        denylist: What all workers share.
        grace_s: How long a read may go on past its deadline before the child is killed. An engine checks deadlines
            between lines only, and killing it costs a load of the models; below the executor's STUCK_S.
        model: The digest of the model that reads; empty without OCRSVC_MODELS.

    Raises:
        EngineUnavailable: No child could open the engine.
        BadModel: It could not use the model that it was given.
    """

    def __init__(self, pool: ChildPool, denylist: CrashDenylist, grace_s: float = 3.0, model: str = "") -> None:
        self._pool = pool
        self._crash_handling = CrashHandling(self._ask, denylist, model)
        self._grace_s = grace_s
        self._hang_s = min(_HANG_S, pool.deadline_s)
        self._successor: Child | None = None
        self._child: Child | None = None
        # Gives the lock of the replacement back.
        self._replacement = contextlib.ExitStack()
        try:
            self._child = self._open(math.inf)
        except OcrsvcError as error:
            if isinstance(bad := error.__cause__, BadModel):
                raise BadModel(bad.detail, bad.remedy) from error
            raise EngineUnavailable(error.detail, error.remedy) from error

    @property
    def child(self) -> Child:
        """The child that reads now. Raises EngineFailed when there is none."""
        if self._child is None:
            raise EngineFailed("This engine thread has no child at the moment.")
        return self._child

    def warm_up(self) -> None:
        """A child is warm before it says that it is ready."""

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

    def _ask(self, tasks: list[Task]) -> list[Page | OcrsvcError]:
        """The child's answers. Raises ChildLost, or OcrsvcError when there is no child or its engine failed."""
        deadline = max(task.deadline for task in tasks)
        child = self._ready_child(deadline)
        began_s = time.monotonic()
        try:
            answers = child.read(tasks, deadline + self._grace_s)
        except ChildLost as lost:
            if lost.cause == HANG and time.monotonic() - began_s < self._hang_s:
                lost.is_blamed = False
            self._replace_lost_child(child, lost)
            raise
        self._start_replacement(child)
        return answers

    def _replace_lost_child(self, child: Child, lost: ChildLost) -> None:
        """End a lost child, and start the next one at once."""
        LOG.warning("CHILD %s LOST: %s, after %s images", child.opened.pid, lost.cause, child.images)
        self._child = None
        child.end()
        if self._successor is None:
            with contextlib.suppress(EngineFailed, ChildLost):
                self._successor = self._pool.start_child()

    def _ready_child(self, until_s: float) -> Child:
        """The child to ask: the old one, or its successor if that is ready."""
        if self._child is None:
            self._child = self._open(until_s)
        elif self._successor is not None and (successor := self._take_if_ready(self._successor, 0.0)):
            old, self._child = self._child, successor
            LOG.info(
                "CHILD %s RECYCLED: %s, after %s images", old.opened.pid, self._pool.replacement_reason(old), old.images
            )
            old.end(kill=False)
        return self._child

    def _start_replacement(self, child: Child) -> None:
        """Start a successor for a child that is due, if no other handle is doing so."""
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
        """A child that is ready. Raises DeadlineExceeded, or EngineFailed when none will be for a while."""
        while True:
            if self._successor is None:
                try:
                    self._successor = self._pool.start_child()
                except ChildLost as lost:
                    self._pool.note_failure(lost)
            elif child := self._take_if_ready(self._successor, until_s):
                return child
            elif time.monotonic() >= until_s:
                raise DeadlineExceeded("The engine was opening again until the deadline of this request.")

    def _take_if_ready(self, child: Child, until_s: float) -> Child | None:
        """The child that was opening, if it is ready by then; one that fails is dropped."""
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
        assert child is not None, "only called when there is one"
        self._replacement.close()
        return child
