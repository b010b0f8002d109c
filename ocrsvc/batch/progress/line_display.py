"""Shows a run's progress as lines of text, for logs and pipes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TextIO

from ocrsvc.batch.progress.formatting import count_of, duration_of, failures_of, rate_of, share_of
from ocrsvc.batch.progress.run_counts import RunCounts, RunSnapshot

INTERVAL_S: Final = 10.0


def line_of(now: RunSnapshot) -> str:
    """How a run stands, in one line."""
    finished = now.total - now.left
    left = "" if now.left_s is None or not now.left else f", {duration_of(now.left_s)} left"
    return (
        f"{finished:,} of {count_of(now.total, 'page')} ({share_of(finished, now.total)}), "
        f"{rate_of(now.pages_per_s)} pages/s, {rate_of(now.lines_per_s)} lines/s, {failures_of(now.failed)}{left}"
    )


class LineDisplay:
    """Writes a line every few seconds, in a thread of its own, until `close`.

    Args:
        counts: What is shown.
        output: Where to.
        wait: Waits so many seconds, or until the event is set; whether it is.
    """

    def __init__(
        self,
        counts: RunCounts,
        output: TextIO,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._counts, self._output, self._wait = counts, output, wait
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more lines."""
        self._closed.set()
        self._thread.join()

    def _show(self) -> None:
        while not self._wait(self._closed, INTERVAL_S):
            now = self._counts.snapshot()
            if now.total:
                self._output.write(f"ocrsvc: {line_of(now)}\n")
                self._output.flush()
