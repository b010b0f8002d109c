"""Retries images after the engine's process crashed, and refuses those that crash it twice with 422."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np

from ocrsvc.engines.isolated.child import LOG, ChildLost
from ocrsvc.errors import ClientGone, DeadlineExceeded, EngineFailed, ImageCrashesEngine, OcrsvcError
from ocrsvc.results import FileTask, Page, Task
from ocrsvc.serving.crash_denylist import CRASHES, CrashDenylist

_TRIES: Final = 4  # includes children that died before they began with the image


@dataclass(slots=True)
class _Trial:
    """One image and the number of crashes while it was read alone; the denylist has `noted_crashes` of them."""

    task: Task
    noted_crashes: int
    crashes: int
    answer: Page | OcrsvcError | None = None


class CrashHandling:
    """Reads images with `read_in_child`, which raises ChildLost when the process ended. For one thread.

    Crashes count per `model` (a digest; "" without OCRSVC_MODELS).
    """

    def __init__(
        self, read_in_child: Callable[[list[Task]], list[Page | OcrsvcError]], denylist: CrashDenylist, model: str = ""
    ) -> None:
        self._read_in_child = read_in_child
        self._denylist = denylist
        self._model = model

    def read(self, tasks: Sequence[Task]) -> list[Page | OcrsvcError]:
        """Answer each task. After a crash in a batch, which blames none of its images, each is read alone."""
        trials = [self._begin(task) for task in tasks]
        waiting = [trial for trial in trials if trial.answer is None]
        if len(waiting) > 1:
            self._read_together(waiting)
        return [trial.answer or self._read_alone(trial) for trial in trials]

    def _begin(self, task: Task) -> _Trial:
        crashes = 0 if self._denylist.is_empty() else self._denylist.crashes(digest_of(task, self._model))
        return _Trial(task, crashes, crashes, _refusal() if crashes >= CRASHES else None)

    def _read_together(self, trials: list[_Trial]) -> None:
        with contextlib.suppress(OcrsvcError, ChildLost):
            for trial, answer in zip(trials, self._read_in_child([trial.task for trial in trials]), strict=True):
                trial.answer = self._clear_if_noted(trial, answer)

    def _read_alone(self, trial: _Trial) -> Page | OcrsvcError:
        for _ in range(_TRIES):
            try:
                return self._clear_if_noted(trial, *self._read_in_child([trial.task]))
            except OcrsvcError as error:
                return error
            except ChildLost as lost:
                trial.crashes += lost.is_blamed
                if trial.crashes >= CRASHES or time.monotonic() >= trial.task.deadline:
                    return self._give_up(trial, lost)
        return EngineFailed(f"The engine's process ended {_TRIES} times before it began with this image.")

    def _clear_if_noted(self, trial: _Trial, answer: Page | OcrsvcError) -> Page | OcrsvcError:
        if trial.noted_crashes and not isinstance(answer, DeadlineExceeded | ClientGone):
            self._denylist.clear(digest_of(trial.task, self._model))
        return answer

    def _give_up(self, trial: _Trial, lost: ChildLost) -> OcrsvcError:
        digest = digest_of(trial.task, self._model)
        if trial.crashes > trial.noted_crashes:
            self._denylist.note(digest, trial.crashes, lost.cause)
        if trial.crashes < CRASHES:
            return DeadlineExceeded(f"The engine's process ended ({lost.cause}), and no time was left for a retry.")
        LOG.error("DENYLISTED image %s: %s", digest.hex(), lost.cause)
        return _refusal()


def _refusal() -> ImageCrashesEngine:
    return ImageCrashesEngine(
        "This image crashed the engine's process twice.",
        "Send another image, or convert this one again; it is retried after OCRSVC_CRASH_DENYLIST_S.",
    )


_CHOOSING_OPTIONS: Final = ("rotate", "detect", "upright_boxes", "unwarp", "layout", "tables", "barcodes", "region")
"""Options that select the code that an image runs through."""


def digest_of(task: Task, model: str = "") -> bytes:
    """Denylist digest of the file or pixels, the model and the relevant options; 1 ms per megabyte."""
    options, shape = task.options, () if isinstance(task, FileTask) else task.image.pixels.shape
    chosen = (shape, options and tuple(getattr(options, name) for name in _CHOOSING_OPTIONS))
    digest = blake2b(repr(chosen).encode(), digest_size=16, key=model.encode()[:64])
    digest.update(task.data if isinstance(task, FileTask) else np.ascontiguousarray(task.image.pixels).data)
    return digest.digest()
