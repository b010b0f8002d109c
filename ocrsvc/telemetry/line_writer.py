"""A bounded queue and a thread between whoever logs and what the log is written to: nobody waits for a log.

What finds the queue full is dropped and counted; once lines are written again, one of them says how many were lost.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

T = TypeVar("T")

QUEUE_LINES: Final = 10_000
_TOGETHER: Final = 64


class LineWriter(Generic[T]):
    """Writes what it is given, in order; any thread may call it, and a signal's handler too.

    Its thread starts with the first line: that is after the fork, which no thread survives.

    Args:
        name: Of the thread.
        write: Writes lines; called in the thread alone. What it raises costs those lines.
        write_lost: Writes that so many lines were lost; as `write`.
        on_drop: Called for each line that is lost.
        most: Lines that may wait.
        pause_s: How long the thread waits for more after it has written: where lines come often, waking it for each
            would cost more than writing them.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[T]], object],
        write_lost: Callable[[int], object],
        on_drop: Callable[[], object],
        most: int = QUEUE_LINES,
        pause_s: float = 0.0,
    ) -> None:
        self._name, self._write, self._write_lost, self._on_drop, self._most = name, write, write_lost, on_drop, most
        self._pause_s = pause_s
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
        is_over = False
        while not is_over:
            lines, marks = list[T](), list[threading.Event]()
            for line in self._take():
                if line is None:
                    is_over = True
                elif isinstance(line, threading.Event):
                    marks.append(line)
                else:
                    lines.append(line)
            if lines:
                self._write_out(lines)
            for mark in marks:
                mark.set()
            if self._pause_s and not is_over:
                time.sleep(self._pause_s)

    def _take(self) -> list[T | threading.Event | None]:
        """What was put, as soon as there is something; not more at once than is soon written."""
        taken = [self._lines.get()]
        with suppress(queue.Empty):
            while len(taken) < _TOGETHER:
                taken.append(self._lines.get_nowait())
        return taken

    def _write_out(self, lines: Sequence[T]) -> None:
        try:
            self._write(lines)
            if self._lost:
                lost, self._lost = self._lost, 0
                self._write_lost(lost)
        except Exception:  # noqa: BLE001  lines that cannot be written must not end the log
            for _ in lines:
                self._on_drop()
