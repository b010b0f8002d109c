"""Counters of the whole service, in shared memory that all workers write, whichever of them answers.

The arbiter makes one `MetricsStore` before any fork: a block for each worker's slot, and a common one. Only one process
writes a block, and only threads of one process share a lock, so a worker that is killed leaves nothing locked. When a
worker has been reaped, the arbiter adds its block to the common one and clears it: no counter goes back when workers
are replaced, nothing is left behind in files, and nothing grows with the number of workers that ever lived.

A block is a list of named series, found by name and not by position: workers with newer code, after a SIGHUP, may count
what the arbiter does not know.
"""

from __future__ import annotations

import ctypes
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import TYPE_CHECKING, Final

from ocrsvc.system.shared_memory import shared_array
from ocrsvc.telemetry.exemplars import Exemplars, ExemplarStore, WorkerExemplars, now_exemplar
from ocrsvc.telemetry.metric import BUCKETS_S, Key, Metric
from ocrsvc.telemetry.metrics import CACHE_HITS, IMAGES, LINES, SERIES_DROPPED, STAGE_SECONDS
from ocrsvc.telemetry.model_metrics import (
    MODEL_LAST,
    MODEL_SECONDS,
    MODEL_STAGE_SECONDS,
    VERSION_IMAGES,
    VERSION_REQUESTS,
    VERSION_SECONDS,
)

if TYPE_CHECKING:
    # records needs numpy, which must not come into the arbiter.
    from ocrsvc.readings import Reading

SERIES: Final = 4096
"""Series that one block may hold: twice what all formats can make, of which a fraction is ever used. What comes after
them is not counted, and SERIES_DROPPED says so."""

# Kinds whose values end with their worker, and kinds of which the largest of all workers counts.
_ENDING: Final = ("gauge", "reading")
_LARGEST: Final = ("latest", "reading")
_KEY_BYTES: Final = 96
_VALUES: Final = len(BUCKETS_S) + 2
_TRIES: Final = 200
_TRY_S: Final = 0.001

Series = Mapping[Key, Sequence[float]]
"""Numbers by key. Of all kinds but a histogram the first one counts; a histogram has one for each bucket, the
one above the last, and the sum."""


class _Series(ctypes.Structure):
    """Its kind, name and label values, separated by tabs; and its numbers, see Series."""

    _fields_ = (("key", ctypes.c_char * _KEY_BYTES), ("values", ctypes.c_double * _VALUES))


class _Block(ctypes.Structure):
    """What one process counts. One more series, which nobody reads, takes what finds no space."""

    _fields_ = (("used", ctypes.c_int64), ("dropped", ctypes.c_int64), ("series", _Series * (SERIES + 1)))


class _Head(ctypes.Structure):
    """Of the store.

    The version is odd while the arbiter adds a block to the common one; blocks from `high` on were never used.
    """

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
        """Several at once, which is cheaper: what is added to counters, and seconds for histograms; see `Metric.of`.

        Args:
            counts, times: By series.
            trace_id: Of the sampled trace in which the seconds were spent, which is their exemplar; empty for none.
        """
        with self._lock:
            for key, by in counts:
                self._values_of(key)[0] += by
            for key, seconds in times:
                values, bucket = self._values_of(key), bisect_left(BUCKETS_S, seconds)
                values[bucket] += 1
                values[-1] += seconds
                if trace_id:
                    self._exemplars.put(key, bucket, now_exemplar(trace_id, seconds))

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
        """The numbers of a series, which is begun if it is new."""
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

    Args:
        slots: How many workers may live at once. Memory is taken only for those that do.

    Attributes:
        common: The arbiter's own block, which also holds what the workers counted that are no more.
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


def count_reading(worker_metrics: WorkerMetrics, reading: Reading, trace_id: str = "") -> None:
    """Count an image that was read: its lines, and where its time went; or that it came from the cache.

    Args:
        worker_metrics: Where to.
        reading: The image.
        trace_id: As for `WorkerMetrics.record`.
    """
    if reading.from_cache:
        worker_metrics.count(CACHE_HITS)
        return
    times = {**_stages(reading), "total": reading.timing.total_s}
    worker_metrics.record(
        ((IMAGES.of(), 1), (LINES.of(), len(reading.page.lines))),
        [(STAGE_SECONDS.of(stage), seconds) for stage, seconds in times.items()],
        trace_id,
    )


def count_model_request(worker_metrics: WorkerMetrics, readings: Sequence[Reading], seconds: float) -> None:
    """Count a request to the model API that was answered with these readings."""
    stages = [stage for reading in readings for stage in _stages(reading).items()]
    times = [(MODEL_STAGE_SECONDS.of(stage), spent_s) for stage, spent_s in stages]
    worker_metrics.record((), [(MODEL_SECONDS.of("success"), seconds), *times])
    worker_metrics.put(MODEL_LAST, time.time())


def count_version(
    worker_metrics: WorkerMetrics, name: str, version: str, readings: Sequence[Reading], seconds: float
) -> None:
    """Count a request to the model API for the version that read these images; for none of them, that it failed."""
    spent = [("success" if readings else "fail", seconds)]
    spent += [stage for reading in readings for stage in _stages(reading).items()]
    worker_metrics.record(
        (
            (VERSION_REQUESTS.of(name, version, spent[0][0]), 1),
            (VERSION_IMAGES.of(name, version), len(readings)),
            *((VERSION_SECONDS.of(name, version, stage), spent_s) for stage, spent_s in spent),
        )
    )


def _stages(reading: Reading) -> dict[str, float]:
    timing = reading.timing
    return {"decode": timing.decode_s, "queue": timing.queue_s, "engine": timing.engine_s}
