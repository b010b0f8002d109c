"""Wakes threads and tasks that wait for a change, and loses none that comes between looking and waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice

Wake = Callable[[], None]


class Changes:
    """What changes is somewhere else: here is told that it has, and waited for it; for any thread.

    Whoever waits asks for `seen` first, looks at what may have changed next, and waits last.
    """

    def __init__(self) -> None:
        # A request that was abandoned ends wherever the garbage collector runs, and so amid `tell` of the same thread.
        self._lock = threading.RLock()
        self._count = 0
        self._waiting: dict[object, Wake] = {}

    def seen(self) -> Seen:
        """The changes that have been told up to now."""
        return Seen(self, self._count)

    def tell(self, most: int | None = None) -> None:
        """Something has changed: wake those that wait, or so many of them, who have waited longest."""
        with self._lock:
            self._count += 1
            for waiting in list(islice(self._waiting, most)):
                if (wake := self._waiting.pop(waiting, None)) is not None:
                    wake()

    @contextmanager
    def waking(self, seen: int, wake: Wake) -> Iterator[None]:
        """For the block, have a function called once at the next change after so many, or now if that was told before.

        Args:
            seen: The changes that were told before what may have changed was looked at.
            wake: Called in any thread, at most once; must not wait for anything.
        """
        waiting = object()
        with self._lock:
            is_late = seen != self._count
            if not is_late:
                self._waiting[waiting] = wake
        if is_late:
            wake()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(waiting, None)


@dataclass(frozen=True, slots=True)
class Seen:
    """The changes that whoever waits knows of: the next one ends the wait."""

    changes: Changes
    count: int

    def waking(self, wake: Wake) -> AbstractContextManager[None]:
        """As `Changes.waking`."""
        return self.changes.waking(self.count, wake)


class Left(threading.Event):
    """Set once nobody waits for a request any more; ends its pauses."""

    def __init__(self) -> None:
        super().__init__()
        self._changes = Changes()

    def set(self) -> None:
        """Nobody waits any more."""
        super().set()
        self._changes.tell()

    def pause(self, seconds: float, change: Seen | None) -> bool:
        """Wait until nobody waits any more, for the change, or so long.

        Returns:
            Whether nobody waits any more.
        """
        seen, woken = self._changes.seen(), threading.Event()
        if change is None or self.is_set():
            return self.wait(seconds)
        with seen.waking(woken.set), change.waking(woken.set):
            woken.wait(seconds)
        return self.is_set()
