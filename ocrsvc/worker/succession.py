"""Who may have a successor next, and how many workers does that make? Pure: from how the workers stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ocrsvc.worker.scoreboard import SLOTS, Standing, State

BOOT_ERROR: Final = 3
"""Exit code of the service that never had a worker that was ready; gunicorn's own WORKER_BOOT_ERROR."""

BOOT_FAILED: Final = 70
"""Exit code of a worker that could not boot, while others did: gunicorn takes it for any other death, and goes on."""

_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 60.0


def wanted_workers(base: int, workers: Sequence[Standing]) -> int:
    """How many processes there should be now: the base, and one more for each granted successor."""
    return min(base + sum(worker.granted for worker in workers), SLOTS)


def next_grant(base: int, workers: Sequence[Standing], now_s: float, backoff_until_s: float) -> Standing | None:
    """The worker that gets a successor now: the one that has wanted it longest; None while anything else is under way.

    One at a time: nobody is granted while a worker loads or drains, while another grant holds, or while a worker that
    died is still to be forked again, because each of these holds, or will hold, a model of its own.
    """
    unsettled = any(worker.granted or worker.state in (State.BOOTING, State.DRAINING) for worker in workers)
    if unsettled or len(workers) < base or now_s < backoff_until_s:
        return None
    waiting = [worker for worker in workers if worker.wants]
    return min(waiting, key=lambda worker: worker.wanted_s, default=None)


def backoff_s(failures: int) -> float:
    """Seconds before the next try after so many failed boots in a row: 1, 2, 4, … 60."""
    return min(_FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16), _LONGEST_BACKOFF_S)
