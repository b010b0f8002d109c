"""How busy this worker is, in the worker table, and whether a sibling should take what comes instead."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

from ocrsvc.telemetry.worker_table import WorkerTable


def is_busier(own: int, others: Iterable[int], engine_threads: int) -> bool:
    """Whether a worker has requests that wait for its engine while a sibling has clearly fewer in flight.

    `own` are its requests in flight, `others` those of each sibling that accepts.
    """
    return own > engine_threads and own - min(others, default=own) >= max(2, own // 8)


class LoadSharing:
    """The requests in flight of one worker among its siblings; for any thread.

    Attributes:
        in_threads: Those that the threads of requests have, or that wait for one.
    """

    def __init__(self, table: WorkerTable, slot_number: int, engine_threads: int) -> None:
        self._table, self._slot_number, self._engine_threads = table, slot_number, engine_threads
        self.in_threads = self._beside = 0
        self._counting = threading.Lock()

    def count(self, change: int) -> None:
        """Requests come to the threads, or are answered."""
        with self._counting:
            self.in_threads += change
            self._note()

    def count_beside(self, change: int) -> None:
        """Requests that take the engine, but none of the threads here, begin or are over."""
        with self._counting:
            self._beside += change
            self._note()

    @property
    def in_flight(self) -> int:
        """All of them."""
        return self.in_threads + self._beside

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

    def _note(self) -> None:
        self._table.entry(self._slot_number).in_flight = self.in_flight
