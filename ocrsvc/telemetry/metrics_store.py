"""Counters of the whole service, in shared memory that all workers write, whichever of them answers.

The arbiter makes one `MetricsStore` before any fork: a block for each worker's slot, and a common one. Only one process
writes a block, and only threads of one process share a lock, so a worker that is killed leaves nothing locked. When a
worker has been reaped, the arbiter adds its block to the common one and clears it: no counter goes back when workers
are replaced. Series are found by name: after a SIGHUP, workers with newer code may count what the arbiter does not.
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
from ocrsvc.telemetry.metrics import CACHE_HITS, IMAGES, LINES, SERIES_DROPPED, STAGE_SECONDS, PageSource

if TYPE_CHECKING:
    # records needs numpy, which must not come into the arbiter.
    from ocrsvc.results import Reading

SERIES: Final = 4096
"""Series that one block may hold, twice what all formats can make; SERIES_DROPPED counts what finds no room."""

SAMPLE_S: Final = 0.5
# A disk that hangs does not hold up the end of the worker.
_END_S: Final = 1.0
# Kinds whose values end with their worker, and kinds of which the largest of all workers counts.
_ENDING: Final = ("gauge", "reading")
_LARGEST: Final = ("latest", "reading")
_KEY_BYTES: Final = 96
_VALUES: Final = len(BUCKETS_S) + 2
_TRIES: Final = 200
_TRY_S: Final = 0.001

Series = Mapping[Key, Sequence[float]]
"""Numbers by key: a histogram has one for each bucket, one above the last, and the sum; other kinds use the first."""


class _Series(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * _KEY_BYTES), ("values", ctypes.c_double * _VALUES))


class _Block(ctypes.Structure):
    # One more series, which is never read, takes what finds no space.
    _fields_ = (("used", ctypes.c_int64), ("dropped", ctypes.c_int64), ("series", _Series * (SERIES + 1)))


class _Head(ctypes.Structure):
    # The version is odd while the arbiter adds a block to the common one; blocks from `high` on were never used.
    _fields_ = (("version", ctypes.c_int64), ("high", ctypes.c_int64), ("started_s", ctypes.c_double))


class WorkerMetrics:
    """One block, and its only writer. All methods may be called from any thread of that process, and by its signals."""

    def __init__(self, block: _Block, exemplars: WorkerExemplars) -> None:
        self._block = block
        self._exemplars = exemplars
        self._values: dict[Key, ctypes.Array[ctypes.c_double]] = {}
        # A signal's handler may lose a line of the log, and count that, while its thread counts.
        self._lock = threading.RLock()

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add to a counter or a gauge."""
        self.record(((metric.of(*labels), by),))

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge, a reading or a latest time."""
        with self._lock:
            self._values_of(metric.of(*labels))[0] = value

    def record(
        self, counts: Iterable[tuple[Key, float]], times: Iterable[tuple[Key, float]] = (), trace_id: str = ""
    ) -> None:
        """Add to several counters, and seconds to histograms; a sampled trace becomes their exemplar."""
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
        """Add another block's numbers; its gauges and readings ended with it."""
        with self._lock:
            for key, values in series.items():
                if key == SERIES_DROPPED.of():
                    self._block.dropped += int(values[0])
                elif key[0] not in _ENDING:
                    own = self._values_of(key)
                    for number, value in enumerate(_merged(key, own, values)):
                        own[number] = value

    def _values_of(self, key: Key) -> ctypes.Array[ctypes.c_double]:
        """The numbers of a series, new or known."""
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
    """All blocks, in shared memory. Make it in the arbiter, before any fork.

    Memory is taken only for slots that are used. `common` is the arbiter's own block, with the counts of past workers.
    """

    def __init__(self, slots: int = 1) -> None:
        [self._head] = shared_array(_Head, 1)
        self._head.started_s = time.time()
        self._blocks = shared_array(_Block, slots + 1)
        self._exemplars = ExemplarStore(slots)
        self.common = WorkerMetrics(self._blocks[0], self._exemplars.common)

    @property
    def started_s(self) -> float:
        """When the service was started, in Unix time."""
        return float(self._head.started_s)

    def claim(self, slot: int) -> None:
        """Arbiter, before a fork: this slot is in use from now on."""
        self._head.high = max(self._head.high, slot + 1)

    def worker_metrics(self, slot: int = 0) -> WorkerMetrics:
        """Worker, once, after its fork: what it counts with."""
        return WorkerMetrics(self._blocks[slot + 1], self._exemplars.of_worker(slot))

    def fold(self, slot: int) -> None:
        """Arbiter, when a worker has been reaped: keep its counts, and clear its block for the next worker."""
        block = self._blocks[slot + 1]
        self._head.version += 1
        self.common.add_block(dict(_series(block)))
        ctypes.memset(ctypes.byref(block), 0, ctypes.sizeof(block))
        self._head.version += 1
        self._exemplars.fold(slot)

    def read(self) -> Series:
        """The numbers of the whole service. Read again while the arbiter folds, so that no counter seems to go back."""
        for _ in range(_TRIES):
            version = self._head.version
            found = self._add_up()
            if version % 2 == 0 and self._head.version == version:
                break
            time.sleep(_TRY_S)
        return found

    def exemplars(self) -> Exemplars:
        """For each bucket of a histogram the last sampled trace that fell into it, if there was one."""
        return self._exemplars.read(self._head.high + 1)

    def _add_up(self) -> Series:
        found: dict[Key, Sequence[float]] = {}
        for block in range(self._head.high + 1):
            for key, values in _series(self._blocks[block]):
                found[key] = _merged(key, found[key], values) if key in found else values
        return found


def _series(block: _Block) -> Iterator[tuple[Key, Sequence[float]]]:
    """The series of a block, in the order in which they were begun."""
    if block.dropped:
        yield SERIES_DROPPED.of(), (float(block.dropped), *[0.0] * (_VALUES - 1))
    for number in range(min(block.used, SERIES)):
        series = block.series[number]
        yield tuple(series.key.decode("utf-8", "replace").split("\t")), list(series.values)


def _merged(key: Key, one: Iterable[float], other: Iterable[float]) -> list[float]:
    """The numbers of one series in two blocks together."""
    return list(map(max if key[0] in _LARGEST else add, one, other))


def count_reading(
    worker_metrics: WorkerMetrics, reading: Reading, trace_id: str = "", source: PageSource = "request"
) -> None:
    """Count an image that was read: its lines, and where its time went; or that it came from the cache."""
    if reading.from_cache:
        worker_metrics.count(CACHE_HITS, source)
        return
    times = {**_stages(reading), "total": reading.timing.total_s}
    worker_metrics.record(
        ((IMAGES.of(source), 1), (LINES.of(), len(reading.page.lines))),
        [(STAGE_SECONDS.of(stage, source), seconds) for stage, seconds in times.items()],
        trace_id,
    )


def count_model_request(worker_metrics: WorkerMetrics, readings: Sequence[Reading], seconds: float) -> None:
    """Count a request to the model API that was answered with these readings."""
    stages = [stage for reading in readings for stage in _stages(reading).items()]
    times = [(model_metrics.MODEL_STAGE_SECONDS.of(stage), spent_s) for stage, spent_s in stages]
    worker_metrics.record((), [(model_metrics.MODEL_SECONDS.of("success"), seconds), *times])
    worker_metrics.put(model_metrics.MODEL_LAST, time.time())


def count_version(
    worker_metrics: WorkerMetrics, name: str, version: str, readings: Sequence[Reading], seconds: float
) -> None:
    """Count a request to the model API for the version that read these images; for none of them, that it failed."""
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
    """Puts what `read` yields, every so often; where that raises an OSError or a failure of ours, older values stay."""

    def __init__(
        self,
        worker_metrics: WorkerMetrics,
        read: Callable[[], Iterable[tuple[Metric, float]]],
        every_s: float = SAMPLE_S,
    ) -> None:
        super().__init__(name="numbers", daemon=True)
        self._worker_metrics, self._read, self._every_s = worker_metrics, read, every_s
        self._done = threading.Event()

    def run(self) -> None:
        """See threading.Thread."""
        is_done = False
        while not is_done:
            # A disk, or a store of keys, may be away; those who need it log it.
            with suppress(OSError, OcrsvcError):
                for metric, value in self._read():
                    self._worker_metrics.put(metric, value)
            is_done = self._done.wait(self._every_s)

    def stop(self) -> None:
        """End; it may never have been started."""
        self._done.set()
        if self.is_alive():
            self.join(_END_S)
