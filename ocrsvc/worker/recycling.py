"""How does a worker end its own life in time? The worker class: it watches itself, wants, and drains.

A watching thread reads memory and requests ten times a second. Once `retire` names a reason, the worker says so in its
slot and wakes the arbiter; it serves on until its successor is READY, and drains then. At the hard limit it drains at
once.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections import deque
from typing import Any, Final, Protocol

from ocrsvc.worker.memory import read_rss_bytes
from ocrsvc.worker.retire import Limits, Readings, Reason, retire
from ocrsvc.worker.scoreboard import NOBODY, State
from ocrsvc.worker.succession import BOOT_FAILED
from ocrsvc.worker.threads import FairThreadWorker

CHECK_S: Final = 0.1
# The arbiter looks by itself every second; the poke only makes it look now.
_POKE_S: Final = 1.0
# Long enough to see a trend in a few large images, short enough to see a leak that has just begun.
_TREND_S: Final = 5.0
# Before the arbiter, which gives a stopping service just the graceful timeout, ends it by force.
_STACKS_SHARE: Final = 0.9
_STDERR: Final = 2
# Between two heartbeats, while a companion finishes.
_WAIT_S: Final = 1.0


class MemoryTrend:
    """How the resident memory grew lately. Samples of the last five seconds; fed by one thread."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self.leap_bytes = 0

    def add(self, now_s: float, rss_bytes: int) -> None:
        """One more sample; times never go back."""
        if self._samples:
            self.leap_bytes = max(self.leap_bytes, rss_bytes - self._samples[-1][1])
        self._samples.append((now_s, rss_bytes))
        while now_s - self._samples[0][0] > _TREND_S:
            self._samples.popleft()

    @property
    def growth_bytes_per_s(self) -> float:
        """Over the samples that are kept; 0 while they span less than a second."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s - first_s >= 1.0 else 0.0


class Companion(Protocol):
    """What serves beside gunicorn's loop in the same worker, and leaves with it."""

    def leave(self) -> None:
        """Take nothing new, and finish what is here. Runs in a signal's handler too."""

    def wait(self, timeout_s: float) -> bool:
        """Wait at most so long until it is finished; whether it is."""
        ...


class RecyclingWorker(FairThreadWorker):
    """The worker of this service; its hooks in lifecycle.py give it its slot, and call `watch` when it is READY.

    Attributes:
        companion: Leaves when this worker drains; the worker lives on until it is finished, or the time is over.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # With its random part. gunicorn itself would stop at this number, without a successor.
        drawn: int = self.max_requests
        self._most_requests = 0 if drawn == sys.maxsize else drawn
        self.max_requests: int = sys.maxsize
        self._draining = threading.Lock()
        self.companion: Companion | None = None

    def init_signals(self) -> None:
        """SIGUSR2 to a worker is the operator's request to replace it."""
        super().init_signals()
        signal.signal(signal.SIGUSR2, self._want_by_signal)

    def load_wsgi(self) -> None:
        """Import the application; new code that fails must not end the workers that serve the old one."""
        try:
            super().load_wsgi()
        except Exception:
            if self.board is None or not self.board.head.ever_ready:
                raise
            self.log.exception("The application cannot be imported")
            sys.exit(BOOT_FAILED)

    def run(self) -> None:
        """Serve until told to stop, and until the companion has finished too."""
        super().run()
        end_s = (self.slot.drained_s or time.monotonic()) + self.cfg.graceful_timeout
        if self.companion is not None:
            self.companion.leave()
            while time.monotonic() < end_s and not self.companion.wait(_WAIT_S):
                self.notify()

    def handle_exit(self, sig: int, frame: object) -> None:
        """SIGTERM: stop accepting, answer what is there, end."""
        self._note_drain()
        super().handle_exit(sig, frame)

    def watch(self, limits: Limits, footprint_bytes: int) -> None:
        """Start to watch over this worker, until it drains.

        Args:
            limits: Without max_requests, which gunicorn has drawn for this worker.
            footprint_bytes: Resident memory after warm-up.
        """
        limits = Limits(self._most_requests, limits.max_age_s, limits.rss_soft_bytes, limits.rss_hard_bytes)
        threading.Thread(target=self._watch, args=(limits, footprint_bytes), name="retirement", daemon=True).start()

    def _watch(self, limits: Limits, footprint_bytes: int) -> None:
        trend, slot, poked_s = MemoryTrend(), self.slot, 0.0
        while slot.state == State.READY:
            now_s = time.monotonic()
            slot.requests, slot.rss_bytes = self.nr, read_rss_bytes()
            trend.add(now_s, slot.rss_bytes)
            self._want(retire(self._readings(trend, footprint_bytes, now_s), limits))
            if slot.reason and not slot.granted and now_s - poked_s > _POKE_S:
                if not poked_s:
                    self._tell_wish()
                poked_s = now_s
                self._poke()
            if slot.reason == Reason.RSS_HARD or self._has_successor():
                self._drain()
            time.sleep(CHECK_S)

    def _readings(self, trend: MemoryTrend, footprint_bytes: int, now_s: float) -> Readings:
        slot = self.slot
        return Readings(
            requests=slot.requests,
            age_s=now_s - slot.ready_s,
            rss_bytes=slot.rss_bytes,
            footprint_bytes=footprint_bytes,
            leap_bytes=trend.leap_bytes,
            growth_bytes_per_s=trend.growth_bytes_per_s,
            # A successor takes as long as this one took, and its turn may come after another's.
            notice_s=2 * (slot.ready_s - slot.forked_s),
        )

    def _want(self, reason: Reason) -> None:
        """Say why this worker should go; the first reason stands, but for the hard limit."""
        slot = self.slot
        if reason is Reason.NONE or (slot.reason and reason is not Reason.RSS_HARD):
            return
        slot.wanted_s = slot.wanted_s or time.monotonic()
        slot.reason = reason

    def _want_by_signal(self, _signal: int, _frame: object) -> None:
        self._want(Reason.OPERATOR)

    def _tell_wish(self) -> None:
        slot = self.slot
        self.log.info(
            "WANTS a successor: %s, requests=%s rss_bytes=%s",
            *(Reason(slot.reason).name.lower(), slot.requests, slot.rss_bytes),
        )

    def _poke(self) -> None:
        """Wake the arbiter's loop; SIGCHLD makes it look for dead children, and changes nothing when there are none."""
        try:
            os.kill(self.ppid, signal.SIGCHLD)
        except OSError:
            # Another user's process, or gone: the arbiter looks by itself soon, or this worker notices the latter.
            return

    def _has_successor(self) -> bool:
        successor = self.slot.successor
        return (
            self.board is not None
            and bool(self.slot.granted)
            and successor != NOBODY
            and self.board.slot(successor).state == State.READY
        )

    def _drain(self) -> None:
        """Stop as at SIGTERM: accept nothing, answer what was sent, part politely, end."""
        self.log.info("DRAINING: in_flight=%s connections=%s", self.slot.in_flight, self.nr_conns)
        self._note_drain()
        self.alive = False
        self.method_queue.defer(lambda: None)

    def _note_drain(self) -> None:
        """Tell the board, once, and have the stacks printed should it take too long. Safe in a signal's handler."""
        if not self._draining.acquire(blocking=False):
            return
        slot = self.slot
        slot.drained_s, slot.state = time.monotonic(), State.DRAINING
        if self.companion is not None:
            self.companion.leave()
        faulthandler.dump_traceback_later(max(_STACKS_SHARE * self.cfg.graceful_timeout, 0.1), file=_STDERR)
