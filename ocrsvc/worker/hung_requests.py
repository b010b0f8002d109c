"""Finds the request that hung or killed a worker, and puts its body on the crash denylist.

Just before gunicorn kills a worker without a heartbeat, the arbiter reads the CPU time of its request threads: the
thread that holds the interpreter has used most, and its request's body is denied. A worker that crashes by itself
proves less: a body is denied after two such crashes in which it was the only body in a risky stage.
"""

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ocrsvc.serving.crash_denylist import CRASHES, CrashDenylist
from ocrsvc.serving.request_guard import InFlight, InFlightTable

# A thread whose CPU time is at least this share of the timeout is suspected of holding the interpreter.
CPU_SHARE: Final = 0.1
# A thread with less than this share of the busiest thread's CPU time is not suspected of holding the interpreter.
_TIE_SHARE: Final = 0.5
_MAX_LOGGED: Final = 10
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# Index of the user time among the fields after the command in /proc/PID/task/TID/stat; the system time follows.
_UTIME: Final = 11
_ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGKILL)
_GUESS: Final = " Perhaps out of memory?"


class HungRequests:
    """Finds the requests that made workers hang or crash. Runs in the arbiter's main thread."""

    def __init__(self, table: InFlightTable, denylist: CrashDenylist, log: logging.Logger) -> None:
        self._table, self._denylist, self._log = table, denylist, log
        # For workers that were sent a killing signal, by process id: the cause, for gunicorn's log line.
        self._signalled: dict[object, str] = {}

    def note_signal(self, pid: int, worker: int, sig: int, timeout_s: float) -> None:
        """Call before sending a worker a signal, while the CPU time of its threads can still be measured."""
        if sig in _ENDING_SIGNALS:
            self._signalled.setdefault(pid, " It did not end on a signal.")
        # gunicorn sends SIGABRT only for a missing heartbeat.
        if sig != signal.SIGABRT:
            return
        self._signalled[pid] = " It sent no heartbeat."
        in_flight = self._table.read(worker)
        used_s = [read_cpu_s(pid, request.thread) - request.cpu_s for request in in_flight]
        suspects = find_suspects(in_flight, used_s, timeout_s)
        if not suspects:
            self._log.error("HELD worker %s: none of its requests used the CPU while it sent no heartbeat.", pid)
        for request in suspects:
            self._log.error("HELD worker %s, which is killed now: %s", pid, _described(request))
        # Deny the body before the signal, because proxies resend a request to another worker if the connection breaks.
        self._deny_if_alone(suspects, CRASHES, "held a worker")
        self._log_lost(pid, [request for request in in_flight if request not in suspects])

    def note_exit(self, pid: int, worker: int, *, expected: bool) -> None:
        """Call after a worker has ended; `expected` if it ended before it served, so that no request is at fault."""
        is_known = self._signalled.pop(pid, None) is not None or expected
        if is_known or not (in_flight := self._table.read(worker)):
            return
        self._log.error("DIED worker %s, with %s requests in flight.", pid, len(in_flight))
        self._log_lost(pid, in_flight)
        self._deny_if_alone([request for request in in_flight if request.stage.is_risky], 1, "worker died")

    def replace_memory_guess(self, record: logging.LogRecord) -> bool:
        """Logging filter: if the arbiter killed the worker, replace gunicorn's guess "out of memory" by the cause."""
        if isinstance(record.msg, str) and record.msg.endswith(_GUESS) and isinstance(record.args, tuple):
            cause = self._signalled.get(record.args[0], _GUESS)
            record.msg = record.msg.removesuffix(_GUESS) + cause
        return True

    def _deny_if_alone(self, suspects: Sequence[InFlight], crashes: int, cause: str) -> None:
        """Count crashes for the suspects' body; with several bodies count none, since only one of them is at fault."""
        if len({request.digest for request in suspects}) != 1 or not suspects[0].digest:
            return
        request = suspects[0]
        before = self._denylist.crashes(request.digest)
        self._denylist.note(request.digest, before + crashes, cause)
        if before < CRASHES <= before + crashes:
            self._log.error(
                "DENIED: requests whose body has the hash %s are answered 422 for OCRSVC_CRASH_DENYLIST_S; "
                "DELETE /ops/denylist/HASH ends that.",
                request.digest.hex(),
            )

    def _log_lost(self, pid: int, in_flight: Sequence[InFlight]) -> None:
        for request in in_flight[:_MAX_LOGGED]:
            self._log.error("LOST with worker %s: %s", pid, _described(request))
        if len(in_flight) > _MAX_LOGGED:
            self._log.error("LOST with worker %s: %s more requests.", pid, len(in_flight) - _MAX_LOGGED)


def find_suspects(in_flight: Sequence[InFlight], used_s: Sequence[float], timeout_s: float) -> list[InFlight]:
    """Find the requests, usually one, whose threads used the most CPU time; `used_s` counts from a request's start."""
    min_s = max(CPU_SHARE * timeout_s, _TIE_SHARE * max(used_s, default=0.0))
    pairs = zip(in_flight, used_s, strict=True)
    return [request for request, cpu_s in pairs if request.stage.is_risky and cpu_s >= min_s]


def read_cpu_s(pid: int, thread: int) -> float:
    """CPU seconds that a thread of another process has used; 0 if unknown."""
    try:
        fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[_UTIME : _UTIME + 2])) / _TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return 0.0


def _described(request: InFlight) -> str:
    digest, stage = request.digest.hex() or "-", request.stage.name.lower()
    return f"id={request.id} route={request.route} bytes={request.size} hash={digest} stage={stage}"
