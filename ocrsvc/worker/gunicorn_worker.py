"""The gunicorn worker class: watches its own limits, asks for a successor, and drains.

A watching thread reads memory, requests and stuck threads ten times a second. Once there is a reason, the worker writes
it to its entry in the worker table and wakes the arbiter; it serves on until its successor is READY, and drains then.
At a hard limit, with all engine threads stuck, or when the arbiter says so, it drains at once. Another thread ends it
when the arbiter is gone.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from ocrsvc.system.allocator import give_back
from ocrsvc.system.gpu import GpuMemoryReader, Siblings
from ocrsvc.system.memory import read_rss_bytes
from ocrsvc.telemetry.worker_limits import Limits, MemoryTrend, Readings, Reason, Usage, retire
from ocrsvc.telemetry.worker_table import NOBODY, Granted, State
from ocrsvc.worker.accept_yield import FairThreadWorker

CHECK_S: Final = 0.1
# The arbiter looks by itself every second; the poke only makes it look now.
_POKE_S: Final = 1.0
# Together well below the 5 s in which everything is gone after the arbiter is.
_PARENT_CHECK_S: Final = 0.5
_ORPHAN_S: Final = 2.5
# Before the arbiter, which gives a stopping service just the graceful timeout, ends it by force.
_STACKS_SHARE: Final = 0.9
_STDERR: Final = 2
# Memory beyond that of a warm worker is looked after so often, from so much on, while requests hold so little.
_GIVE_BACK_S: Final = 10.0
_GROWN_BYTES: Final = 48 << 20
_FREE: Final = 0.1
# Between two heartbeats, while a companion finishes; and after an error of the watch.
_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Watched:
    """What a worker watches over itself.

    Attributes:
        limits: Without max_requests, which gunicorn has drawn for this worker.
        rss_bytes, gpu_bytes: What it holds after its warm-up.
        boot_s: How long it took from the fork until it was ready, less what it waited for others.
        gauge: Reads the card; None without one.
        stuck_threads: How many engine threads will not come back.
    """

    limits: Limits
    rss_bytes: int
    gpu_bytes: int = 0
    boot_s: float = 0.0
    gauge: GpuMemoryReader | None = None
    stuck_threads: Callable[[], int] = int


class Companion(Protocol):
    """What serves beside gunicorn's loop in the same worker, and leaves with it."""

    def drain(self) -> None:
        """Take nothing new, and finish what is here. Runs in a signal's handler too."""

    def wait(self, timeout_s: float) -> bool:
        """Wait at most so long until it is finished; whether it is."""
        ...


class RecyclingWorker(FairThreadWorker):
    """The worker of this service; its boot in boot.py gives it its slot, and call `watch` when it is READY.

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
        self._gave_back_s = 0.0
        self.companion: Companion | None = None

    def init_signals(self) -> None:
        """SIGUSR2 to a worker is the operator's request to replace it."""
        super().init_signals()
        signal.signal(signal.SIGUSR2, self._want_by_signal)

    def run(self) -> None:
        """Serve until told to stop, and until the companion has finished too."""
        super().run()
        end_s = (self.slot.drained_s or time.monotonic()) + self.cfg.graceful_timeout
        if self.companion is not None:
            self.companion.drain()
            while time.monotonic() < end_s and not self.companion.wait(_WAIT_S):
                self.notify()

    def handle_exit(self, sig: int, frame: object) -> None:
        """SIGTERM: stop accepting, answer what is there, end."""
        self._note_drain()
        super().handle_exit(sig, frame)

    def guard(self) -> None:
        """Start to watch over the arbiter; from the fork on, so that a worker that loads does not outlive it either."""
        threading.Thread(target=self._outlive_nobody, name="orphan", daemon=True).start()

    def siblings(self) -> Siblings:
        """The other workers' memory of the card, from the scoreboard."""
        return Siblings(*self.board.card(self.place)) if self.board is not None else Siblings()

    def watch(self, watched: Watched) -> None:
        """Start to watch over this worker, from when it is READY until it drains."""
        watched = replace(watched, limits=replace(watched.limits, max_requests=self._most_requests))
        threading.Thread(target=self._keep_watching, args=(watched,), name="retirement", daemon=True).start()

    def _outlive_nobody(self) -> None:
        while os.getppid() == self.ppid:
            time.sleep(_PARENT_CHECK_S)
        self.log.error("The arbiter is gone: this worker ends within %.1f s.", _ORPHAN_S)
        end_s = time.monotonic() + _ORPHAN_S
        while self._in_flight and time.monotonic() < end_s:
            time.sleep(CHECK_S)
        # Nobody is left who could kill a worker whose engine never comes back.
        os._exit(1)

    def _keep_watching(self, watched: Watched) -> None:
        """Nobody would replace a worker whose watch has ended by an error."""
        while self.slot.state == State.BOOTING:
            time.sleep(CHECK_S)
        while self.slot.state == State.READY:
            try:
                self._watch(watched)
            except Exception:
                self.log.exception("The watch over this worker begins again")
                time.sleep(_WAIT_S)

    def _watch(self, watched: Watched) -> None:
        rss, gpu = MemoryTrend(watched.rss_bytes), MemoryTrend(watched.gpu_bytes)
        slot, poked_s, stuck = self.slot, 0.0, 0
        while slot.state == State.READY:
            now_s = time.monotonic()
            # Without a descriptor for it there is no reading.
            slot.requests, slot.rss_bytes = self.nr, read_rss_bytes() or slot.rss_bytes
            readings = Readings(
                requests=slot.requests,
                age_s=now_s - slot.ready_s,
                # A successor takes as long as this one took, and its turn may come after everybody else's.
                notice_s=(1 + self.cfg.workers) * watched.boot_s,
                rss=rss.add(now_s, slot.rss_bytes),
                gpu=self._read_card(watched.gauge, gpu, now_s),
            )
            self._want(retire(readings, watched.limits))
            stuck = self._note_stuck(watched.stuck_threads(), stuck)
            poked_s = self._ask_again(now_s, poked_s)
            self._give_back_memory(now_s, slot.rss_bytes - watched.rss_bytes)
            if self._must_drain(stuck):
                self._drain()
            time.sleep(CHECK_S)

    def _give_back_memory(self, now_s: float, grown_bytes: int) -> None:
        """After large requests: what is free goes back to the system, also where small ones never stop coming."""
        memory = self.limits.memory
        is_due = now_s - self._gave_back_s >= _GIVE_BACK_S and grown_bytes > _GROWN_BYTES
        if is_due and memory.held_bytes < _FREE * memory.total_bytes:
            self._gave_back_s = now_s
            give_back()

    def _ask_again(self, now_s: float, poked_s: float) -> float:
        """Wake the arbiter for a wish that it has not granted; when that was done last (0 is never)."""
        if not self.slot.reason or self.slot.granted or now_s - poked_s <= _POKE_S:
            return poked_s
        if not poked_s:
            self._tell_wish()
        self._poke()
        return now_s

    def _read_card(self, gauge: GpuMemoryReader | None, trend: MemoryTrend, now_s: float) -> Usage:
        """How much of the card this worker holds, told to the arbiter too; nothing without a reading."""
        slot = self.slot
        reading = gauge.read(self.siblings()) if gauge is not None else None
        if reading is None:
            slot.card_read_s = 0.0
            return Usage()
        usage = trend.add(now_s, reading.own_bytes)
        slot.gpu_bytes, slot.gpu_leap_bytes = reading.own_bytes, usage.leap_bytes
        slot.card_free_bytes, slot.card_read_s = reading.free_bytes, now_s
        return usage

    def _note_stuck(self, stuck: int, before: int) -> int:
        """Want a successor for stuck engine threads, and print where they are when there are more than before."""
        if stuck > before:
            self._want(Reason.STUCK)
            self.log.error(
                "STUCK: %s of %s engine threads have not come back from work that should have been answered long ago. "
                "This worker is replaced; the stacks of its threads follow.",
                *(stuck, self.engine_threads),
            )
            faulthandler.dump_traceback(file=_STDERR)
        return stuck

    def _must_drain(self, stuck: int) -> bool:
        slot = self.slot
        urgent = Reason(slot.reason).is_urgent or stuck >= self.engine_threads
        return urgent or slot.granted == Granted.DRAIN_FIRST or self._has_successor()

    def _want(self, reason: Reason) -> None:
        """Say why this worker should go; the first reason stands, but for one that presses more."""
        slot = self.slot
        if reason.pressure > Reason(slot.reason).pressure:
            slot.wanted_s = slot.wanted_s or time.monotonic()
            slot.reason = reason

    def _want_by_signal(self, _signal: int, _frame: object) -> None:
        self._want(Reason.OPERATOR)

    def _tell_wish(self) -> None:
        slot = self.slot
        self.log.info(
            "WANTS a successor: %s, requests=%s rss_bytes=%s gpu_bytes=%s",
            *(Reason(slot.reason).name.lower(), slot.requests, slot.rss_bytes, slot.gpu_bytes),
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
            and self.slot.granted == Granted.SUCCESSOR
            and successor != NOBODY
            and self.board.slot(successor).state == State.READY
        )

    def _drain(self) -> None:
        """Stop as at SIGTERM: accept nothing, answer what was sent, part politely, end."""
        self.log.info("DRAINING: in_flight=%s connections=%s", self.slot.in_flight, self.nr_conns)
        self.alive = False
        self._note_drain()
        self.method_queue.defer(lambda: None)

    def _note_drain(self) -> None:
        """Tell the board, once, and have the stacks printed should it take too long. Safe in a signal's handler."""
        if not self._draining.acquire(blocking=False):
            return
        slot = self.slot
        slot.drained_s, slot.state = time.monotonic(), State.DRAINING
        if self.companion is not None:
            self.companion.drain()
        # It starts a thread, which may be refused.
        with suppress(RuntimeError):
            faulthandler.dump_traceback_later(max(_STACKS_SHARE * self.cfg.graceful_timeout, 0.1), file=_STDERR)
