"""The arbiter's side of the worker table: forks, replaces and kills workers. All of it runs in its main thread.

gunicorn keeps `num_workers` processes alive. That number is only ever set to what the worker table says, so that no
lost, doubled or foreign signal can make it drift; and not lowered before the worker that was replaced is reaped, for
gunicorn ends the oldest one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gunicorn.errors import HaltServer

from ocrsvc.telemetry.worker_table import NO_SUCCESSOR, SLOTS, Granted, Head, Reason, Snapshot, State, WorkerTable

BOOT_ERROR: Final = 3
"""Exit code of the service that never had a worker that was ready; gunicorn's own WORKER_BOOT_ERROR."""

BOOT_FAILED: Final = 70
"""Exit code of a worker that could not boot, while others did: gunicorn takes it for any other death, and goes on."""

_FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 60.0
"""Between two tries to start a worker."""

# Beyond the graceful timeout: gunicorn's own loop ends there, and the engine is closed after it.
_KILL_AFTER_S: Final = 5.0
# How often a worker may die before any was ever ready.
_BOOT_TRIES: Final = 3
# While no worker serves, a try costs less than the wait.
_ALONE_BACKOFF_S: Final = 4.0
_CHANGED_AT_RELOAD: Final = ("workers", "graceful_timeout")


def next_grant(head: Head, workers: Sequence[Snapshot], now_s: float) -> tuple[Snapshot, Granted] | None:
    """The worker that is replaced now, by the most pressing reason, and how; None while anything is under way.

    Each worker that loads, drains, or is to be forked again holds, or will hold, a model of its own.
    """
    unsettled = any(worker.granted or worker.state in (State.BOOTING, State.DRAINING) for worker in workers)
    waiting = [worker for worker in workers if worker.wants]
    if unsettled or not waiting or len(workers) < head.base or now_s < head.backoff_until_s:
        return None
    chosen = min(waiting, key=lambda worker: (-worker.reason.pressure, worker.wanted_s))
    granted = _admit(head, [worker for worker in workers if worker.gpu == chosen.gpu])
    return (chosen, granted) if granted else None


def _admit(head: Head, workers: Sequence[Snapshot]) -> Granted:
    """Whether one more model, and the largest step so far, fits on their GPU; NOTHING until it was read again."""
    seen = [worker for worker in workers if worker.state is State.READY and worker.gpu_read_s]
    fresh = [worker for worker in seen if worker.gpu_read_s > head.exited_s]
    if not seen:
        return Granted.SUCCESSOR
    if not fresh:
        return Granted.NOTHING
    needed_bytes = head.gpu_footprint_bytes + max(worker.gpu_max_step_bytes for worker in seen)
    fits = needed_bytes <= min(worker.gpu_free_bytes for worker in fresh)
    return Granted.SUCCESSOR if fits else Granted.DRAIN_FIRST


def is_next_to_load(own: int, workers: Sequence[Snapshot]) -> bool:
    """Whether a worker is the first of those that load; where there are GPUs, they load one after the other.

    On several GPUs too: they keep TensorRT's engines in one folder, and find what the first has built.
    """
    loading = [worker for worker in workers if worker.state is State.BOOTING]
    return not loading or own == min(loading, key=lambda worker: (worker.forked_s, worker.slot)).slot


def backoff_s(failures: int) -> float:
    """Seconds before the next try after this number of failed boots in a row: 1, 2, 4, … 60."""
    return min(_FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16), LONGEST_BACKOFF_S)


class ReplacementController:
    """The arbiter's decisions, over one worker table. Made once; survives each reload of the configuration."""

    def __init__(self, worker_table: WorkerTable, clock: Callable[[], float] = time.monotonic) -> None:
        self.worker_table, self._head, self._clock = worker_table, worker_table.head, clock
        self._saved_config: dict[str, object] = {}
        self._ended = False
        # All that were ever used, so that a number means the same GPU after a reload with others.
        self._gpus: list[str] = []

    @property
    def is_settled(self) -> bool:
        """Whether the service ends no more for what a worker cannot do: one was ready, or it ends already."""
        return bool(self._head.ever_ready) or self._ended

    # Forks.

    def is_backing_off(self) -> bool:
        """Whether it is too early for another worker, or those that still load decide whether the service ends."""
        return self._is_hopeless() or self._clock() < self._head.backoff_until_s

    def before_fork(self, worker: Any, gpus: Sequence[str] = (), boot_limit_s: float = 0.0) -> None:
        """Give the new worker its entry, and a GPU; it is the successor of one that was granted it, if there is one.

        Until its first heartbeat a worker may take `boot_limit_s` and gunicorn's timeout to import the application.
        """
        worker.worker_table, worker.slot_number = self.worker_table, self.worker_table.allocate(self._clock())
        entry = self.worker_table.entry(worker.slot_number)
        entry.alive_s = self._clock() + boot_limit_s
        entry.gpu = self._gpu_for(worker.slot_number, gpus)
        for snapshot in self.worker_table.live():
            if (
                snapshot.granted is Granted.SUCCESSOR
                and snapshot.successor == NO_SUCCESSOR
                and snapshot.state is State.READY
            ):
                self.worker_table.entry(snapshot.slot).successor = worker.slot_number
                return

    def fork_refused(self, arbiter: Any, error: Exception) -> None:
        """A worker could not be forked: take its entry and grant back, and try again later."""
        self._free_missing(arbiter)
        wait_s = self._back_off()
        arbiter.log.error(
            "No worker can be started: %s: %s. The next try is in %.0f s; the workers that serve go on.",
            *(type(error).__name__, error, wait_s),
        )
        self._set_count(arbiter)
        self._give_up_if_hopeless()

    def in_worker(self, worker: Any) -> None:
        """Worker, after its fork: record its own process id, and restore the settings that a reload has set to 0."""
        self.restore_config(worker.cfg)
        self.worker_table.entry(worker.slot_number).pid = os.getpid()

    def gpu_name(self, gpu: int) -> str:
        """The GPU that the number in an entry means, as CUDA_VISIBLE_DEVICES accepts it."""
        return self._gpus[gpu]

    def _gpu_for(self, slot_number: int, gpus: Sequence[str]) -> int:
        """The GPU with the fewest workers that stay: one that is to be replaced does not count."""
        if not gpus:
            return 0
        self._gpus += [gpu for gpu in gpus if gpu not in self._gpus]
        live = [worker for worker in self.worker_table.live() if worker.slot != slot_number]
        staying = [worker for worker in live if not worker.granted and worker.state is not State.DRAINING]
        return self._gpus.index(min(gpus, key=[self._gpus[worker.gpu] for worker in staying].count))

    # Each turn of the arbiter's loop.

    def run_once(self, arbiter: Any) -> None:
        """Grant, count, and kill what drains for too long. Idempotent."""
        self.restore_config(arbiter.cfg)
        self._free_missing(arbiter)
        self._after_change()
        workers = self.worker_table.live()
        if grant := next_grant(self._head, workers, self._clock()):
            self._grant(arbiter, *grant)
        self._set_count(arbiter)
        limit_s = arbiter.cfg.graceful_timeout + _KILL_AFTER_S
        for worker in workers:
            drains_s = self._clock() - worker.drained_s if worker.state is State.DRAINING else 0.0
            if drains_s > limit_s and worker.pid in arbiter.WORKERS:
                arbiter.log.error("Worker %s drains for more than %.0f s; it is killed.", worker.pid, limit_s)
                arbiter.kill_worker(worker.pid, signal.SIGKILL)

    def count_changed(self, arbiter: Any, count: int, before: int | None) -> None:
        """gunicorn wants another number of workers: at the start that is the base, later it is put right again."""
        if before is None:
            self._head.base = count
        else:
            self._set_count(arbiter)

    def _set_count(self, arbiter: Any) -> None:
        granted = sum(worker.granted is Granted.SUCCESSOR for worker in self.worker_table.live())
        count = min(self._head.base + granted, SLOTS)
        if arbiter.num_workers != count:
            arbiter.num_workers = count

    def _grant(self, arbiter: Any, worker: Snapshot, granted: Granted) -> None:
        self.worker_table.entry(worker.slot).granted, reason = granted, worker.reason.name.lower()
        if granted is Granted.SUCCESSOR:
            arbiter.log.info("Worker %s gets a successor: %s", worker.pid, reason)
            return
        self._head.drain_first += 1
        alone = "it is the only one, so requests wait as long as the load takes"
        arbiter.log.warning(
            "Worker %s is to DRAIN FIRST: %s. A second model (%s bytes and the largest leap) does not fit beside it on "
            "the GPU, which has %s free; its successor loads after it is gone; %s.",
            *(worker.pid, reason, self._head.gpu_footprint_bytes, worker.gpu_free_bytes),
            alone if self._head.base == 1 else "others serve on",
        )

    # Reloads, standstills and the end.

    def reload(self, arbiter: Any) -> None:
        """SIGHUP: every worker wants a successor, one after the other.

        gunicorn would fork `cfg.workers` at once, and wait up to `graceful_timeout`: both are 0 until `run_once`.
        """
        self._head.base = arbiter.cfg.workers
        # Another engine may be larger or smaller: the first that is ready reports it.
        self._head.gpu_footprint_bytes = 0
        self._saved_config = {name: getattr(arbiter.cfg, name) for name in _CHANGED_AT_RELOAD}
        for name in _CHANGED_AT_RELOAD:
            arbiter.cfg.set(name, 0)
        for snapshot in self.worker_table.live():
            entry = self.worker_table.entry(snapshot.slot)
            if snapshot.state is not State.DRAINING and not entry.reason:
                entry.wanted_s, entry.reason = self._clock(), Reason.RELOAD

    def restore_config(self, cfg: Any) -> None:
        """Restore the settings that `reload` has set to 0."""
        while self._saved_config:
            cfg.set(*self._saved_config.popitem())

    def reset_heartbeats(self) -> None:
        """Count the heartbeats from now: nothing was able to run for a while, the arbiter itself included."""
        for snapshot in self.worker_table.live():
            entry = self.worker_table.entry(snapshot.slot)
            entry.alive_s = max(entry.alive_s, self._clock())

    def stop(self, cfg: Any) -> None:
        """The service ends: it matters no more whether any worker was ever ready."""
        self._ended = True
        self.restore_config(cfg)

    # Exits and failed boots.

    def after_exit(self, arbiter: Any, worker: Any) -> None:
        """A worker was reaped: free its entry, and take back the grant if it was a successor that never served."""
        entry = self.worker_table.entry(worker.slot_number)
        if entry.state == State.BOOTING:
            wait_s = self._back_off()
            arbiter.log.error(
                "Worker %s died before it was ready, as did the %s before it; the next one loads in %.0f s. "
                "The workers that serve go on. Its own lines above say why.",
                *(worker.pid, self._head.boot_failures - 1, wait_s),
            )
        elif entry.reason and entry.state == State.DRAINING:
            self._head.recycles[entry.reason] += 1
            arbiter.log.info(
                "RECYCLED worker %s: %s, requests=%s rss_bytes=%s gpu_bytes=%s drained in %.1f s",
                *(worker.pid, Reason(entry.reason).name.lower(), entry.requests, entry.rss_bytes, entry.gpu_bytes),
                self._clock() - entry.drained_s,
            )
        self._free(worker.slot_number)
        self._head.exited_s = self._clock()
        self._set_count(arbiter)
        self._after_change()

    def _free_missing(self, arbiter: Any) -> None:
        """Free the entries of workers that were never forked, or whose end was not reported."""
        places = {worker.slot_number for worker in arbiter.WORKERS.values()}
        for snapshot in self.worker_table.live():
            if snapshot.slot not in places:
                self._free(snapshot.slot)

    def _free(self, gone: int) -> None:
        """Free an entry; the worker that waited for this successor serves on, and asks again."""
        self.worker_table.free(gone)
        for snapshot in self.worker_table.live():
            if snapshot.successor == gone and snapshot.state is State.READY:
                entry = self.worker_table.entry(snapshot.slot)
                entry.successor, entry.granted = NO_SUCCESSOR, Granted.NOTHING

    def _back_off(self) -> float:
        """One more worker was never ready; seconds until the next may be tried."""
        self._head.boot_failures += 1
        wait_s = min(backoff_s(self._head.boot_failures), self._longest_back_off_s())
        self._head.backoff_until_s = self._clock() + wait_s
        return wait_s

    def _longest_back_off_s(self) -> float:
        serves = any(worker.state is State.READY for worker in self.worker_table.live())
        return LONGEST_BACKOFF_S if serves else _ALONE_BACKOFF_S

    def _after_change(self) -> None:
        """Shorten the wait when the workers that served when it began have gone; end a hopeless service."""
        self._head.backoff_until_s = min(self._head.backoff_until_s, self._clock() + self._longest_back_off_s())
        self._give_up_if_hopeless()

    def _is_hopeless(self) -> bool:
        """Whether nothing ever worked, and it was tried often enough."""
        tried = self._head.unusable or self._head.boot_failures >= _BOOT_TRIES
        return not self._head.ever_ready and bool(tried)

    def _give_up_if_hopeless(self) -> None:
        """Raises HaltServer, which ends the service, when nothing ever worked; once, for it reaps the others too."""
        # One that still loads may yet serve.
        loads = any(worker.state is State.BOOTING for worker in self.worker_table.live())
        if self._ended or loads or not self._is_hopeless():
            return
        self._ended = True
        message = "The engine cannot be opened, and no worker was ever ready; its own lines above say why."
        if not self._head.unusable:
            failures = self._head.boot_failures
            message = f"{failures} workers could not start, and none was ever ready; the lines above say why."
        raise HaltServer(message, BOOT_ERROR)
