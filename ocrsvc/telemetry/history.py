"""The last ten minutes of the service in shared memory, for the operators' page: a point every five seconds.

The arbiter writes it, so that it survives every worker, and any worker that is asked reads it. A point holds counts
since the start; how fast they grew follows from two points.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ocrsvc.system.memory import read_memory_use
from ocrsvc.system.shared_memory import shared_array
from ocrsvc.telemetry import metrics
from ocrsvc.telemetry.metric import BUCKETS_S, Metric
from ocrsvc.telemetry.metrics import CALLERS_LIMITS, OWN_FAULTS, SERVICE_FAULTS
from ocrsvc.telemetry.metrics_store import MetricsStore, Series
from ocrsvc.telemetry.worker_table import State, WorkerTable

EVERY_S: Final = 5.0
SPAN_S: Final = 600.0
# Those of operators themselves: a page that looks would see itself.
_UNCOUNTED: Final = ("ops", "operators", "page")
_WAIT: Final = metrics.STAGE_SECONDS.of("queue")
_TOTAL: Final = metrics.STAGE_SECONDS.of("total")
_SHARE: Final = 0.95
_LEAST_S: Final = 0.001
_BUCKETS: Final = len(BUCKETS_S) + 1
# Two more than are shown: of the two oldest one may be being written, and the other only says where the next began.
_POINTS: Final = int(SPAN_S / EVERY_S) + 2

_COUNTS: Final = ("requests", "images", "own_failures", "caller_failures", "refused")
_GAUGES: Final = ("in_flight", "waiting", "ready", "memory_used_bytes", "gpu_used_bytes", "gpu_busy_ratio")


class _Point(ctypes.Structure):
    """See `Point`."""

    _fields_ = (
        ("when_s", ctypes.c_double),
        ("counts", ctypes.c_double * len(_COUNTS)),
        ("gauges", ctypes.c_double * len(_GAUGES)),
        ("wait", ctypes.c_double * _BUCKETS),
        ("total", ctypes.c_double * _BUCKETS),
    )


class _Head(ctypes.Structure):
    _fields_ = (("written", ctypes.c_int64),)


@dataclass(frozen=True, slots=True)
class Point:
    """The service at one moment.

    Attributes:
        when_s: Monotonic seconds.
        counts: What was counted since the start, by name.
        gauges: What holds now, by name.
        wait, total: Images since the start by how long they waited, and by how long they took in all; a number for each
            bucket.
    """

    when_s: float
    counts: Mapping[str, float]
    gauges: Mapping[str, float]
    wait: Sequence[float]
    total: Sequence[float]


class History:
    """The ring of points. Make it in the arbiter, before any fork."""

    def __init__(self) -> None:
        [self._head] = shared_array(_Head, 1)
        self._points = shared_array(_Point, _POINTS)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for the next point."""
        written = self._head.written
        return not written or now_s - self._points[(written - 1) % _POINTS].when_s >= EVERY_S

    def add(self, point: Point) -> None:
        """Keep a point instead of the oldest. Arbiter only."""
        record = self._points[self._head.written % _POINTS]
        record.when_s = point.when_s
        record.counts[:] = [point.counts[name] for name in _COUNTS]
        record.gauges[:] = [point.gauges[name] for name in _GAUGES]
        record.wait[:], record.total[:] = point.wait, point.total
        self._head.written += 1

    def read(self) -> list[Point]:
        """What is kept, the oldest first, without the one that is overwritten next."""
        written = self._head.written
        return [_read(self._points[number % _POINTS]) for number in range(max(0, written - _POINTS + 1), written)]


def _read(record: _Point) -> Point:
    return Point(
        record.when_s,
        dict(zip(_COUNTS, record.counts, strict=True)),
        dict(zip(_GAUGES, record.gauges, strict=True)),
        list(record.wait),
        list(record.total),
    )


def observe(store: MetricsStore, worker_table: WorkerTable, now_s: float) -> Point:
    """The service now."""
    series, live = store.read(), worker_table.live()
    busy = [entry.gpu_busy_ratio for worker in live if (entry := worker_table.entry(worker.slot)).gpu_busy_read_s]
    nothing = (0.0,) * _BUCKETS
    return Point(
        now_s,
        {
            "requests": _sum(series, metrics.REQUESTS, without=_UNCOUNTED),
            "images": _sum(series, metrics.IMAGES) + _sum(series, metrics.CACHE_HITS),
            "own_failures": _sum(series, metrics.FAILURES, only=OWN_FAULTS),
            "caller_failures": _sum(series, metrics.FAILURES, without=SERVICE_FAULTS),
            "refused": _sum(series, metrics.REFUSED, without=CALLERS_LIMITS),
        },
        {
            "in_flight": _sum(series, metrics.IN_FLIGHT),
            "waiting": _sum(series, metrics.WAITING),
            "ready": sum(worker.state is State.READY for worker in live),
            "memory_used_bytes": read_memory_use().used_bytes,
            "gpu_used_bytes": sum(worker.gpu_bytes for worker in live),
            "gpu_busy_ratio": sum(busy) / len(busy) if busy else 0.0,
        },
        series.get(_WAIT, nothing)[:_BUCKETS],
        series.get(_TOTAL, nothing)[:_BUCKETS],
    )


def _sum(series: Series, metric: Metric, only: Sequence[str] = (), without: Sequence[str] = ()) -> float:
    """All series of a metric together, or those with these values of its first label, or with others than these."""
    found = ((" ".join(key[2:3]), values[0]) for key, values in series.items() if key[1] == metric.name)
    return sum(value for label, value in found if label not in without and (not only or label in only))


def curves(points: Sequence[Point]) -> dict[str, list[float | None]]:
    """What the points show, a number for each interval between two: how fast counts grew, and what held at its end.

    Times are the ones that 95 of 100 images did not exceed; None where there was no image.
    """
    pairs = list(pairwise(points))
    found: dict[str, list[float | None]] = {f"{name}_per_s": [_rate(name, *pair) for pair in pairs] for name in _COUNTS}
    found |= {name: [after.gauges[name] for _, after in pairs] for name in _GAUGES}
    for name in ("wait", "total"):
        found[f"{name}_p95_s"] = [
            quantile(_SHARE, list(_difference(getattr(before, name), getattr(after, name)))) for before, after in pairs
        ]
    return found


def _rate(name: str, before: Point, after: Point) -> float:
    return (after.counts[name] - before.counts[name]) / max(after.when_s - before.when_s, _LEAST_S)


def _difference(before: Sequence[float], after: Sequence[float]) -> Iterator[float]:
    for one, other in zip(before, after, strict=True):
        yield other - one


def quantile(share: float, buckets: Sequence[float]) -> float | None:
    """The value that this share of observations does not exceed, as Prometheus estimates it; None without any.

    Args:
        share: From 0 to 1.
        buckets: Observations in each bucket of BUCKETS_S, and above the last, whose lower end counts for those.
    """
    wanted, before, low = share * sum(buckets), 0.0, 0.0
    if wanted <= 0:
        return None
    for bound, count in zip(BUCKETS_S, buckets, strict=False):
        if count and before + count >= wanted:
            return low + (bound - low) * (wanted - before) / count
        before, low = before + count, bound
    return BUCKETS_S[-1]
