"""Finds the request that stopped a worker, when the arbiter kills the worker or finds it dead.

Just before gunicorn kills a worker without a heartbeat, the CPU time of its threads that have a request on record is
read: the one that keeps the interpreter computes, and its request's body is refused from then on. A worker that died by
itself proves less: a body is refused when two died while no other body was being worked on.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ocrsvc.serving.crash_denylist import CRASHES, CrashDenylist
from ocrsvc.serving.request_guard import InFlight, InFlightTable

CPU_SHARE: Final = 0.1
"""Share of the timeout: CPU time from which a thread may have kept the others waiting."""

_TIE: Final = 0.5
_MOST_LOGGED: Final = 10
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_UTIME: Final = 11
"""Place of the user time among the fields that follow the command in /proc/PID/task/TID/stat; system time is next."""
_ENDS: Final = (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGKILL)
_GUESS: Final = " Perhaps out of memory?"


class HungRequests:
    """Which workers the arbiter has killed, and for which request. All of it runs in the arbiter's main thread."""

    def __init__(self, table: InFlightTable, denylist: CrashDenylist, log: logging.Logger) -> None:
        self._table, self._denylist, self._log = table, denylist, log
        self._killed: set[int] = set()
        self._asked_to_end: set[int] = set()

    def note_signal(self, pid: int, worker: int, sig: int, timeout_s: float) -> None:
        """A worker is about to get a signal; gunicorn sends SIGABRT only to one that gives no heartbeat."""
        if sig == signal.SIGABRT:
            self.note_kill(pid, worker, timeout_s)
        elif sig in _ENDS:
            self._asked_to_end.add(pid)

    def note_kill(self, pid: int, worker: int, timeout_s: float) -> None:
        """A worker is about to be killed because it gives no heartbeat: look at its threads while they are there."""
        self._killed.add(pid)
        in_flight = self._table.read(worker)
        used_s = [cpu_s_of(pid, request.thread) - request.cpu_s for request in in_flight]
        guilty = blamed(in_flight, used_s, timeout_s)
        if not guilty:
            self._log.error("HELD worker %s: no request of it computed while it did not answer.", pid)
        for request in guilty:
            self._log.error("HELD worker %s, which is killed now: %s", pid, _described(request))
        # Before the signal: a proxy asks the next worker as soon as the connection breaks.
        self._deny_if_alone(guilty, CRASHES, "held a worker")
        self._log_lost(pid, [request for request in in_flight if request not in guilty])

    def note_exit(self, pid: int, worker: int, *, expected: bool) -> None:
        """A worker has ended; `expected` is one that had not begun to serve."""
        is_known = expected or pid in self._killed or pid in self._asked_to_end
        self._killed.discard(pid)
        self._asked_to_end.discard(pid)
        if is_known or not (in_flight := self._table.read(worker)):
            return
        self._log.error("DIED worker %s, with %s requests on record.", pid, len(in_flight))
        self._log_lost(pid, in_flight)
        self._deny_if_alone([request for request in in_flight if request.stage.is_risky], 1, "worker died")

    def without_guess(self, record: logging.LogRecord) -> bool:
        """A logging filter: a worker that was killed on purpose did not run out of memory."""
        if isinstance(record.msg, str) and record.msg.endswith(_GUESS) and isinstance(record.args, tuple):
            pid, fact = record.args[0], record.msg.removesuffix(_GUESS)
            if pid in self._killed:
                record.msg = f"{fact} It did not answer its heartbeat."
            elif pid in self._asked_to_end:
                record.msg = f"{fact} It did not end when it was told to."
        return True

    def _deny_if_alone(self, at_work: Sequence[InFlight], crashes: int, cause: str) -> None:
        """Count crashes against the body that was worked on; against none of several, since only one is to blame."""
        if len({request.digest for request in at_work}) != 1 or not at_work[0].digest:
            return
        request = at_work[0]
        before = self._denylist.crashes(request.digest)
        self._denylist.note(request.digest, before + crashes, cause)
        if before < CRASHES <= before + crashes:
            self._log.error(
                "DENIED: requests whose body has the hash %s are answered 422 for a while; "
                "DELETE /ops/quarantine/HASH ends that.",
                request.digest.hex(),
            )

    def _log_lost(self, pid: int, in_flight: Sequence[InFlight]) -> None:
        for request in in_flight[:_MOST_LOGGED]:
            self._log.error("LOST with worker %s: %s", pid, _described(request))
        if len(in_flight) > _MOST_LOGGED:
            self._log.error("LOST with worker %s: %s requests more.", pid, len(in_flight) - _MOST_LOGGED)


def blamed(in_flight: Sequence[InFlight], used_s: Sequence[float], timeout_s: float) -> list[InFlight]:
    """The requests whose threads computed meanwhile, most often one; `used_s` are their CPU seconds so far."""
    least_s = max(CPU_SHARE * timeout_s, _TIE * max(used_s, default=0.0))
    pairs = zip(in_flight, used_s, strict=True)
    return [request for request, cpu_s in pairs if request.stage.is_risky and cpu_s >= least_s]


def cpu_s_of(pid: int, thread: int) -> float:
    """CPU seconds that a thread of another process has used; 0 when that is not known."""
    try:
        fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[_UTIME : _UTIME + 2])) / _TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return 0.0


def _described(request: InFlight) -> str:
    digest = request.digest.hex() or "-"
    return (
        f"id={request.id} route={request.route} bytes={request.size} hash={digest} stage={request.stage.name.lower()}"
    )
