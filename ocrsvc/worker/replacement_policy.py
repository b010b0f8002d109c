"""Chooses which worker is replaced next, and how many workers there are to be: from a snapshot of the workers alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ocrsvc.telemetry.worker_table import SLOTS, Granted, Head, Snapshot, State

BOOT_ERROR: Final = 3
"""Exit code of the service that never had a worker that was ready; gunicorn's own WORKER_BOOT_ERROR."""

BOOT_FAILED: Final = 70
"""Exit code of a worker that could not boot, while others did: gunicorn takes it for any other death, and goes on."""

_FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 60.0
"""Between two tries to start a worker."""


def wanted_workers(base: int, workers: Sequence[Snapshot]) -> int:
    """How many processes there should be now: the base, and one more for each granted successor."""
    return min(base + sum(worker.granted is Granted.SUCCESSOR for worker in workers), SLOTS)


def next_grant(head: Head, workers: Sequence[Snapshot], now_s: float) -> tuple[Snapshot, Granted] | None:
    """The worker that is replaced now, and how; None while anything else is under way.

    The one with the most pressing reason, and of those the one that has wanted it longest.

    One at a time: nobody is granted while a worker loads or drains, while another grant holds, or while a worker that
    died is still to be forked again, because each of these holds, or will hold, a model of its own. So whoever goes
    first, because two models do not fit, leaves the rest of the base behind, all of them ready.
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
    """Whether the worker with the entry `own` is the first of those that load; on GPUs they load one after the other.

    On several GPUs too: they keep the same engines of TensorRT in the same folder, and find what the first has built.
    """
    loading = [worker for worker in workers if worker.state is State.BOOTING]
    return own == min(loading, key=lambda worker: (worker.forked_s, worker.slot)).slot if loading else True


def backoff_s(failures: int) -> float:
    """Seconds before the next try after so many failed boots in a row: 1, 2, 4, … 60."""
    return min(_FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16), LONGEST_BACKOFF_S)
