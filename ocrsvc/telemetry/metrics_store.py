"""The metrics of the whole service, in shared memory that all workers write and any worker can read.

The arbiter creates one `MetricsStore` before any fork: one block per worker slot, and a common one. Only one process
writes a block, and no lock is shared between processes, so a killed worker leaves nothing locked. After reaping a
worker, the arbiter adds its block to the common one and clears it: counters do not decrease when workers are replaced.
Series are stored by name: after a SIGHUP, workers with newer code may count metrics that the arbiter does not know.
"""

from __future__ import annotations

import ctypes
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import add
from typing import TYPE_CHECKING, Final

from ocrsvc.errors import OcrsvcError
from ocrsvc.system.shared_memory import shared_array
from ocrsvc.telemetry import model_metrics
from ocrsvc.telemetry.exemplars import Exemplar, Exemplars, ExemplarStore, WorkerExemplars
from ocrsvc.telemetry.metric import BUCKETS_S, Key, Metric
from ocrsvc.telemetry.metrics import CACHE_HITS, FALLBACKS, IMAGES, LINES, SERIES_DROPPED, STAGE_SECONDS, PageSource

if TYPE_CHECKING:
    # Only for type checkers: this module imports numpy, which the arbiter must not load.
    from ocrsvc.results import Reading

SERIES: Final = 4096
"""Limit of series per block, twice the number that requests in all formats create; SERIES_DROPPED counts the excess."""

SAMPLE_S: Final = 0.5
# Longest wait of an ending worker for the sampler's thread, which a slow disk may block.
_END_S: Final = 1.0
# Kinds of metrics whose values are dropped when their worker ends.
_ENDING: Final = ("gauge", "reading")
# Kinds of metrics whose value is the maximum over all workers; other kinds are summed.
_LARGEST: Final = ("latest", "reading")
_KEY_BYTES: Final = 96
_VALUES: Final = len(BUCKETS_S) + 2
_TRIES: Final = 200
_TRY_S: Final = 0.001

Sample = tuple[Metric, float]
Series = Mapping[Key, Sequence[float]]
"""The values of each series: one value, or for a histogram the counts per bucket, the overflow's count, and the sum."""


class _Series(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * _KEY_BYTES), ("values", ctypes.c_double * _VALUES))


class _Block(ctypes.Structure):
    # The additional series at the end takes the values of all series beyond the limit; it is never read.
    _fields_ = (("used", ctypes.c_int64), ("dropped", ctypes.c_int64), ("series", _Series * (SERIES + 1)))


class _Head(ctypes.Structure):
    # `version` is odd while the arbiter adds a worker's block to its own; slots from `high` on were never used.
    _fields_ = (("version", ctypes.c_int64), ("high", ctypes.c_int64), ("started_s", ctypes.c_double))


class WorkerMetrics:
    """The only writer of one process's metrics. Any thread of the process and its signal handlers may call it."""

    def __init__(self, block: _Block, exemplars: WorkerExemplars) -> None:
        self._block = block
        self._exemplars = exemplars
        self._values: dict[Key, ctypes.Array[ctypes.c_double]] = {}
        # Reentrant, because a signal handler may count a dropped log line while its thread holds the lock.
        self._lock = threading.RLock()

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add `by` to a counter or a gauge."""
        self.record(((metric.of(*labels), by),))

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a metric to its newest value: a gauge, a reading (measured by every worker) or a latest time."""
        with self._lock:
            self._values_of(metric.of(*labels))[0] = value

    def record(
        self, counts: Iterable[tuple[Key, float]], times: Iterable[tuple[Key, float]] = (), trace_id: str = ""
    ) -> None:
        """Add to several counters and gauges, and seconds to histograms; a sampled trace becomes their exemplar."""
        with self._lock:
            for key, by in counts:
                self._values_of(key)[0] += by
            for key, seconds in times:
                values, bucket = self._values_of(key), bisect_left(BUCKETS_S, seconds)
                values[bucket] += 1
                values[-1] += seconds
                if trace_id:
                    self._exemplars.put(key, bucket, Exemplar(trace_id, seconds, time.time()))

    def add_block(self, series: Series) -> None:
        """Add the values of an ended worker's block, except those that describe only running workers (_ENDING)."""
        with self._lock:
            for key, values in series.items():
                if key == SERIES_DROPPED.of():
                    self._block.dropped += int(values[0])
                elif key[0] not in _ENDING:
                    totals = self._values_of(key)
                    for number, value in enumerate(_merged(key, totals, values)):
                        totals[number] = value

    def _values_of(self, key: Key) -> ctypes.Array[ctypes.c_double]:
        """The values of a series; a new series is created."""
        if key not in self._values:
            block = self._block
            if block.used == SERIES:
                block.dropped += 1
            series = block.series[block.used]
            series.key = "\t".join(key).encode()[:_KEY_BYTES]
            block.used = min(block.used + 1, SERIES)
            self._values[key] = series.values
        return self._values[key]


class MetricsStore:
    """The metrics of all processes, a block for each. Create it in the arbiter before any fork.

    Only used slots take memory. `common` is the arbiter's own block, which also has the counts of ended workers.
    """

    def __init__(self, slots: int = 1) -> None:
        [self._head] = shared_array(_Head, 1)
        self._head.started_s = time.time()
        self._blocks = shared_array(_Block, slots + 1)
        self._exemplars = ExemplarStore(slots)
        self.common = WorkerMetrics(self._blocks[0], self._exemplars.common)

    @property
    def started_s(self) -> float:
        """When the service started, in Unix time."""
        return float(self._head.started_s)

    def claim(self, slot: int) -> None:
        """Arbiter, before a fork: mark the worker's slot as used, so that its metrics are read."""
        self._head.high = max(self._head.high, slot + 1)

    def worker_metrics(self, slot: int = 0) -> WorkerMetrics:
        """Call once in a worker, after its fork; returns the writer of the worker's metrics."""
        return WorkerMetrics(self._blocks[slot + 1], self._exemplars.of_worker(slot))

    def fold(self, slot: int) -> None:
        """Arbiter, after reaping a worker: move the worker's counts to the common block, and clear its own block."""
        block = self._blocks[slot + 1]
        self._head.version += 1
        self.common.add_block(dict(_series(block)))
        ctypes.memset(ctypes.byref(block), 0, ctypes.sizeof(block))
        self._head.version += 1
        self._exemplars.fold(slot)

    def read(self) -> Series:
        """The values of the whole service; reads again if the arbiter moved counts between blocks meanwhile."""
        for _ in range(_TRIES):
            version = self._head.version
            series = self._add_up()
            if version % 2 == 0 and self._head.version == version:
                break
            time.sleep(_TRY_S)
        return series

    def exemplars(self) -> Exemplars:
        """The last sampled trace in each bucket of the histograms."""
        return self._exemplars.read(self._head.high + 1)

    def _add_up(self) -> Series:
        series: dict[Key, Sequence[float]] = {}
        for block in range(self._head.high + 1):
            for key, values in _series(self._blocks[block]):
                series[key] = _merged(key, series[key], values) if key in series else values
        return series


def _series(block: _Block) -> Iterator[tuple[Key, Sequence[float]]]:
    """The metric series in one process's block, in order of creation."""
    if block.dropped:
        yield SERIES_DROPPED.of(), (float(block.dropped), *[0.0] * (_VALUES - 1))
    for number in range(min(block.used, SERIES)):
        series = block.series[number]
        yield tuple(series.key.decode("utf-8", "replace").split("\t")), list(series.values)


def _merged(key: Key, one: Iterable[float], other: Iterable[float]) -> list[float]:
    """Combine two blocks' values of one series: the larger values for metric kinds in _LARGEST, else the sums."""
    return list(map(max if key[0] in _LARGEST else add, one, other))


def count_reading(
    worker_metrics: WorkerMetrics, reading: Reading, trace_id: str = "", source: PageSource = "request"
) -> None:
    """Count an image that was read, with its lines and stage times, or a cache hit."""
    if reading.from_cache:
        worker_metrics.count(CACHE_HITS, source)
        return
    times = {**_stages(reading), "total": reading.timing.total_s}
    counts = [(IMAGES.of(source), 1), (LINES.of(), len(reading.page.lines))]
    if reading.page.fallback is not None:
        counts.append((FALLBACKS.of(reading.page.fallback.reason), 1))
    worker_metrics.record(
        counts,
        [(STAGE_SECONDS.of(stage, source), seconds) for stage, seconds in times.items()],
        trace_id,
    )


def count_model_request(worker_metrics: WorkerMetrics, readings: Sequence[Reading], seconds: float) -> None:
    """Count a successful request to the model API."""
    stages = [stage for reading in readings for stage in _stages(reading).items()]
    times = [(model_metrics.MODEL_STAGE_SECONDS.of(stage), spent_s) for stage, spent_s in stages]
    worker_metrics.record((), [(model_metrics.MODEL_SECONDS.of("success"), seconds), *times])
    worker_metrics.put(model_metrics.MODEL_LAST, time.time())


def count_version(
    worker_metrics: WorkerMetrics, name: str, version: str, readings: Sequence[Reading], seconds: float
) -> None:
    """Count a request to the model API for its model version; a request without results counts as failed."""
    spent = [("success" if readings else "fail", seconds)]
    spent += [stage for reading in readings for stage in _stages(reading).items()]
    worker_metrics.record(
        (
            (model_metrics.VERSION_REQUESTS.of(name, version, spent[0][0]), 1),
            (model_metrics.VERSION_IMAGES.of(name, version), len(readings)),
            *((model_metrics.VERSION_SECONDS.of(name, version, stage), spent_s) for stage, spent_s in spent),
        )
    )


def _stages(reading: Reading) -> dict[str, float]:
    timing = reading.timing
    return {"decode": timing.decode_s, "queue": timing.queue_s, "engine": timing.engine_s}


class Sampler(threading.Thread):
    """Sets the metrics that `read` yields, every `every_s` seconds; if `read` fails, they keep their values."""

    def __init__(self, metrics: WorkerMetrics, read: Callable[[], Iterable[Sample]], every_s: float = SAMPLE_S) -> None:
        super().__init__(name="sampler", daemon=True)
        self._worker_metrics, self._read, self._every_s = metrics, read, every_s
        self._done = threading.Event()

    def run(self) -> None:
        """The thread's function: sample until `stop` is called."""
        is_done = False
        while not is_done:
            # Not logged: a fault of the disk or the key store is logged by the code that needs them.
            with suppress(OSError, OcrsvcError):
                for metric, value in self._read():
                    self._worker_metrics.put(metric, value)
            is_done = self._done.wait(self._every_s)

    def stop(self) -> None:
        """End the thread if it was started."""
        self._done.set()
        if self.is_alive():
            self.join(_END_S)
