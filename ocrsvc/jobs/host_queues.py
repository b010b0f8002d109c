"""Work on a few threads that is for many hosts: one thing at a time for each host, and hosts take turns.

A host that is slow so keeps one thread, and only for one piece of work before another host has its turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class HostQueues(Generic[T]):
    """What waits for each host, and the threads that do it, which end when nothing waits; for any thread.

    Args:
        threads: How many things are done at once.
        work: Does one of them, in one of the threads.
        on_error: Called in that thread with what `work` has raised, and by `put` with why no thread could be started;
            whether what else waits for the host is dropped.
    """

    def __init__(self, threads: int, work: Callable[[T], object], on_error: Callable[[Exception], bool]) -> None:
        self._threads, self._work, self._on_error = threads, work, on_error
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[T]] = {}
        # Hosts for which no thread does anything now, in the order of their turns.
        self._turns: deque[str] = deque()
        self._running = 0

    def put(self, host: str, things: Iterable[T]) -> None:
        """Have these done for a host, in order, unless earlier ones of it still wait or are being done.

        Where no thread can be started they wait for one that runs, or that a later call starts.
        """
        with self._changed:
            if host not in self._waiting:
                self._waiting[host] = deque(things)
                self._turns.append(host)
            if not self._turns or self._running >= self._threads:
                return
            self._running += 1
        try:
            threading.Thread(target=self._run, name="callback", daemon=True).start()
        except RuntimeError as error:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
            self._on_error(error)

    def wait(self, timeout_s: float) -> bool:
        """Wait until no thread does anything any more; whether that came."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def _run(self) -> None:
        while (host := self._next_host()) is not None:
            things = self._waiting[host]
            try:
                self._work(things.popleft())
            except Exception as error:  # noqa: BLE001  a host that was never taken off would have no turn again
                if self._on_error(error):
                    things.clear()
            with self._changed:
                if things:
                    self._turns.append(host)
                else:
                    del self._waiting[host]

    def _next_host(self) -> str | None:
        """Whose turn it is; None, and the thread is to end, where nothing waits."""
        with self._changed:
            if self._turns:
                return self._turns.popleft()
            self._running -= 1
            self._changed.notify_all()
            return None
