"""Counters of the whole service, in shared memory that all workers write, whichever of them answers.

The arbiter makes one `MetricsStore` before any fork: a block for each worker's slot, and a common one. Only one process
writes a block, and only threads of one process share a lock, so a worker that is killed leaves nothing locked. When a
worker has been reaped, the arbiter adds its block to the common one and clears it: no counter goes back when workers
are replaced, nothing is left behind in files, and nothing grows with the number of workers that ever lived.

A block is a list of named series, found by name and not by position: workers with newer code, after a SIGHUP, may count
what the arbiter does not know.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    # records needs numpy, which must not come into the arbiter.
    from ocrsvc.records import Reading

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the buckets of every histogram, in seconds; one more bucket takes what is above the last."""

SAMPLE_S: Final = 0.5

Kind = Literal["counter", "gauge", "histogram"]

Key = tuple[str, ...]
"""A series: its kind, its metric's name, and the values of its labels."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is counted.

    Attributes:
        name: By the conventions of Prometheus, without the `_total` of a counter.
        kind: Counters and histograms outlive their worker, gauges end with it.
        help: One sentence.
        labels: Names of the labels; their values must come from small, fixed sets.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def of(self, *labels: str) -> Key:
        """The key of one of its series."""
        return (self.kind, self.name, *labels)


REQUESTS: Final = Metric(
    "ocrsvc_requests", "counter", "Requests answered, by door, HTTP status and code.", ("door", "status", "code")
)
REQUEST_SECONDS: Final = Metric(
    "ocrsvc_request_seconds", "histogram", "Seconds from the headers of a request to its answer.", ("door",)
)
IN_FLIGHT: Final = Metric("ocrsvc_in_flight_requests", "gauge", "Requests under way now.")
REFUSED: Final = Metric("ocrsvc_refused", "counter", "Requests and images that were not taken, by reason.", ("reason",))
FAILURES: Final = Metric(
    "ocrsvc_failures", "counter", "Failures told to clients, of requests and of single images in them.", ("code",)
)
IMAGES: Final = Metric("ocrsvc_images", "counter", "Images read.")
CACHE_HITS: Final = Metric("ocrsvc_cache_hits", "counter", "Images answered from pages that were read before.")
LINES: Final = Metric("ocrsvc_lines", "counter", "Lines of text read.")
STAGE_SECONDS: Final = Metric(
    "ocrsvc_stage_seconds", "histogram", "Seconds that an image that was read spent in each stage.", ("stage",)
)
BOOT_FAILURES: Final = Metric("ocrsvc_boot_failures", "counter", "Workers that died before they were ready.")
EVENTS_DROPPED: Final = Metric(
    "ocrsvc_access_events_dropped", "counter", "Lines of the access log that were dropped because it could not keep up."
)
SERIES_DROPPED: Final = Metric(
    "ocrsvc_series_dropped", "counter", "Series of these metrics that found no room, and are not counted; report it."
)
WAITING: Final = Metric("ocrsvc_queue_waiting_images", "gauge", "Images that wait for an engine thread.")
STUCK: Final = Metric("ocrsvc_stuck_engine_threads", "gauge", "Engine threads still busy long after the deadline.")

COUNTED: Final = (
    *(REQUESTS, REQUEST_SECONDS, IN_FLIGHT, REFUSED, FAILURES, IMAGES, CACHE_HITS, LINES, STAGE_SECONDS),
    *(BOOT_FAILURES, EVENTS_DROPPED, SERIES_DROPPED, WAITING, STUCK),
)
"""Everything that a block may hold; a new one is declared here, and then counted."""

# A series: its kind, name and label values, then its numbers; a histogram has one for each bucket, and the sum last.
_KEY_BYTES: Final = 96
_VALUES: Final = len(BUCKETS_S) + 2
_SERIES_BYTES: Final = _KEY_BYTES + 8 * _VALUES
SERIES: Final = 2048
"""Series that one block may hold: twice what all formats can make, of which a fraction is ever used. What comes after
them is not counted, and SERIES_DROPPED says so."""

# One more series, which nobody reads, takes what finds no space.
_BLOCK_HEAD_BYTES: Final = 16
_USED, _DROPPED = 0, 1
_BLOCK_BYTES: Final = _BLOCK_HEAD_BYTES + (SERIES + 1) * _SERIES_BYTES
# The version is odd while the arbiter adds a block to the common one.
_HEADER: Final = struct.Struct("=qqd")
_VERSION, _HIGH, _STARTED = 0, 1, 2
_TRIES: Final = 200
_TRY_S: Final = 0.001

Series = Mapping[Key, Sequence[float]]
"""Numbers by key. Of a counter or gauge the first one counts; a histogram has one for each
bucket, the one above the last, and the sum."""


class WorkerMetrics:
    """One block, and its only writer. All methods may be called from any thread of that process."""

    def __init__(self, block: memoryview) -> None:
        self._block = block
        self._numbers = block.cast("d")
        self._head = block[:_BLOCK_HEAD_BYTES].cast("q")
        self._offsets: dict[Key, int] = {}
        self._lock = threading.Lock()

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add to a counter or a gauge."""
        self.record(((metric.of(*labels), by),))

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge."""
        key = metric.of(*labels)
        with self._lock:
            self._numbers[self._offsets.get(key) or self._new(key)] = value

    def record(self, counts: Iterable[tuple[Key, float]], times: Iterable[tuple[Key, float]] = ()) -> None:
        """Several at once, which is cheaper: what is added to counters, and seconds for histograms; see `Metric.of`."""
        numbers, offsets = self._numbers, self._offsets
        with self._lock:
            for key, by in counts:
                numbers[offsets.get(key) or self._new(key)] += by
            for key, seconds in times:
                offset = offsets.get(key) or self._new(key)
                numbers[offset + bisect_left(BUCKETS_S, seconds)] += 1
                numbers[offset + _VALUES - 1] += seconds

    def add_block(self, series: Series) -> None:
        """Add another block's counters and histograms; its gauges ended with it."""
        with self._lock:
            for key, values in series.items():
                if key == SERIES_DROPPED.of():
                    self._head[_DROPPED] += int(values[0])
                elif key[0] != "gauge":
                    offset = self._offsets.get(key) or self._new(key)
                    for number, value in enumerate(values):
                        self._numbers[offset + number] += value

    def _new(self, key: Key) -> int:
        """The offset of a new series, as an index of doubles."""
        number = min(self._head[_USED], SERIES)
        if number == SERIES:
            self._head[_DROPPED] += 1
        begin = _BLOCK_HEAD_BYTES + number * _SERIES_BYTES
        name = "\t".join(key).encode()[:_KEY_BYTES]
        self._block[begin : begin + len(name)] = name
        self._head[_USED] = min(number + 1, SERIES)
        offset = self._offsets[key] = (begin + _KEY_BYTES) // 8
        return offset


class MetricsStore:
    """All blocks, in anonymous shared memory. Make it in the arbiter, before any fork.

    Args:
        slots: How many workers may live at once. Memory is taken only for those that do.

    Attributes:
        common: The arbiter's own block, which also holds what the workers counted that are no more.
    """

    def __init__(self, slots: int = 1) -> None:
        self._memory = memoryview(mmap.mmap(-1, _HEADER.size + (slots + 1) * _BLOCK_BYTES))
        self._head = self._memory[: _HEADER.size].cast("q")
        self._memory[: _HEADER.size].cast("d")[_STARTED] = time.time()
        self.common = WorkerMetrics(self._block(0))

    @property
    def started_s(self) -> float:
        """When the service was started, in Unix time."""
        return self._memory[: _HEADER.size].cast("d")[_STARTED]

    def claim(self, slot: int) -> None:
        """Arbiter, before a fork: this slot is in use from now on."""
        self._head[_HIGH] = max(self._head[_HIGH], slot + 1)

    def worker_metrics(self, slot: int = 0) -> WorkerMetrics:
        """Worker, once, after its fork: what it counts with."""
        return WorkerMetrics(self._block(slot + 1))

    def fold(self, slot: int) -> None:
        """Arbiter, when a worker has been reaped: keep its counts, and clear its block for the next worker."""
        block = self._block(slot + 1)
        self._head[_VERSION] += 1
        self.common.add_block(dict(_series(block)))
        block[:] = bytes(_BLOCK_BYTES)
        self._head[_VERSION] += 1

    def read(self) -> Series:
        """The numbers of the whole service. Read again while the arbiter folds, so that no counter seems to go back."""
        for _ in range(_TRIES):
            version = self._head[_VERSION]
            found = self._add_up()
            if version % 2 == 0 and self._head[_VERSION] == version:
                break
            time.sleep(_TRY_S)
        return found

    def _add_up(self) -> Series:
        found: dict[Key, Sequence[float]] = {}
        for block in range(self._head[_HIGH] + 1):
            for key, values in _series(self._block(block)):
                before = found.get(key)
                found[key] = values if before is None else [old + new for old, new in zip(before, values, strict=True)]
        return found

    def _block(self, number: int) -> memoryview:
        begin = _HEADER.size + number * _BLOCK_BYTES
        return self._memory[begin : begin + _BLOCK_BYTES]


def _series(block: memoryview) -> Iterator[tuple[Key, Sequence[float]]]:
    """The series of a block, in the order in which they were begun."""
    used, dropped = struct.unpack_from("=qq", block)
    if dropped:
        yield SERIES_DROPPED.of(), (float(dropped), *[0.0] * (_VALUES - 1))
    end = _BLOCK_HEAD_BYTES + min(used, SERIES) * _SERIES_BYTES
    for begin in range(_BLOCK_HEAD_BYTES, end, _SERIES_BYTES):
        name = bytes(block[begin : begin + _KEY_BYTES]).rstrip(b"\0").decode("utf-8", "replace")
        yield tuple(name.split("\t")), struct.unpack_from(f"={_VALUES}d", block, begin + _KEY_BYTES)


_IMAGES_KEY: Final = IMAGES.of()
_CACHE_HITS_KEY: Final = CACHE_HITS.of()
_LINES_KEY: Final = LINES.of()
_DECODE_KEY, _QUEUE_KEY, _ENGINE_KEY, _TOTAL_KEY = map(STAGE_SECONDS.of, ("decode", "queue", "engine", "total"))


def count_reading(worker_metrics: WorkerMetrics, reading: Reading) -> None:
    """Count an image that was read: its lines, and where its time went; or that it came from the cache."""
    if reading.from_cache:
        worker_metrics.record(((_CACHE_HITS_KEY, 1),))
        return
    timing = reading.timing
    worker_metrics.record(
        ((_IMAGES_KEY, 1), (_LINES_KEY, len(reading.page.lines))),
        (
            (_DECODE_KEY, timing.decode_s),
            (_QUEUE_KEY, timing.queue_s),
            (_ENGINE_KEY, timing.engine_s),
            (_TOTAL_KEY, timing.total_s),
        ),
    )


class Sampler:
    """A thread that sets the gauges that no event updates, twice a second, and costs requests nothing.

    Args:
        worker_metrics: Of this process.
        gauges: What to put, and how to read it.
    """

    def __init__(self, worker_metrics: WorkerMetrics, gauges: Iterable[tuple[Metric, Callable[[], float]]]) -> None:
        self._worker_metrics = worker_metrics
        self._gauges = tuple(gauges)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="numbers", daemon=True)

    def start(self) -> None:
        """Begin; after the fork."""
        self._thread.start()

    def stop(self) -> None:
        """End; safe to call when it was never started."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def sample(self) -> None:
        """Put the gauges once."""
        for metric, read in self._gauges:
            self._worker_metrics.put(metric, read())

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.sample()
