"""Metrics of the service add up whichever worker dies, and cost next to nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ocrsvc.errors import OcrsvcError, OperatorError
from ocrsvc.http.error_responses import ROUTING
from ocrsvc.readings import EngineInfo, Reading, Timing
from ocrsvc.records import Line, Page
from ocrsvc.registry import adapters
from ocrsvc.telemetry.metric import BUCKETS_S, Key, Metric
from ocrsvc.telemetry.metrics import (
    CACHE_HITS,
    COUNTED,
    FAILURES,
    IMAGES,
    IN_FLIGHT,
    LINES,
    REQUESTS,
    SERIES_DROPPED,
    STAGE_SECONDS,
    TASKS,
    TLS_NOT_AFTER,
    WAITING,
)
from ocrsvc.telemetry.metrics_store import SERIES, MetricsStore, Sampler, WorkerMetrics, count_reading
from ocrsvc.telemetry.prometheus import Observed, expose
from ocrsvc.telemetry.worker_table import WorkerTable

_SOON_S = 60.0
ONE_API_SUCCESS: Key = REQUESTS.of("api", "200", "ok")


def value(store: MetricsStore, key: Key) -> float:
    """A counter or a gauge; 0 when it was never touched."""
    return store.read().get(key, (0.0,))[0]


def in_a_child(work: Callable[[], object]) -> int:
    """Run in a forked process; its exit status as waitpid tells it."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_workers_are_added_up_by_whoever_is_asked() -> None:
    store = MetricsStore(slots=3)
    for slot in (0, 2):
        store.claim(slot)
        in_a_child(lambda slot=slot: store.worker_metrics(slot).count(REQUESTS, "api", "200", "ok", by=slot + 1))  # type: ignore[misc]
    assert value(store, ONE_API_SUCCESS) == 1 + 3


def test_what_a_killed_worker_counted_stays_and_its_gauges_go() -> None:
    store = MetricsStore(slots=1)
    store.claim(0)

    def count_and_die() -> None:
        worker_metrics = store.worker_metrics(0)
        worker_metrics.count(IMAGES, "request", by=7)
        worker_metrics.count(IN_FLIGHT, by=3)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(count_and_die) == signal.SIGKILL
    assert (value(store, IMAGES.of("request")), value(store, IN_FLIGHT.of())) == (7, 3)
    store.fold(0)
    assert (value(store, IMAGES.of("request")), value(store, IN_FLIGHT.of())) == (7, 0)


def test_no_counter_goes_back_or_is_lost_over_a_hundred_generations_of_workers() -> None:
    store = MetricsStore(slots=2)
    store.claim(1)
    for generation in range(100):
        worker_metrics = store.worker_metrics(1)
        worker_metrics.count(IMAGES, "request")
        worker_metrics.record((), ((STAGE_SECONDS.of("engine", "request"), 0.3),))
        store.fold(1)
        assert value(store, IMAGES.of("request")) == generation + 1
    assert sum(store.read()[STAGE_SECONDS.of("engine", "request")][:-1]) == 100


def test_a_reader_never_sees_a_counter_go_back_while_the_arbiter_folds() -> None:
    store = MetricsStore(slots=1)
    store.claim(0)
    done, seen = threading.Event(), [0.0]

    def look() -> None:
        while not done.is_set():
            seen.append(value(store, IMAGES.of("request")))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(300):
        store.worker_metrics(0).count(IMAGES, "request")
        store.fold(0)
    done.set()
    reader.join()
    assert seen == sorted(seen)
    assert value(store, IMAGES.of("request")) == 300


def test_threads_of_one_worker_lose_no_count() -> None:
    store = MetricsStore()

    def work() -> None:
        for _ in range(2000):
            store.common.count(IMAGES, "request")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(store, IMAGES.of("request")) == 16_000


def test_a_signals_handler_may_count_while_its_thread_counts() -> None:
    store = MetricsStore()

    def interrupted() -> Iterator[tuple[Key, float]]:
        store.common.count(IMAGES, "request")
        yield LINES.of(), 1

    thread = threading.Thread(target=store.common.record, args=(interrupted(),), daemon=True)
    thread.start()
    thread.join(_SOON_S)
    assert (value(store, IMAGES.of("request")), value(store, LINES.of())) == (1, 1)


def test_newer_code_in_a_worker_may_count_what_the_arbiter_has_never_heard_of() -> None:
    store = MetricsStore(slots=1)
    store.claim(0)
    unknown: Key = ("counter", "ocrsvc_of_tomorrow", "yes")
    store.worker_metrics(0).record(((unknown, 2),))
    store.fold(0)
    assert value(store, unknown) == 2


def test_more_series_than_there_is_room_for_harm_nobody() -> None:
    store = MetricsStore(slots=1)
    store.claim(0)
    for _ in range(2):
        worker_metrics = store.worker_metrics(0)
        for number in range(SERIES + 50):
            worker_metrics.count(FAILURES, f"code{number}")
        store.fold(0)
    found = dict(store.read())
    assert found.pop(SERIES_DROPPED.of())[0] == 2 * 50
    assert len(found) == SERIES
    assert {values[0] for values in found.values()} == {2.0}


def test_all_formats_with_all_their_failures_leave_half_of_the_room() -> None:
    formats = 4 + len(adapters())
    # What stops a start, or a command, never answers a request.
    of_a_format = len(set(failures(OcrsvcError)) - set(failures(OperatorError))) + len(ROUTING) + 1
    assert 2 * (formats * (of_a_format + 1) + 2 * of_a_format + len(COUNTED) + 4) <= SERIES


def failures(kind: type[OcrsvcError]) -> Iterator[tuple[int, str]]:
    """What a failure can be counted as, with all that are derived from it."""
    yield kind.status, kind.code
    for derived in kind.__subclasses__():
        yield from failures(derived)


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.001, 0), (0.0011, 1), (0.3, BUCKETS_S.index(0.5)), (60.0, 14), (3600.0, 15)],
)
def test_an_observation_falls_into_the_bucket_whose_upper_end_it_does_not_pass(seconds: float, bucket: int) -> None:
    store = MetricsStore()
    store.common.record((), ((STAGE_SECONDS.of("queue", "request"), seconds),))
    values = store.read()[STAGE_SECONDS.of("queue", "request")]
    assert [number for number, count in enumerate(values[:-1]) if count] == [bucket]
    assert values[-1] == seconds


def reading() -> Reading:
    """Two lines, and a different time for each stage."""
    box = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
    page = Page(10, 10, 0, (Line("a", 1.0, box), Line("b", 1.0, box)))
    return Reading(page, EngineInfo("e", "m", "1", "cpu", "fp32", "p"), Timing(0.002, 0.02, 0.2, 2.0))


def test_a_reading_counts_its_image_its_lines_and_its_times() -> None:
    store = MetricsStore()
    count_reading(store.common, reading())
    assert (value(store, IMAGES.of("request")), value(store, LINES.of())) == (1, 2)
    sums = {key[2]: values[-1] for key, values in store.read().items() if key[1] == STAGE_SECONDS.name}
    assert sums == {"decode": 0.002, "queue": 0.02, "engine": 0.2, "total": 2.0}


def test_a_page_of_a_job_is_not_among_those_that_a_client_waits_for() -> None:
    store = MetricsStore()
    count_reading(store.common, reading(), source="job")
    assert (value(store, IMAGES.of("job")), value(store, IMAGES.of("request"))) == (1, 0)
    assert {key[3] for key in store.read() if key[1] == STAGE_SECONDS.name} == {"job"}


def test_a_page_from_the_cache_counts_as_a_hit_and_not_as_read() -> None:
    store = MetricsStore()
    engine = EngineInfo("fake", "none", "1", "cpu", "none", "none")
    kept = Reading(Page(4, 3, 0, ()), engine, Timing(0.0, 0.0, 0.0, 0.001), from_cache=True)
    count_reading(store.common, kept)
    assert (value(store, CACHE_HITS.of("request")), value(store, IMAGES.of("request"))) == (1, 0)


def test_counting_one_image_costs_less_than_20_microseconds_of_cpu() -> None:
    """Measured: 4. A run is 500 images and the best of 20 runs counts, so that a busy machine changes nothing."""
    worker_metrics, one = MetricsStore().common, reading()

    def run() -> float:
        began = time.thread_time()
        for _ in range(500):
            count_reading(worker_metrics, one)
        return (time.thread_time() - began) / 500

    assert min(run() for _ in range(20)) < 20e-6


def test_memory_is_taken_for_living_workers_only() -> None:
    before = shared_bytes()
    store = MetricsStore(slots=1024)
    store.claim(0)
    store.worker_metrics(0).count(IMAGES, "request")
    store.read()
    assert shared_bytes() - before < 256 * 1024


def shared_bytes() -> int:
    """Resident shared memory of this process, without files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssShmem:")) * 1024


def test_a_sampler_puts_its_gauges_until_it_is_stopped() -> None:
    store = MetricsStore()
    looked = threading.Event()

    def read() -> Iterator[tuple[Metric, float]]:
        yield WAITING, 5
        looked.set()

    sampler = Sampler(store.common, read)
    sampler.start()
    assert looked.wait(_SOON_S)
    sampler.stop()
    assert value(store, WAITING.of()) == 5


def test_a_sampler_goes_on_after_a_disk_that_cannot_be_read() -> None:
    store = MetricsStore()
    looked, failures = threading.Event(), [OSError("gone")]

    def read() -> Iterator[tuple[Metric, float]]:
        if failures:
            raise failures.pop()
        yield TASKS, 3
        looked.set()

    sampler = Sampler(store.common, read, every_s=0.001)
    sampler.start()
    assert looked.wait(_SOON_S)
    sampler.stop()
    assert value(store, TASKS.of()) == 3


def test_of_what_all_workers_read_the_largest_counts_while_one_lives_that_has_read_it() -> None:
    store = MetricsStore(slots=2)
    for slot, count in ((0, 3), (1, 4)):
        store.claim(slot)
        store.worker_metrics(slot).put(TASKS, count)
    assert value(store, TASKS.of()) == 4
    for slot, left in ((1, 3), (0, 0)):
        store.fold(slot)
        assert value(store, TASKS.of()) == left


def test_a_tally_that_was_never_used_shows_nothing() -> None:
    store = MetricsStore(slots=4)
    assert isinstance(store.common, WorkerMetrics)
    assert store.read() == {}
    assert abs(store.started_s - time.time()) < _SOON_S


def test_a_service_without_tls_shows_no_end_of_a_certificate() -> None:
    store = MetricsStore()
    assert TLS_NOT_AFTER.shown_name not in exposed(store)
    store.common.put(TLS_NOT_AFTER, 1.8e9)
    assert f"\n{TLS_NOT_AFTER.shown_name} 1.8e+09\n" in exposed(store)


def exposed(store: MetricsStore) -> str:
    """The samples of /metrics, without what is said of them."""
    text = expose(Observed(store, WorkerTable()), "")[0].decode()
    return "".join(f"\n{line}\n" for line in text.splitlines() if not line.startswith("#"))
