"""Metrics survive dead workers, and histogram buckets have trace IDs as exemplars."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from image_support import png
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from web_support import running_app

from ocrsvc.errors import OcrsvcError, OperatorError
from ocrsvc.http.error_responses import ROUTING
from ocrsvc.plugins import adapters
from ocrsvc.results import EngineInfo, Line, Page, Reading, Timing
from ocrsvc.telemetry import exemplars, metrics
from ocrsvc.telemetry.exemplars import Exemplar, ExemplarStore
from ocrsvc.telemetry.metric import BUCKETS_S, Key, Metric
from ocrsvc.telemetry.metrics_store import SERIES, MetricsStore, Sampler, count_reading
from ocrsvc.telemetry.prometheus import Observed, expose
from ocrsvc.telemetry.worker_table import WorkerTable

_SOON_S = 60.0


def value(store: MetricsStore, key: Key) -> float:
    return store.read().get(key, (0.0,))[0]


def test_counters_do_not_decrease_while_the_arbiter_folds() -> None:
    store = MetricsStore(slots=1)
    store.claim(0)
    done, seen = threading.Event(), [0.0]

    def look() -> None:
        while not done.is_set():
            seen.append(value(store, metrics.IMAGES.of("request")))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(300):
        store.worker_metrics(0).count(metrics.IMAGES, "request")
        store.fold(0)
    done.set()
    reader.join()
    assert seen == sorted(seen)
    assert value(store, metrics.IMAGES.of("request")) == 300


def test_signal_handler_may_count_while_its_thread_counts() -> None:
    store = MetricsStore()

    def interrupted() -> Iterator[tuple[Key, float]]:
        store.common.count(metrics.IMAGES, "request")
        yield metrics.LINES.of(), 1

    thread = threading.Thread(target=store.common.record, args=(interrupted(),), daemon=True)
    thread.start()
    thread.join(_SOON_S)
    assert (value(store, metrics.IMAGES.of("request")), value(store, metrics.LINES.of())) == (1, 1)


def test_worker_may_count_metrics_unknown_to_the_arbiter() -> None:
    store = MetricsStore(slots=1)
    store.claim(0)
    unknown: Key = ("counter", "ocrsvc_of_tomorrow", "yes")
    store.worker_metrics(0).record(((unknown, 2),))
    store.fold(0)
    assert value(store, unknown) == 2


def test_excess_series_are_dropped_and_counted() -> None:
    store = MetricsStore(slots=1)
    store.claim(0)
    for _ in range(2):
        worker_metrics = store.worker_metrics(0)
        for number in range(SERIES + 50):
            worker_metrics.count(metrics.FAILURES, f"code{number}")
        store.fold(0)
    found = dict(store.read())
    assert found.pop(metrics.SERIES_DROPPED.of())[0] == 2 * 50
    assert len(found) == SERIES
    assert {values[0] for values in found.values()} == {2.0}


def test_all_formats_and_failures_fill_at_most_half_of_the_series() -> None:
    formats = 4 + len(adapters())
    # An OperatorError stops a start or a command; it never answers a request.
    of_a_format = len(set(failures(OcrsvcError)) - set(failures(OperatorError))) + len(ROUTING) + 1
    assert 2 * (formats * (of_a_format + 1) + 2 * of_a_format + len(metrics.COUNTED) + 4) <= SERIES


def failures(kind: type[OcrsvcError]) -> Iterator[tuple[int, str]]:
    yield kind.status, kind.code
    for derived in kind.__subclasses__():
        yield from failures(derived)


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (0.3, BUCKETS_S.index(0.5)), (60.0, 14), (3600.0, 15)]
)
def test_observation_counts_in_the_bucket_of_its_upper_bound(seconds: float, bucket: int) -> None:
    store = MetricsStore()
    store.common.record((), ((metrics.STAGE_SECONDS.of("queue", "request"), seconds),))
    values = store.read()[metrics.STAGE_SECONDS.of("queue", "request")]
    assert [number for number, count in enumerate(values[:-1]) if count] == [bucket]
    assert values[-1] == seconds


@pytest.mark.parametrize(("source", "from_cache"), [("request", False), ("job", False), ("request", True)])
def test_read_image_counts_its_lines_and_times(source: metrics.PageSource, from_cache: bool) -> None:
    store, box = MetricsStore(), ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
    page = Page(10, 10, 0, (Line("a", 1.0, box), Line("b", 1.0, box)))
    info, timing = EngineInfo("e", "m", "1", "cpu", "fp32", "p"), Timing(0.002, 0.02, 0.2, 2.0)
    count_reading(store.common, Reading(page, info, timing, from_cache=from_cache), source=source)
    images = {metric: value(store, metric.of(source)) for metric in (metrics.IMAGES, metrics.CACHE_HITS)}
    assert images == {metrics.IMAGES: not from_cache, metrics.CACHE_HITS: from_cache}
    found = {key[2:]: values[-1] for key, values in store.read().items() if key[1] == metrics.STAGE_SECONDS.name}
    if not from_cache:
        assert value(store, metrics.LINES.of()) == 2
        times = {"decode": 0.002, "queue": 0.02, "engine": 0.2, "total": 2.0}
        assert found == {(stage, source): seconds for stage, seconds in times.items()}


def test_unused_slots_take_no_memory() -> None:
    before = shared_bytes()
    store = MetricsStore(slots=1024)
    store.claim(0)
    store.worker_metrics(0).count(metrics.IMAGES, "request")
    store.read()
    assert shared_bytes() - before < 256 * 1024


def shared_bytes() -> int:
    """Return the resident shared memory of this process, without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssShmem:")) * 1024


def test_sampler_continues_after_a_disk_error() -> None:
    store, looked, failures = MetricsStore(), threading.Event(), [OSError("gone")]

    def read() -> Iterator[tuple[Metric, float]]:
        if failures:
            raise failures.pop()
        yield metrics.JOBS_KEPT, 3
        looked.set()

    sampler = Sampler(store.common, read, every_s=0.001)
    sampler.start()
    assert looked.wait(_SOON_S)
    sampler.stop()
    assert value(store, metrics.JOBS_KEPT.of()) == 3


def test_the_largest_value_of_living_workers_counts() -> None:
    store = MetricsStore(slots=2)
    for slot, count in ((0, 3), (1, 4)):
        store.claim(slot)
        store.worker_metrics(slot).put(metrics.JOBS_KEPT, count)
    assert value(store, metrics.JOBS_KEPT.of()) == 4
    for slot, left in ((1, 3), (0, 0)):
        store.fold(slot)
        assert value(store, metrics.JOBS_KEPT.of()) == left


def test_no_certificate_expiry_without_tls() -> None:
    store = MetricsStore()
    assert metrics.TLS_NOT_AFTER.shown_name not in exposed(store)
    store.common.put(metrics.TLS_NOT_AFTER, 1.8e9)
    assert f"\n{metrics.TLS_NOT_AFTER.shown_name} 1.8e+09\n" in exposed(store)


def exposed(store: MetricsStore) -> str:
    text = expose(Observed(store, WorkerTable()), "")[0].decode()
    return "".join(f"\n{line}\n" for line in text.splitlines() if not line.startswith("#"))


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEY = metrics.REQUEST_SECONDS.of("api")


def in_a_child(work: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_the_latest_exemplar_of_all_workers_outlives_them() -> None:
    store = ExemplarStore(slots=2)
    for slot, at_s in ((0, 50.0), (1, 40.0)):
        exemplar = Exemplar(f"{slot}" * 32, 0.2, at_s)
        in_a_child(lambda slot=slot, exemplar=exemplar: store.of_worker(slot).put(KEY, 3, exemplar))  # type: ignore[misc]
    assert store.read(3) == {KEY: {3: Exemplar("0" * 32, 0.2, 50.0)}}
    for slot in (0, 1):
        store.fold(slot)
    assert store.read(1) == {KEY: {3: Exemplar("0" * 32, 0.2, 50.0)}}
    store.of_worker(0).put(KEY, 3, Exemplar("2" * 32, 0.1, 60.0))
    assert store.read(2)[KEY][3].trace_id == "2" * 32


def test_excess_exemplars_are_dropped_and_half_written_ones_skipped() -> None:
    store = ExemplarStore(slots=1)
    worker = store.of_worker(0)
    for number in range(exemplars.SERIES + 10):
        worker.put(("histogram", f"m{number}"), 15, Exemplar(TRACE, 1.0, 1.0))
    assert len(store.read(2)) == exemplars.SERIES
    store._blocks[1].entries[0].buckets[15].at_s = 0.0
    assert len(store.read(2)) == exemplars.SERIES - 1


@pytest.mark.parametrize(("flags", "named"), [("01", True), ("00", False)])
def test_only_openmetrics_has_exemplars_of_sampled_traces(flags: str, named: bool) -> None:
    with running_app() as app:
        client = app.test_client()
        client.post("/v1/ocr", data=png(), headers={"traceparent": f"00-{TRACE}-{SPAN}-{flags}"})
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        answer, plain = client.get("/metrics", headers=accept), client.get("/metrics")
    assert answer.content_type.startswith("application/openmetrics-text")
    samples = [
        sample
        for family in text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.name == "ocrsvc_request_seconds_bucket" and sample.labels["adapter"] == "api"
    ]
    found = [sample for sample in samples if sample.exemplar is not None]
    assert [sample.exemplar.labels for sample in found] == ([{"trace_id": TRACE}] if named else [])
    assert all(sample.exemplar.value <= float(sample.labels["le"]) for sample in found)
    assert "trace_id" not in plain.text
