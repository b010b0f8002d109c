"""Reads images again after the engine's process crashed, and refuses those that crash it twice with a 422."""

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

# Of children that died before they began with the image, too: something is wrong that is not the image.
_TRIES: Final = 4


@dataclass(slots=True)
class _Trial:
    """One image, and how often engines died over it alone; `noted_crashes` of these deaths are in the denylist."""

    task: Task
    noted_crashes: int
    crashes: int
    answer: Page | OcrsvcError | None = None


class CrashHandling:
    """Reads images through a process that may end under them. One thread's.

    `ask` raises ChildLost when the process ended. What crashes one `model` (a digest; "" without OCRSVC_MODELS) may do
    another no harm.
    """

    def __init__(
        self, ask: Callable[[list[Task]], list[Page | OcrsvcError]], denylist: CrashDenylist, model: str = ""
    ) -> None:
        self._ask = ask
        self._denylist = denylist
        self._model = model

    def read(self, tasks: Sequence[Task]) -> list[Page | OcrsvcError]:
        """The answer to each task.

        A batch whose engine dies blames none of its images: each is read once more, alone.
        """
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
            for trial, answer in zip(trials, self._ask([trial.task for trial in trials]), strict=True):
                trial.answer = self._clear_if_noted(trial, answer)

    def _read_alone(self, trial: _Trial) -> Page | OcrsvcError:
        for _ in range(_TRIES):
            try:
                return self._clear_if_noted(trial, *self._ask([trial.task]))
            except OcrsvcError as error:
                return error
            except ChildLost as lost:
                trial.crashes += lost.is_blamed
                if trial.crashes >= CRASHES or time.monotonic() >= trial.task.deadline:
                    return self._give_up(trial, lost)
        return EngineFailed("The engine's process ended again and again before it began with this image.")

    def _clear_if_noted(self, trial: _Trial, answer: Page | OcrsvcError) -> Page | OcrsvcError:
        if trial.noted_crashes and not isinstance(answer, DeadlineExceeded | ClientGone):
            self._denylist.clear(digest_of(trial.task, self._model))
        return answer

    def _give_up(self, trial: _Trial, lost: ChildLost) -> OcrsvcError:
        digest = digest_of(trial.task, self._model)
        if trial.crashes > trial.noted_crashes:
            self._denylist.note(digest, trial.crashes, lost.cause)
        if trial.crashes < CRASHES:
            return DeadlineExceeded(f"The engine's process ended ({lost.cause}), and no time was left to try again.")
        LOG.error("QUARANTINED image %s: %s", digest.hex(), lost.cause)
        return _refusal()


def _refusal() -> ImageCrashesEngine:
    return ImageCrashesEngine(
        "The engine's process died over this image twice.",
        "Send another image, or this one converted anew; it is tried again after OCRSVC_QUARANTINE_S.",
    )


_CHOOSING_OPTIONS: Final = ("rotate", "detect", "upright_boxes", "unwarp", "layout", "tables", "barcodes", "region")
"""Those that change which code an image meets."""


def digest_of(task: Task, model: str = "") -> bytes:
    """For the denylist: of the file or the pixels, the model, and the options that matter; 1 ms a megabyte."""
    options, shape = task.options, () if isinstance(task, FileTask) else task.image.pixels.shape
    chosen = (shape, options and tuple(getattr(options, name) for name in _CHOOSING_OPTIONS))
    found = blake2b(repr(chosen).encode(), digest_size=16, key=model.encode()[:64])
    found.update(task.data if isinstance(task, FileTask) else np.ascontiguousarray(task.image.pixels).data)
    return found.digest()
