"""The contract of every engine: open, warm up, read a list of images, close, describe itself.

An `Engine` is loaded once per process, after the fork. The executor opens one `Handle` per thread, and only that thread
uses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ocrsvc.errors import OcrsvcError
from ocrsvc.results import EngineInfo, Page, ReadTask


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """How the executor should use an engine."""

    serial_open: bool = False  # handles must be opened one after the other (Tr 2.8 aborts the process otherwise)
    best_batch: int = 1  # largest useful number of images per `read` call; 1: batching gains nothing
    wants_gray: bool = False  # the engine reads gray images, so colour is never decoded
    decodes: bool = False  # the engine decodes image files in its own process: FileTask in, DecodedPage out
    # a handle may be opened, warmed up and closed in another thread than the one that reads, though never used by two
    # at once; loading a model then blocks no engine thread
    any_thread: bool = False


class Handle(Protocol):
    """One thread's access to an engine. All calls come from the thread that opened it, unless `any_thread` is set."""

    def warm_up(self) -> None:
        """Run every shape bucket once, so that the first request is fast. Raises EngineUnavailable."""

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Read the images; returns one Page or error per task, in the same order.

        The engine calls a task's `check` between passes over an image and between lines; the error that it raises
        becomes that image's answer. Boxes are in pixels of the given image. The caller has already applied
        `options.max_side` and a fixed `options.rotate`: an engine sees `rotate` as "auto" or "0" (upright).
        """
        ...

    def close(self) -> None:
        """Release the handle's resources. Called once, from the owning thread."""


class Engine(Protocol):
    """A loaded engine: the models, without threads."""

    @property
    def traits(self) -> EngineTraits:
        """How the executor should use it."""
        ...

    def describe(self) -> EngineInfo:
        """Name, model, version, device, precision, provider. Cheap; called for each request."""
        ...

    def open_handle(self) -> Handle:
        """A handle for the calling thread. Raises EngineUnavailable."""
        ...

    def close(self) -> None:
        """Release the models. Called once, after every handle is closed."""
