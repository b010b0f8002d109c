"""How busy this worker is, in the worker table, and whether a sibling should take what comes instead."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

from ocrsvc.telemetry.worker_table import WorkerTable


def is_busier(own: int, others: Iterable[int], engine_threads: int) -> bool:
    """Whether requests wait for a worker's engine while a sibling, of `others`, has clearly fewer in flight."""
    return own > engine_threads and own - min(others, default=own) >= max(2, own // 8)


class LoadSharing:
    """The requests in flight of one worker among its siblings; for any thread."""

    def __init__(self, table: WorkerTable, slot_number: int, engine_threads: int) -> None:
        self._table, self._slot_number, self._engine_threads = table, slot_number, engine_threads
        # Those that the threads of requests have, or that wait for one; and all.
        self.in_threads = self.in_flight = 0
        self._counting = threading.Lock()

    def count(self, change: int) -> None:
        """Requests come to the threads, or are answered."""
        with self._counting:
            self.in_threads += change
        self.count_beside(change)

    def count_beside(self, change: int) -> None:
        """Requests that take the engine, but none of the threads here, begin or are over."""
        with self._counting:
            self.in_flight += change
            self._table.entry(self._slot_number).in_flight = self.in_flight

    @property
    def waits(self) -> bool:
        """Whether some wait for the engine."""
        return self.in_flight > self._engine_threads

    def is_busier(self) -> bool:
        """See above."""
        return is_busier(self.in_flight, self._others(), self._engine_threads)

    def may_accept_another(self, accepted: int) -> bool:
        """Whether no sibling has less to do; the heads of those that were just accepted may be still to come."""
        return self.in_flight + accepted <= min(self._others(), default=sys.maxsize)

    def _others(self) -> Iterable[int]:
        return self._table.requests_in_flight(besides=self._slot_number)
