"""Decides when workers are forked, replaced and killed; runs in the arbiter's main thread.

gunicorn keeps `num_workers` processes alive. That number is always computed from the worker table, so that lost or
repeated signals cannot make it drift. It is lowered only after the replaced worker is reaped, because gunicorn ends the
oldest surplus worker.
"""

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gunicorn.errors import HaltServer

from ocrsvc.telemetry.worker_table import NO_SUCCESSOR, SLOTS, Granted, Head, Reason, Snapshot, State, WorkerTable

# Exit code of a service that never had a ready worker, equal to gunicorn's WORKER_BOOT_ERROR.
BOOT_ERROR: Final = 3
# Exit code of a worker that could not boot; gunicorn replaces it like any other worker that died.
BOOT_FAILED: Final = 70
_FIRST_BACKOFF_S: Final = 1.0
# Longest waits between two attempts to start a worker: while other workers serve, and while none does.
_LONGEST_BACKOFF_S: Final = 60.0
_ALONE_BACKOFF_S: Final = 4.0
# Additional seconds after the graceful timeout for a worker to close its engine, before it is killed.
_KILL_AFTER_S: Final = 5.0
# Failed boots after which a service without any ready worker ends.
_BOOT_TRIES: Final = 3
_CHANGED_AT_RELOAD: Final = ("workers", "graceful_timeout")


def next_grant(head: Head, workers: Sequence[Snapshot], now_s: float) -> tuple[Snapshot, Granted] | None:
    """The worker to replace next, by urgency, and how to do it; None while another worker starts or ends.

    Only one changes at a time: each worker that loads, drains or is missing needs memory for its own model.
    """
    unsettled = any(worker.granted or worker.state in (State.BOOTING, State.DRAINING) for worker in workers)
    waiting = [worker for worker in workers if worker.awaits_grant]
    if unsettled or not waiting or len(workers) < head.base or now_s < head.backoff_until_s:
        return None
    chosen = min(waiting, key=lambda worker: (-worker.reason.pressure, worker.wanted_s))
    granted = _admit(head, [worker for worker in workers if worker.gpu == chosen.gpu])
    return (chosen, granted) if granted else None


def _admit(head: Head, workers: Sequence[Snapshot]) -> Granted:
    """SUCCESSOR if one more model, plus the largest growth of a worker so far, fits on the GPU; else DRAIN_FIRST.

    NOTHING until the GPU's free memory was measured after the last exit of a worker.
    """
    measured = [worker for worker in workers if worker.state is State.READY and worker.gpu_read_s]
    fresh = [worker for worker in measured if worker.gpu_read_s > head.exited_s]
    if not measured:
        return Granted.SUCCESSOR
    if not fresh:
        return Granted.NOTHING
    needed_bytes = head.gpu_footprint_bytes + max(worker.gpu_max_step_bytes for worker in measured)
    fits = needed_bytes <= min(worker.gpu_free_bytes for worker in fresh)
    return Granted.SUCCESSOR if fits else Granted.DRAIN_FIRST


def is_next_to_load(slot: int, workers: Sequence[Snapshot]) -> bool:
    """Whether of all loading workers, on any GPU, this one was forked first: all share TensorRT's engine folder."""
    loading = [worker for worker in workers if worker.state is State.BOOTING]
    return not loading or slot == min(loading, key=lambda worker: (worker.forked_s, worker.slot)).slot


class ReplacementController:
    """Manages the workers of one worker table. Created once; kept when the configuration is reloaded."""

    def __init__(self, worker_table: WorkerTable, clock: Callable[[], float] = time.monotonic) -> None:
        self.worker_table, self._head, self._clock = worker_table, worker_table.head, clock
        self._saved_config: dict[str, object] = {}
        # Set when the service ends: failed boots are then ignored.
        self.has_ended = False
        # All GPUs ever used. A worker's GPU number is an index into it, and stays valid when a reload names other GPUs.
        self.gpus: list[str] = []

    def is_backing_off(self) -> bool:
        """Whether no worker may be forked now, because a back-off is not over or the service will end."""
        return self._is_hopeless() or self._clock() < self._head.backoff_until_s

    def before_fork(self, worker: Any, gpus: Sequence[str] = (), boot_limit_s: float = 0.0) -> None:
        """Assign an entry and a GPU to a new worker, and link it to the worker, if any, that it will replace.

        Its first heartbeat is due after `boot_limit_s` plus gunicorn's timeout: it imports the application first.
        """
        worker.worker_table, worker.slot_number = self.worker_table, self.worker_table.allocate(self._clock())
        entry = self.worker_table.entry(worker.slot_number)
        entry.alive_s = self._clock() + boot_limit_s
        if gpus:
            self.gpus += [gpu for gpu in gpus if gpu not in self.gpus]
            # Choose the GPU with the fewest workers, not counting workers that are being replaced.
            live = [other for other in self.worker_table.live() if other.slot != worker.slot_number]
            staying = [other for other in live if not other.granted and other.state is not State.DRAINING]
            fewest = min(gpus, key=[self.gpus[other.gpu] for other in staying].count)
            entry.gpu = self.gpus.index(fewest)
        for snapshot in self.worker_table.live():
            lacks_successor = snapshot.granted is Granted.SUCCESSOR and snapshot.successor == NO_SUCCESSOR
            if lacks_successor and snapshot.state is State.READY:
                self.worker_table.entry(snapshot.slot).successor = worker.slot_number
                return

    def fork_refused(self, arbiter: Any, error: Exception) -> None:
        """After a failed fork: free the new worker's entry, so that its predecessor keeps serving, and back off."""
        self._free_missing(arbiter)
        wait_s = self._back_off()
        arbiter.log.error(
            "No worker can be started: %s: %s. The next try is in %.0f s%s.",
            *(type(error).__name__, error, wait_s, "; the other workers keep serving" if self._serves() else ""),
        )
        self.set_count(arbiter)
        self._give_up_if_hopeless()

    def run_once(self, arbiter: Any) -> None:
        """Grant replacements, set the number of workers, and kill workers that drain too long. Idempotent."""
        self.restore_config(arbiter.cfg)
        self._free_missing(arbiter)
        self._after_change()
        workers = self.worker_table.live()
        if grant := next_grant(self._head, workers, self._clock()):
            self._grant(arbiter, *grant)
        self.set_count(arbiter)
        limit_s = arbiter.cfg.graceful_timeout + _KILL_AFTER_S
        for worker in workers:
            drains_s = self._clock() - worker.drained_s if worker.state is State.DRAINING else 0.0
            if drains_s > limit_s and worker.pid in arbiter.WORKERS:
                arbiter.log.error("Worker %s has drained for more than %.0f s: it is killed.", worker.pid, limit_s)
                arbiter.kill_worker(worker.pid, signal.SIGKILL)

    def set_count(self, arbiter: Any) -> None:
        """Set gunicorn's number of workers: the configured number plus one for each successor that may load now."""
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
        alone, others = "no other is ready, so requests wait during the load", "the other workers keep serving"
        arbiter.log.warning(
            "Worker %s must DRAIN FIRST: %s. Another model (%s bytes and the largest step) does not fit on the GPU, "
            "which has %s bytes free. Its successor loads after its exit; %s.",
            *(worker.pid, reason, self._head.gpu_footprint_bytes, worker.gpu_free_bytes),
            others if self._serves(but=worker.slot) else alone,
        )

    def reload(self, arbiter: Any) -> None:
        """SIGHUP: request a successor for every worker; they are replaced one by one.

        gunicorn's settings `workers` and `graceful_timeout` are 0 until `run_once`: gunicorn would fork `workers`
        processes immediately, and wait up to `graceful_timeout` for the old processes.
        """
        self._head.base = arbiter.cfg.workers
        # The new engine's footprint may differ: the first ready worker measures it.
        self._head.gpu_footprint_bytes = 0
        self._saved_config = {name: getattr(arbiter.cfg, name) for name in _CHANGED_AT_RELOAD}
        for name in _CHANGED_AT_RELOAD:
            arbiter.cfg.set(name, 0)
        for snapshot in self.worker_table.live():
            entry = self.worker_table.entry(snapshot.slot)
            if snapshot.state is not State.DRAINING and not entry.reason:
                entry.wanted_s, entry.reason = self._clock(), Reason.RELOAD

    def restore_config(self, cfg: Any) -> None:
        """Restore gunicorn's settings that `reload` has set to 0 for the time of gunicorn's own reload."""
        while self._saved_config:
            cfg.set(*self._saved_config.popitem())

    def reset_heartbeats(self) -> None:
        """Treat all workers as alive now, after a pause in which no process could run."""
        for snapshot in self.worker_table.live():
            entry = self.worker_table.entry(snapshot.slot)
            entry.alive_s = max(entry.alive_s, self._clock())

    def after_exit(self, arbiter: Any, worker: Any) -> None:
        """After reaping a worker: free its entry; if it was a successor that was never ready, end the replacement."""
        entry = self.worker_table.entry(worker.slot_number)
        if entry.state == State.BOOTING:
            wait_s, before = self._back_off(), self._head.boot_failures - 1
            arbiter.log.error(
                "Worker %s died before it was ready%s; the next one loads in %.0f s. %sThe lines above explain why.",
                *(worker.pid, f", as did the {before if before > 1 else 'one'} before it" if before else "", wait_s),
                "The other workers keep serving. " if self._serves() else "",
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
        self.set_count(arbiter)
        self._after_change()

    def _free_missing(self, arbiter: Any) -> None:
        """Free the table entries of workers that were never forked, or whose exit gunicorn did not report."""
        slots = {worker.slot_number for worker in arbiter.WORKERS.values()}
        for snapshot in self.worker_table.live():
            if snapshot.slot not in slots:
                self._free(snapshot.slot)

    def _free(self, slot: int) -> None:
        """Free a worker's entry. Its READY predecessor, if any, keeps serving, and may get a new successor."""
        self.worker_table.free(slot)
        for snapshot in self.worker_table.live():
            if snapshot.successor == slot and snapshot.state is State.READY:
                entry = self.worker_table.entry(snapshot.slot)
                entry.successor, entry.granted = NO_SUCCESSOR, Granted.NOTHING

    def _back_off(self) -> float:
        """Count a failed boot; return the seconds until the next attempt: 1, 2, 4, and so on."""
        self._head.boot_failures += 1
        wait_s: float = min(_FIRST_BACKOFF_S * 2.0 ** min(self._head.boot_failures - 1, 16), self._longest_back_off_s())
        self._head.backoff_until_s = self._clock() + wait_s
        return wait_s

    def _longest_back_off_s(self) -> float:
        return _LONGEST_BACKOFF_S if self._serves() else _ALONE_BACKOFF_S

    def _serves(self, but: int = NO_SUCCESSOR) -> bool:
        """Whether any worker is ready, not counting the worker in the slot `but`."""
        return any(worker.state is State.READY and worker.slot != but for worker in self.worker_table.live())

    def _after_change(self) -> None:
        """After workers have changed: fork sooner if none serves any more; end the service if none can start."""
        self._head.backoff_until_s = min(self._head.backoff_until_s, self._clock() + self._longest_back_off_s())
        self._give_up_if_hopeless()

    def _is_hopeless(self) -> bool:
        """Whether no worker was ever ready, and the boot attempts are used up or the engine cannot be opened."""
        return not self._head.ever_ready and bool(self._head.unusable or self._head.boot_failures >= _BOOT_TRIES)

    def _give_up_if_hopeless(self) -> None:
        """Raise HaltServer if no worker can start; only once, because gunicorn calls this again while it stops."""
        # A worker that still loads may become ready.
        loads = any(worker.state is State.BOOTING for worker in self.worker_table.live())
        if self.has_ended or loads or not self._is_hopeless():
            return
        self.has_ended = True
        failed = f"{self._head.boot_failures} workers could not start, and none"
        fact = "The engine cannot be opened, and no worker" if self._head.unusable else failed
        raise HaltServer(f"{fact} was ever ready; the lines above explain why.", BOOT_ERROR)
