"""The arbiter's side of the worker table: forks, replaces and kills workers. All of it runs in its main thread.

gunicorn keeps `num_workers` processes alive. Everything here only ever sets that number to what the worker table says
(the base, and one for a granted successor), so that no signal that comes twice, or never, or from somebody else can
make it drift. It is never lowered before the worker that was replaced is reaped: gunicorn would end the oldest one.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gunicorn.errors import HaltServer

from ocrsvc.system.gpu_devices import least_loaded_gpu
from ocrsvc.telemetry.worker_limits import Reason
from ocrsvc.telemetry.worker_table import NOBODY, Granted, Snapshot, State, WorkerEntry, WorkerTable
from ocrsvc.worker.replacement_policy import (
    BOOT_ERROR,
    LONGEST_BACKOFF_S,
    Grant,
    Times,
    backoff_s,
    next_grant,
    wanted_workers,
)

# Beyond the graceful timeout: gunicorn's own loop ends there, and the engine is closed after it.
_KILL_AFTER_S: Final = 5.0
# How often a worker may die before any was ever ready.
_BOOT_TRIES: Final = 3
# While nobody serves, a try costs less than the wait.
_ALONE_BACKOFF_S: Final = 4.0
_HELD_BACK: Final = ("workers", "graceful_timeout")


class Arbiter(Protocol):
    """gunicorn's arbiter, as far as it is used here."""

    cfg: Any
    log: logging.Logger
    num_workers: int
    WORKERS: dict[int, Any]

    def kill_worker(self, pid: int, sig: int) -> None:
        """Send a signal to a worker."""


class Heartbeat:
    """When a worker was last alive, in its slot; instead of the file that gunicorn asks for the same.

    A file is born with the wall clock's time and compared with the monotonic clock, and cannot be touched on a disk
    that has become read-only.
    """

    def __init__(self, slot: WorkerEntry, worker: Any, clock: Callable[[], float]) -> None:
        self._slot, self._worker, self._clock = slot, worker, clock

    def last_update(self) -> float:
        """Arbiter: when the worker was last alive, monotonic seconds."""
        return self._slot.alive_s

    def notify(self) -> None:
        """Worker: alive now."""
        self._slot.alive_s = self._clock()

    def fileno(self) -> int:
        """A descriptor that gunicorn closes on exec; there is no file, and the listener is closed then anyway."""
        return int(self._worker.sockets[0].fileno())

    def close(self) -> None:
        """Nothing is open."""


class ReplacementController:
    """The arbiter's decisions, over one board. Made once; survives each reload of the configuration."""

    def __init__(self, board: WorkerTable, clock: Callable[[], float] = time.monotonic) -> None:
        self.board = board
        self._clock = clock
        self._held_back: dict[str, object] = {}
        self._ended = False
        # All that were ever used, so that a number means the same card after a reload with others.
        self._cards: list[str] = []

    def count_changed(self, arbiter: Arbiter, count: int, before: int | None) -> None:
        """gunicorn wants another number of workers: at the start that is the base, later it is put right again."""
        if before is None:
            self.board.head.base = count
        else:
            self._set_count(arbiter)

    def before_fork(self, worker: Any, cards: Sequence[str] = (), boot_limit_s: float = 0.0) -> None:
        """Give the new worker its slot, and one of the cards; if somebody was granted a successor, this is it.

        Until its first heartbeat a worker may take `boot_limit_s` and gunicorn's timeout to import the application.
        """
        worker.board, worker.place = self.board, self.board.take(self._clock())
        slot = self.board.slot(worker.place)
        slot.alive_s = self._clock() + boot_limit_s
        slot.card = self._card_for(worker.place, cards)
        worker.tmp.close()
        worker.tmp = Heartbeat(slot, worker, self._clock)
        for standing in self.board.live():
            if standing.granted is Granted.SUCCESSOR and standing.successor == NOBODY and standing.state is State.READY:
                self.board.slot(standing.slot).successor = worker.place
                return

    def is_backing_off(self) -> bool:
        """Whether it is too early for another worker: the last ones died before they were ready, or were refused.

        After too many of them those that still load decide whether the service ends, which others would only put off.
        """
        return self._is_hopeless() or self._clock() < self.board.head.backoff_until_s

    def fork_refused(self, arbiter: Arbiter, error: Exception) -> None:
        """A worker could not be forked: nobody waits for it any more, and the next try is later."""
        self._forget_missing(arbiter)
        wait_s = self._back_off()
        arbiter.log.error(
            "No worker can be started: %s: %s. The next try is in %.0f s; the workers that serve go on.",
            *(type(error).__name__, error, wait_s),
        )
        self._set_count(arbiter)
        self._give_up_if_hopeless()

    def card_name(self, card: int) -> str:
        """The card that a slot's number means, as CUDA_VISIBLE_DEVICES accepts it."""
        return self._cards[card]

    def _card_for(self, place: int, cards: Sequence[str]) -> int:
        """The card with the fewest workers that stay: whoever is to be replaced leaves room for its successor."""
        if not cards:
            return 0
        self._cards += [card for card in cards if card not in self._cards]
        leaving = (State.DRAINING,)
        staying = [worker for worker in self.board.live() if not worker.granted and worker.state not in leaving]
        names = [self._cards[worker.card] for worker in staying if worker.slot != place]
        busy = [cards.index(name) for name in names if name in cards]
        return self._cards.index(cards[least_loaded_gpu(busy, len(cards))])

    def in_worker(self, worker: Any) -> None:
        """Worker, after its fork: its own process id, and the configuration that a reload may have held back."""
        self.give_back(worker.cfg)
        self.board.slot(worker.place).pid = os.getpid()

    def look(self, arbiter: Arbiter) -> None:
        """On each turn of the arbiter's loop: grant, count, and end who drains for too long. Idempotent."""
        self.give_back(arbiter.cfg)
        self._forget_missing(arbiter)
        self._shorten_back_off()
        self._give_up_if_hopeless()
        head, workers = self.board.head, self.board.live()
        times = Times(self._clock(), head.backoff_until_s, head.exited_s)
        if grant := next_grant(head.base, workers, times, head.gpu_footprint_bytes):
            self._grant(arbiter, grant)
        self._set_count(arbiter)
        for standing in workers:
            self._end_if_stuck(arbiter, standing)

    def after_exit(self, arbiter: Arbiter, worker: Any) -> None:
        """A worker was reaped: free its slot, and take back the grant if it was a successor that never served."""
        slot = self.board.slot(worker.place)
        if slot.state == State.BOOTING:
            self._note_failed_boot(arbiter, worker)
        elif slot.reason and slot.state == State.DRAINING:
            self.board.head.recycles[slot.reason] += 1
            arbiter.log.info(
                "RECYCLED worker %s: %s, requests=%s rss_bytes=%s gpu_bytes=%s drained in %.1f s",
                *(worker.pid, Reason(slot.reason).name.lower(), slot.requests, slot.rss_bytes, slot.gpu_bytes),
                self._clock() - slot.drained_s,
            )
        self.board.free(worker.place)
        self.board.head.exited_s = self._clock()
        self._release(worker.place)
        self._set_count(arbiter)
        self._shorten_back_off()
        self._give_up_if_hopeless()

    def reload(self, arbiter: Arbiter) -> None:
        """SIGHUP: every worker wants a successor, one after the other.

        gunicorn goes on to fork `cfg.workers` new workers at once, to end the old ones before those have loaded, and to
        wait for them up to `graceful_timeout`. Both are 0 until the next look, which follows before anything is forked.
        """
        self.board.head.base = arbiter.cfg.workers
        # Another engine may be larger or smaller: the first that is ready tells.
        self.board.head.gpu_footprint_bytes = 0
        self._held_back = {name: getattr(arbiter.cfg, name) for name in _HELD_BACK}
        for name in _HELD_BACK:
            arbiter.cfg.set(name, 0)
        for standing in self.board.live():
            slot = self.board.slot(standing.slot)
            if standing.state is not State.DRAINING and not slot.reason:
                slot.wanted_s, slot.reason = self._clock(), Reason.RELOAD

    def _grant(self, arbiter: Arbiter, grant: Grant) -> None:
        head, worker, reason = self.board.head, grant.worker, grant.worker.reason.name.lower()
        self.board.slot(worker.slot).granted = grant.kind
        if grant.kind is Granted.SUCCESSOR:
            arbiter.log.info("Worker %s gets a successor: %s", worker.pid, reason)
            return
        head.drain_first += 1
        alone = (
            "it is the only one, so requests wait as long as the load takes" if head.base == 1 else "others serve on"
        )
        arbiter.log.warning(
            "Worker %s is to DRAIN FIRST: %s. A second model (%s bytes and the largest leap) does not fit beside it on "
            "the card, which has %s free; its successor loads after it is gone; %s.",
            *(worker.pid, reason, head.gpu_footprint_bytes, worker.card_free_bytes, alone),
        )

    def _set_count(self, arbiter: Arbiter) -> None:
        count = wanted_workers(self.board.head.base, self.board.live())
        if arbiter.num_workers != count:
            arbiter.num_workers = count

    def give_back(self, cfg: Any) -> None:
        """Put back what `reload` has held back."""
        while self._held_back:
            cfg.set(*self._held_back.popitem())

    def forgive(self) -> None:
        """Nobody was able to answer for a while, the arbiter itself included: the heartbeats count from now."""
        for standing in self.board.live():
            slot = self.board.slot(standing.slot)
            slot.alive_s = max(slot.alive_s, self._clock())

    def stop(self, cfg: Any) -> None:
        """The service ends: whether any worker ever worked does not matter any more."""
        self._ended = True
        self.give_back(cfg)

    def _back_off(self) -> float:
        """One more worker that was never ready; seconds until the next may be tried."""
        head = self.board.head
        head.boot_failures += 1
        wait_s = min(backoff_s(head.boot_failures), self._longest_back_off_s())
        head.backoff_until_s = self._clock() + wait_s
        return wait_s

    def _shorten_back_off(self) -> None:
        """Whoever served when the wait began may have gone since."""
        head = self.board.head
        head.backoff_until_s = min(head.backoff_until_s, self._clock() + self._longest_back_off_s())

    def _longest_back_off_s(self) -> float:
        serves = any(worker.state is State.READY for worker in self.board.live())
        return LONGEST_BACKOFF_S if serves else _ALONE_BACKOFF_S

    def _forget_missing(self, arbiter: Arbiter) -> None:
        """Free the slots of workers that were never forked, or of which nobody was told that they ended."""
        places = {worker.place for worker in arbiter.WORKERS.values()}
        for standing in self.board.live():
            if standing.slot not in places:
                self.board.free(standing.slot)
                self._release(standing.slot)

    def _note_failed_boot(self, arbiter: Arbiter, worker: Any) -> None:
        wait_s = self._back_off()
        arbiter.log.error(
            "Worker %s died before it was ready, as did the %s before it; the next one loads in %.0f s. "
            "The workers that serve go on. Its own lines above say why.",
            *(worker.pid, self.board.head.boot_failures - 1, wait_s),
        )

    def _is_hopeless(self) -> bool:
        """Whether nothing ever worked, and it was tried often enough."""
        head = self.board.head
        return not head.ever_ready and bool(head.unusable or head.boot_failures >= _BOOT_TRIES)

    def _give_up_if_hopeless(self) -> None:
        """Raises HaltServer, which ends the service, when nothing ever worked; once, for it reaps the others too."""
        head = self.board.head
        # One that still loads may yet serve.
        loads = any(worker.state is State.BOOTING for worker in self.board.live())
        if self._ended or loads or not self._is_hopeless():
            return
        self._ended = True
        told = "The engine cannot be opened, and no worker was ever ready; its own lines above say why."
        if not head.unusable:
            told = f"{head.boot_failures} workers could not start, and none was ever ready; the lines above say why."
        raise HaltServer(told, BOOT_ERROR)

    def _release(self, gone: int) -> None:
        """Whoever waited for this successor serves on, and asks again."""
        for standing in self.board.live():
            if standing.successor == gone and standing.state is State.READY:
                slot = self.board.slot(standing.slot)
                slot.successor, slot.granted = NOBODY, Granted.NOTHING

    def _end_if_stuck(self, arbiter: Arbiter, standing: Snapshot) -> None:
        limit_s = arbiter.cfg.graceful_timeout + _KILL_AFTER_S
        if standing.state is not State.DRAINING or self._clock() - standing.drained_s <= limit_s:
            return
        if standing.pid in arbiter.WORKERS:
            arbiter.log.error("Worker %s drains for more than %.0f s; it is killed.", standing.pid, limit_s)
            arbiter.kill_worker(standing.pid, signal.SIGKILL)
