"""Shares the load with the other workers: which connections this worker accepts, and which it leaves to them.

What is not accepted stays in the kernel's queue, where any worker may take it.

Everything here runs on the loop's thread, except `balance` and `count_beside`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ocrsvc.worker.tls_connections import TlsWorker

if TYPE_CHECKING:
    from ocrsvc.telemetry.worker_table import WorkerEntry, WorkerTable

# Accepting fails for as long as descriptors are missing: tried again so often, logged so often.
_PAUSE_S: Final = 0.1
_LOG_INTERVAL_S: Final = 10.0
# How long new connections are left to an idle sibling; then they are accepted all the same.
_YIELD_S: Final = 0.02
# Of a crowd everybody is seen soon, whoever came last, and what was accepted before is not left alone for long.
_AT_ONCE: Final = 64


def is_busier(own: int, others: Iterable[int], engine_threads: int) -> bool:
    """Whether a worker has requests that wait for its engine while a sibling has clearly fewer in flight.

    Args:
        own: Its requests in flight.
        others: Those of each sibling that accepts.
        engine_threads: Requests that it can work on at once.
    """
    return own > engine_threads and own - min(others, default=own) >= max(2, own // 8)


class FairThreadWorker(TlsWorker):
    """A worker that shares the load with its siblings by the worker table.

    Attributes:
        worker_table, slot_number: The worker table, and the number of this worker's entry; set before the fork.
        engine_threads: Requests that the engine works on at once.
        takes_rest: Whether it takes what waits to be accepted when it stops: no sibling will.
    """

    worker_table: WorkerTable
    slot_number: int
    sockets: list[Any]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.engine_threads: int = self.cfg.threads
        self.takes_rest = False
        self._in_flight = 0
        self._beside = 0
        self._counting = threading.Lock()
        self._yield_end_s = 0.0
        self._quiet_until_s = 0.0

    @property
    def entry(self) -> WorkerEntry:
        """This worker's entry in the worker table."""
        return self.worker_table.entry(self.slot_number)

    def accept(self, listener: Any) -> None:
        """Take the connections that wait, or leave them; no more than one where a sibling has less to do."""
        for accepted in range(1, _AT_ONCE + 1):
            if (accepted > 1 and not self.alive) or self._begins_yield() or not self._accept_one(listener):
                return
            others = self.worker_table.requests_in_flight(besides=self.slot_number)
            # The heads of those that were just accepted may be still to come.
            if self._in_flight + self._beside + accepted > min(others, default=sys.maxsize):
                return

    def _accept_one(self, listener: Any) -> bool:
        """Whether there was one, and there may be more."""
        try:
            sock, client = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as error:
            self._pause_accepting(error)
            return False
        self.begin_connection(sock, client, listener.getsockname())
        return bool(self.nr_conns < self.worker_connections)

    def _cap_keepalive(self, deadline: float) -> None:
        """Stopping: what comes from now on is refused at once, instead of waiting for nobody."""
        listeners, self.sockets = self.sockets, []
        for listener in listeners:
            if self.takes_rest:
                self._accept_rest(listener)
            listener.close()
        super()._cap_keepalive(deadline)

    def _accept_rest(self, listener: Any) -> None:
        """The last that close a socket reset what is connected and was not accepted."""
        for _ in range(self.cfg.backlog):
            try:
                sock, client = listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:
                return
            self.begin_connection(sock, client, listener.getsockname())

    def _pause_accepting(self, error: OSError) -> None:
        """No descriptors, no memory: what waits stays in the kernel's queue for a moment, and the rest is served on."""
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_INTERVAL_S
            self.log.error("No connection can be accepted: %s. Raise the limit of open files (ulimit -n).", error)
        self._yield_end_s = now_s + _PAUSE_S
        self.set_accept_enabled(enabled=False)

    def set_accept_enabled(self, enabled: bool) -> None:  # noqa: FBT001  gunicorn's signature
        """Accept connections or leave them in the kernel's queue; the main loop asks for them again on each turn."""
        try:
            super().set_accept_enabled(enabled and time.monotonic() >= self._yield_end_s)
        except OSError as error:
            for listener in self.sockets:
                with suppress(KeyError, ValueError):
                    self.poller.unregister(listener)
            self._accepting = False
            self._pause_accepting(error)

    def enqueue_req(self, conn: Any) -> None:
        """Give a request that is whole to a thread."""
        self._count(1)
        super().enqueue_req(conn)

    def finish_request(self, conn: Any, done: Future[object]) -> None:
        """A thread has answered a request."""
        self._count(-1)
        super().finish_request(conn, done)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """As the loop's, but not longer than until connections are accepted again."""
        now_s = time.monotonic()
        if now_s < self._yield_end_s:
            timeout = min(timeout, self._yield_end_s - now_s)
        super().wait_for_and_dispatch_events(timeout=timeout)

    def balance(self, request: Any) -> None:
        """Pool thread, before a request: ask its client to connect anew when others wait, or a sibling has less to do.

        Kept connections stay with their worker for ever otherwise, however busy it is and however idle the next.
        """
        if self._in_flight + self._beside <= self.engine_threads:
            return
        # Connections that wait to be accepted, as far as the kernel reports them (Linux, TCP).
        waits = self._in_flight >= self.cfg.threads and any(listener.get_backlog() > 0 for listener in self.sockets)
        if waits or self._is_busier():
            request.force_close()

    def count_beside(self, change: int) -> None:
        """Any thread: requests that take the engine, but none of the threads here, begin or are over."""
        with self._counting:
            self._beside += change
            self.entry.in_flight = self._in_flight + self._beside

    def _count(self, change: int) -> None:
        with self._counting:
            self._in_flight += change
            self.entry.in_flight = self._in_flight + self._beside

    def _is_busier(self) -> bool:
        others = self.worker_table.requests_in_flight(besides=self.slot_number)
        return is_busier(self._in_flight + self._beside, others, self.engine_threads)

    def _begins_yield(self) -> bool:
        """Whether to leave what is there to a less busy sibling for a moment; never twice in a row: nobody starves."""
        now_s = time.monotonic()
        if now_s < self._yield_end_s + _YIELD_S or not self._is_busier():
            return False
        self._yield_end_s = now_s + _YIELD_S
        self.set_accept_enabled(enabled=False)
        return True
