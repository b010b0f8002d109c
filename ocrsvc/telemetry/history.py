"""The service's last ten minutes, for the operators' page: a data point every five seconds, in shared memory.

The arbiter writes the points, and any worker reads them. They hold counts since the start; two points give a rate.
"""

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from operator import sub
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
# Blueprints whose requests are not counted, because the operators' page itself makes them.
_UNCOUNTED: Final = ("ops", "operators", "page")
_WAIT: Final = metrics.STAGE_SECONDS.of("queue", "request")
_TOTAL: Final = metrics.STAGE_SECONDS.of("total", "request")
_SHARE: Final = 0.95
_MIN_S: Final = 0.001
_BUCKETS: Final = len(BUCKETS_S) + 1
# N intervals need N + 1 points; one more is spare, because the oldest may be overwritten while it is read.
_POINTS: Final = int(SPAN_S / EVERY_S) + 2

_COUNTS: Final = ("requests", "images", "own_failures", "caller_failures", "refused")
_GAUGES: Final = ("in_flight", "waiting", "ready", "memory_used_bytes", "gpu_used_bytes", "gpu_busy_ratio")


class Point(ctypes.Structure):
    """A data point: counts since the start, and gauges, at one moment of the monotonic clock.

    `wait` and `total` are histograms of the images since the start, by time in the queue and by total time.
    """

    _fields_ = (
        *((name, ctypes.c_double) for name in ("when_s", *_COUNTS, *_GAUGES)),
        ("wait", ctypes.c_double * _BUCKETS),
        ("total", ctypes.c_double * _BUCKETS),
    )


class _Head(ctypes.Structure):
    _fields_ = (("written", ctypes.c_int64),)


class History:
    """A ring buffer of data points. Create it in the arbiter before any fork."""

    def __init__(self) -> None:
        [self._head] = shared_array(_Head, 1)
        self._points = shared_array(Point, _POINTS)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for the next point."""
        written = self._head.written
        return not written or now_s - self._points[(written - 1) % _POINTS].when_s >= EVERY_S

    def add(self, point: Point) -> None:
        """Arbiter only: add a point, which overwrites the oldest one."""
        self._points[self._head.written % _POINTS] = point
        self._head.written += 1

    def read(self) -> list[Point]:
        """All points, oldest first, except the one that will be overwritten next."""
        written = self._head.written
        kept = range(max(0, written - _POINTS + 1), written)
        return [Point.from_buffer_copy(self._points[number % _POINTS]) for number in kept]


def observe(store: MetricsStore, worker_table: WorkerTable, now_s: float) -> Point:
    """Make a data point of the service's current state."""
    series, live = store.read(), worker_table.live()
    busy = [entry.gpu_busy_ratio for worker in live if (entry := worker_table.entry(worker.slot)).gpu_busy_read_s]
    nothing = (0.0,) * _BUCKETS
    return Point(
        when_s=now_s,
        requests=_sum(series, metrics.REQUESTS, without=_UNCOUNTED),
        images=_sum(series, metrics.IMAGES) + _sum(series, metrics.CACHE_HITS),
        own_failures=_sum(series, metrics.FAILURES, only=OWN_FAULTS),
        caller_failures=_sum(series, metrics.FAILURES, without=SERVICE_FAULTS),
        refused=_sum(series, metrics.REFUSED, without=CALLERS_LIMITS),
        in_flight=_sum(series, metrics.IN_FLIGHT),
        waiting=_sum(series, metrics.WAITING),
        ready=sum(worker.state is State.READY for worker in live),
        memory_used_bytes=read_memory_use().used_bytes,
        gpu_used_bytes=sum(worker.gpu_bytes for worker in live),
        gpu_busy_ratio=sum(busy) / len(busy) if busy else 0.0,
        wait=tuple(series.get(_WAIT, nothing)[:_BUCKETS]),
        total=tuple(series.get(_TOTAL, nothing)[:_BUCKETS]),
    )


def _sum(series: Series, metric: Metric, only: Sequence[str] = (), without: Sequence[str] = ()) -> float:
    """Sum a metric's series by first label: all labels, or only those in `only`; never those in `without`."""
    labelled = ((" ".join(key[2:3]), values[0]) for key, values in series.items() if key[1] == metric.name)
    return sum(value for label, value in labelled if label not in without and (not only or label in only))


def curves(points: Sequence[Point]) -> dict[str, list[float | None]]:
    """Curves with a value per interval between points: a rate, a gauge at the interval's end, or a 95th percentile."""
    pairs = list(pairwise(points))
    plots: dict[str, list[float | None]] = {f"{name}_per_s": [_rate(name, *pair) for pair in pairs] for name in _COUNTS}
    plots |= {name: [getattr(after, name) for _, after in pairs] for name in _GAUGES}
    for name in ("wait", "total"):
        plots[f"{name}_p95_s"] = [
            quantile(_SHARE, list(map(sub, getattr(after, name), getattr(before, name)))) for before, after in pairs
        ]
    return plots


def _rate(name: str, before: Point, after: Point) -> float:
    return float((getattr(after, name) - getattr(before, name)) / max(after.when_s - before.when_s, _MIN_S))


def quantile(share: float, buckets: Sequence[float]) -> float | None:
    """The quantile `share` of a histogram, interpolated as Prometheus does; None without observations.

    Observations above the largest of BUCKETS_S count as equal to it.
    """
    rank, before, low = share * sum(buckets), 0.0, 0.0
    if rank <= 0:
        return None
    for bound, count in zip(BUCKETS_S, buckets, strict=False):
        if count and before + count >= rank:
            return low + (bound - low) * (rank - before) / count
        before, low = before + count, bound
    return BUCKETS_S[-1]
