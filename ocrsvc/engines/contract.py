"""The interface of every engine: open, warm up, read a list of images, describe itself, close.

Each worker loads an `Engine` once, after the fork. The executor opens one `Handle` per thread, and only that thread
uses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ocrsvc.errors import OcrsvcError
from ocrsvc.results import EngineInfo, Page, ReadTask


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """Properties of an engine that the executor must respect."""

    serial_open: bool = False  # handles must be opened one after the other (otherwise Tr 2.8 aborts the process)
    best_batch: int = 1  # largest useful number of images per `read` call; 1 if batches gain nothing
    wants_gray: bool = False  # the engine reads gray images, so colour is never decoded
    decodes: bool = False  # the engine decodes image files itself: it takes FileTasks and returns DecodedPages
    # The thread that opens, warms up and closes a handle may differ from the one that reads with it, but the calls must
    # not overlap. Model loading then blocks no engine thread.
    any_thread: bool = False


class Handle(Protocol):
    """One thread's access to an engine. Only the thread that opened it may use it, unless `any_thread` is set."""

    def warm_up(self) -> None:
        """Run every input shape once, so that the first request does not wait for it. Raises EngineUnavailable."""

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Read the images; returns one Page or error per task, in the same order.

        The engine calls a task's `check` between passes over an image and between lines; an error that `check` raises
        becomes the result of that image. Boxes are in pixels of the given image. The caller has already applied
        `options.max_side` and a fixed `options.rotate`, so an engine only gets "auto" or "0" (upright) in `rotate`.
        """
        ...

    def close(self) -> None:
        """Free the handle's resources; called once, by the thread that uses the handle."""


class Engine(Protocol):
    """A loaded engine: its models, without threads of its own."""

    @property
    def traits(self) -> EngineTraits:
        """Properties that the executor must respect."""
        ...

    def describe(self) -> EngineInfo:
        """Name, model, version, device, precision and provider. Called for each request, so it must be cheap."""
        ...

    def open_handle(self) -> Handle:
        """Open a handle for the calling thread. Raises EngineUnavailable."""
        ...

    def close(self) -> None:
        """Free the models; called once, after all handles are closed."""
