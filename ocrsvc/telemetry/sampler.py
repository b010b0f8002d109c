"""Sets the gauges and readings that no event updates, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from ocrsvc.errors import OcrsvcError
from ocrsvc.telemetry.metric import Metric
from ocrsvc.telemetry.metrics_store import WorkerMetrics

SAMPLE_S: Final = 0.5
# A disk that hangs does not hold up the end of the worker.
_END_S: Final = 1.0


class Sampler(threading.Thread):
    """Costs requests nothing. Start it after the fork.

    Args:
        worker_metrics: Of this process.
        read: What to put. An OSError or a failure of ours that it raises leaves what was put before.
        every_s: How often, in seconds.
    """

    def __init__(
        self,
        worker_metrics: WorkerMetrics,
        read: Callable[[], Iterable[tuple[Metric, float]]],
        every_s: float = SAMPLE_S,
    ) -> None:
        super().__init__(name="numbers", daemon=True)
        self._worker_metrics = worker_metrics
        self._read = read
        self._every_s = every_s
        self._done = threading.Event()

    def run(self) -> None:
        """See threading.Thread."""
        is_done = False
        while not is_done:
            self._put()
            is_done = self._done.wait(self._every_s)

    def _put(self) -> None:
        try:
            for metric, value in self._read():
                self._worker_metrics.put(metric, value)
        except (OSError, OcrsvcError):
            # A disk, or a store of keys, that is not there now; those who need it log it.
            return

    def stop(self) -> None:
        """End; safe to call when it was never started."""
        self._done.set()
        if self.is_alive():
            self.join(_END_S)
