"""The contract that every engine fulfils: open, warm up, read a list of images, close, describe itself.

An `Engine` is loaded once in a process, after the fork. It hands out `Handle`s; the executor gives one to each of its
threads, and only that thread uses it (unless the engine says that one handle serves all).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ocrsvc.errors import OcrsvcError
from ocrsvc.results import EngineInfo, Page, ReadTask


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """How the executor should use an engine."""

    serial_open: bool = False  # handles must be opened one after the other (Tr 2.8 aborts the process otherwise)
    best_batch: int = 1  # most images that one `read` call gains from; 1 means that batching buys nothing
    wants_gray: bool = False  # the engine reads gray images, so colour need not be decoded at all
    # image files are decoded where the engine runs, in another process: its handles take FileTasks as well, and answer
    # each with a DecodedPage
    decodes: bool = False
    # a handle may be opened, warmed up and closed in another thread than the one that reads with it, though never used
    # by two at once: what loads a model while others read holds up no engine thread then
    any_thread: bool = False


class Handle(Protocol):
    """One thread's access to an engine. All calls come from the thread that opened it, unless `any_thread` is said."""

    def warm_up(self) -> None:
        """Run every shape bucket once, so that the first request finds everything loaded. Raises EngineUnavailable."""

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Read each image; one Page or one error for each, in the same order, whatever fails.

        Between passes over an image and between its lines a task's `check` is called; what it raises is that image's
        answer. Boxes come back in the pixels of the image given. `options.max_side` and a fixed `options.rotate` are
        already applied by the caller: an engine sees `rotate` as "auto" (find it) or "0" (upright).
        """
        ...

    def close(self) -> None:
        """Give back what the handle holds. Called once, from the owning thread."""


class Engine(Protocol):
    """A loaded engine: the models, without the threads."""

    @property
    def traits(self) -> EngineTraits:
        """How the executor should use it."""
        ...

    def describe(self) -> EngineInfo:
        """Name, model, version, device, precision, provider. Cheap; asked at each request."""
        ...

    def open_handle(self) -> Handle:
        """A handle for the calling thread. Raises EngineUnavailable."""
        ...

    def close(self) -> None:
        """Give back the models. Called once, after every handle is closed."""
