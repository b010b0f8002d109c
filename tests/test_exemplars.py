"""Histograms name the trace of a request that fell into a bucket, whichever worker served it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from web_support import picture, running_app

from ocrsvc.telemetry.exemplars import SERIES, Exemplar, ExemplarStore
from ocrsvc.telemetry.metrics import REQUEST_SECONDS
from ocrsvc.telemetry.metrics_store import MetricsStore
from ocrsvc.telemetry.prometheus import Observed, expose
from ocrsvc.telemetry.worker_table import WorkerTable

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEY = REQUEST_SECONDS.of("api")


def in_a_child(work: Callable[[], object]) -> None:
    """Run in a forked process."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_the_last_of_all_workers_counts_and_outlives_them() -> None:
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


def test_an_exemplar_stays_for_a_second() -> None:
    store = ExemplarStore(slots=1)
    worker = store.of_worker(0)
    for at_s in (10.0, 10.5, 11.0, 11.5):
        worker.put(KEY, 3, Exemplar(TRACE, 0.2, at_s))
    assert store.read(2)[KEY][3].at_s == 11.0


def test_more_series_than_there_is_room_for_harm_nobody_and_a_half_written_one_is_left_out() -> None:
    store = ExemplarStore(slots=1)
    worker = store.of_worker(0)
    for number in range(SERIES + 10):
        worker.put(("histogram", f"m{number}"), 15, Exemplar(TRACE, 1.0, 1.0))
    assert len(store.read(2)) == SERIES
    store._blocks[1].entries[0].buckets[15].at_s = 0.0
    assert len(store.read(2)) == SERIES - 1


def test_each_worker_in_a_slot_has_room_for_all_its_series() -> None:
    store = ExemplarStore(slots=1)
    for worker, at_s in (("old", 10.0), ("new", 20.0)):
        block = store.of_worker(0)
        for number in range(SERIES):
            block.put((worker, str(number)), 0, Exemplar(TRACE, 1.0, at_s))
        assert {name for name, _ in store.read(2)} == {"old", worker}
        store.fold(0)


@pytest.mark.parametrize(("flags", "named"), [("01", True), ("00", False)])
def test_openmetrics_names_the_sampled_trace_and_the_text_format_none(flags: str, named: bool) -> None:
    with running_app() as app:
        client = app.test_client()
        client.post("/v1/ocr", data=picture(), headers={"traceparent": f"00-{TRACE}-{SPAN}-{flags}"})
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        answer, plain = client.get("/metrics", headers=accept), client.get("/metrics")
    assert answer.content_type.startswith("application/openmetrics-text")
    samples = [
        sample
        for family in text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.name == "ocrsvc_request_seconds_bucket" and sample.labels["door"] == "api"
    ]
    found = [sample for sample in samples if sample.exemplar is not None]
    assert [sample.exemplar.labels for sample in found] == ([{"trace_id": TRACE}] if named else [])
    assert all(sample.exemplar.value <= float(sample.labels["le"]) for sample in found)
    assert "trace_id" not in plain.text


def test_seconds_without_a_trace_have_no_exemplar() -> None:
    store = MetricsStore(slots=1)
    store.claim(0)
    store.worker_metrics(0).record((), ((KEY, 0.3),))
    body, _ = expose(Observed(store, WorkerTable()), "application/openmetrics-text")
    assert b"# {" not in body
    assert body.endswith(b"# EOF\n")
