"""A bounded queue and a thread between whoever logs and what the log is written to: nobody waits for a log.

What finds the queue full is dropped and counted; once lines are written again, one of them says how many were lost.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

QUEUE_LINES: Final = 10_000


class LineWriter(Generic[T]):
    """Writes what it is given, in order; any thread may call it, and a signal's handler too.

    Its thread starts with the first line: that is after the fork, which no thread survives.

    Args:
        name: Of the thread.
        write: Writes one line; called in the thread alone. What it raises costs that line.
        write_lost: Writes that so many lines were lost; as `write`.
        on_drop: Called for each line that is lost.
        most: Lines that may wait.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[T], object],
        write_lost: Callable[[int], object],
        on_drop: Callable[[], object],
        most: int = QUEUE_LINES,
    ) -> None:
        self._name, self._write, self._write_lost, self._on_drop, self._most = name, write, write_lost, on_drop, most
        # Its `put` takes no lock that a signal's handler could find taken.
        self._lines: queue.SimpleQueue[T | threading.Event | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._lost = 0

    def put(self, line: T) -> None:
        """Hand over a line; never waits."""
        if self._lines.qsize() >= self._most:
            self._lost += 1
            self._on_drop()
        elif self._start():
            self._lines.put(line)
        else:
            self._on_drop()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was put so far is written, but not for longer than this; whether it is."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._lines.put(done)
        return done.wait(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Write what is queued, but not for longer than this. Safe to call when there was no line."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(timeout_s)

    def _start(self) -> bool:
        """Whether the thread runs; where the system refuses one, the next line tries again."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:
                        return False
                    self._thread = thread
        return True

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
                continue
            try:
                self._write(line)
                if self._lost:
                    lost, self._lost = self._lost, 0
                    self._write_lost(lost)
            except Exception:  # noqa: BLE001  one line that cannot be written must not end the log
                self._on_drop()
