"""The handle of an engine in child processes: reads images, retries after a crash, and refuses images that crash it.

One handle belongs to one executor thread, and has one child at a time; when that one is due for replacement, its
successor opens beside it, and they change places between two reads.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ocrsvc.engines.isolated.child import HANG, Child, ChildLost
from ocrsvc.engines.isolated.child_pool import LOG, ChildPool
from ocrsvc.engines.isolated.image_hash import TaskHash
from ocrsvc.errors import ClientGone, DeadlineExceeded, EngineFailed, EngineUnavailable, ImageCrashesEngine, OcrsvcError
from ocrsvc.records import Page, Task
from ocrsvc.serving.crash_denylist import CRASHES, CrashDenylist

# Of children that died before they began with the image, too: something is wrong that is not the image.
_TRIES: Final = 4
# An engine that was killed because its caller was in a hurry says nothing about the image.
_HANG_S: Final = 10.0


@dataclass(slots=True)
class _Trial:
    """One image, and how often engines have died over it; `kept` of these deaths are in the quarantine already."""

    task: Task
    image: TaskHash
    kept: int
    crashes: int
    answer: Page | OcrsvcError | None = None


class IsolatedHandle:
    """See engines.contract.Handle.

    Args:
        crew: What the handles of this worker share.
        quarantine: What all workers share.

    Raises:
        EngineUnavailable: No child could open the engine.
    """

    def __init__(self, crew: ChildPool, quarantine: CrashDenylist) -> None:
        self._crew = crew
        self._quarantine = quarantine
        self._next: Child | None = None
        self._child: Child | None = None
        self._has_turn = False
        try:
            self._child = self._open(math.inf)
        except OcrsvcError as error:
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
        """See engines.contract.Handle. A batch whose engine dies is read once more, each image alone."""
        trials = [self._begin(task) for task in tasks]
        waiting = [trial for trial in trials if trial.answer is None]
        if len(waiting) > 1:
            self._read_together(waiting)
        return [trial.answer or self._read_alone(trial) for trial in trials]

    def close(self) -> None:
        """Let the child close its engine; see engines.contract.Handle."""
        if self._child is not None:
            self._child.end(kill=False)
            self._child = None
        if self._next is not None:
            self._forget_next().end()

    def _begin(self, task: Task) -> _Trial:
        image = TaskHash(task)
        crashes = self._quarantine.crashes(image)
        return _Trial(task, image, crashes, crashes, _refusal() if crashes >= CRASHES else None)

    def _read_together(self, trials: list[_Trial]) -> None:
        try:
            answers = self._ask([trial.task for trial in trials])
        except OcrsvcError:
            return
        except ChildLost as lost:
            for trial in trials:
                trial.crashes += lost.is_blamed
            return
        for trial, answer in zip(trials, answers, strict=True):
            trial.answer = self._acquit(trial, answer)

    def _read_alone(self, trial: _Trial) -> Page | OcrsvcError:
        for _ in range(_TRIES):
            try:
                return self._acquit(trial, *self._ask([trial.task]))
            except OcrsvcError as error:
                return error
            except ChildLost as lost:
                trial.crashes += lost.is_blamed
                if trial.crashes >= CRASHES or time.monotonic() >= trial.task.deadline:
                    return self._give_up(trial, lost)
        return EngineFailed("The engine's process ended again and again before it began with this image.")

    def _acquit(self, trial: _Trial, answer: Page | OcrsvcError) -> Page | OcrsvcError:
        if trial.kept and not isinstance(answer, DeadlineExceeded | ClientGone):
            self._quarantine.clear(trial.image)
        return answer

    def _give_up(self, trial: _Trial, lost: ChildLost) -> OcrsvcError:
        if trial.crashes > trial.kept:
            self._quarantine.note(trial.image, trial.crashes, lost.cause)
        if trial.crashes < CRASHES:
            return DeadlineExceeded(f"The engine's process ended ({lost.cause}), and no time was left to try again.")
        LOG.error("QUARANTINED image %s: %s", trial.image.digest.hex(), lost.cause)
        return _refusal()

    def _ask(self, tasks: list[Task]) -> list[Page | OcrsvcError]:
        """The child's answers. Raises ChildLost, or OcrsvcError when there is no child or its engine failed."""
        deadline = max(task.deadline for task in tasks)
        child = self._current(deadline)
        began_s = time.monotonic()
        try:
            answers = child.read(tasks, deadline + self._crew.limits.grace_s)
        except ChildLost as lost:
            hurried = lost.cause == HANG and time.monotonic() - began_s < min(_HANG_S, self._crew.limits.deadline_s)
            self._bury(child, lost)
            raise ChildLost(lost.cause, is_blamed=lost.is_blamed and not hurried) from lost
        self._renew(child)
        return answers

    def _bury(self, child: Child, lost: ChildLost) -> None:
        """See a child off, and have the next one open at once."""
        LOG.warning("CHILD %s LOST: %s, after %s images", _pid(child), lost.cause, child.images)
        self._child = None
        child.end()
        if self._next is None:
            with contextlib.suppress(EngineFailed, ChildLost):
                self._next = self._crew.begin()

    def _current(self, until_s: float) -> Child:
        """The child to ask: the old one, or its successor if that is ready."""
        if self._child is None:
            self._child = self._open(until_s)
        elif self._next is not None and (successor := self._arrival(self._next, 0.0)):
            old, self._child = self._child, successor
            LOG.info("CHILD %s RECYCLED: %s, after %s images", _pid(old), self._crew.worn_by(old), old.images)
            old.end(kill=False)
        return self._child

    def _renew(self, child: Child) -> None:
        """Begin to open a successor for a worn child, when it is this handle's turn."""
        if self._next is not None or not self._crew.worn_by(child) or not self._crew.turn.acquire(blocking=False):
            return
        self._has_turn = True
        try:
            self._next = self._crew.begin()
        except (EngineFailed, ChildLost):
            self._end_turn()

    def _open(self, until_s: float) -> Child:
        """A child that is ready. Raises DeadlineExceeded, or EngineFailed when none will be for a while."""
        while True:
            if self._next is None:
                self._next = self._begin_next()
            elif child := self._arrival(self._next, until_s):
                return child
            elif time.monotonic() >= until_s:
                raise DeadlineExceeded("The engine was opening again until the deadline of this request.")

    def _begin_next(self) -> Child | None:
        try:
            return self._crew.begin()
        except ChildLost as lost:
            self._crew.note_failure(lost)
            return None

    def _arrival(self, child: Child, until_s: float) -> Child | None:
        """The child that was opening, if it is ready by then; one that fails is dropped."""
        latest_s = child.began_s + self._crew.limits.open_s
        failure: ChildLost | OcrsvcError = ChildLost(HANG, is_blamed=False)
        try:
            if child.wait_ready(min(until_s, latest_s)):
                self._crew.note_opened(child)
                return self._forget_next()
        except (ChildLost, OcrsvcError) as error:
            failure = error
        else:
            if time.monotonic() < latest_s:
                return None
        self._forget_next().end()
        self._crew.note_failure(failure)
        return None

    def _forget_next(self) -> Child:
        child, self._next = self._next, None
        assert child is not None, "only called when there is one"
        self._end_turn()
        return child

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._crew.turn.release()


def _pid(child: Child) -> int:
    return child.ready.pid if child.ready is not None else 0


def _refusal() -> ImageCrashesEngine:
    return ImageCrashesEngine(
        "The engine's process died over this image twice.",
        "Send another image, or this one converted anew; it is tried again after OCRSVC_QUARANTINE_S.",
    )
