"""The metrics of the service as Prometheus text, and its workers as a list for operators.

Each field of the worker table that is shown is one row of a table here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar

from ocrsvc import __version__
from ocrsvc.records import EngineInfo
from ocrsvc.telemetry.exemplars import Exemplar as TracedValue
from ocrsvc.telemetry.exemplars import Exemplars
from ocrsvc.telemetry.metrics_store import BUCKETS_S, COUNTED, Metric, MetricsStore, Series
from ocrsvc.telemetry.worker_limits import Reason
from ocrsvc.telemetry.worker_table import State, WorkerEntry, WorkerTable

_BOUNDS: Final = (*map(str, BUCKETS_S), "+Inf")


@dataclass(frozen=True, slots=True)
class Row:
    """A field of the worker table that is shown as it stands: its own name, and the metric's name, kind and help."""

    field: str
    name: str
    kind: type[GaugeMetricFamily | CounterMetricFamily]
    help: str


HEAD_ROWS: Final = (
    Row("base", "ocrsvc_workers_wanted", GaugeMetricFamily, "Workers that there should be, without successors."),
    Row("most_live", "ocrsvc_workers_most", GaugeMetricFamily, "Most workers alive at once since the start."),
    Row("boot_failures", "ocrsvc_boot_failures_in_a_row", GaugeMetricFamily, "Failed boots since the last good one."),
    Row("drain_first", "ocrsvc_drains_first", CounterMetricFamily, "Workers that went before their successor loaded."),
)
"""Fields of worker_table.Head, one number for the service."""

ENTRY_ROWS: Final = (
    Row("rss_bytes", "ocrsvc_worker_rss_bytes", GaugeMetricFamily, "Resident memory of a worker."),
    Row("gpu_bytes", "ocrsvc_worker_gpu_bytes", GaugeMetricFamily, "Memory of the GPU that a worker holds."),
    Row("requests", "ocrsvc_worker_requests", GaugeMetricFamily, "Requests that the worker in this slot has served."),
    Row("in_flight", "ocrsvc_worker_in_flight_requests", GaugeMetricFamily, "Requests that hold a thread of a worker."),
)
"""Fields of worker_table.WorkerEntry, one number for each worker. The label is the slot: process ids would pile up."""


def expose(store: MetricsStore, worker_table: WorkerTable, engine: EngineInfo | None, accept: str) -> tuple[bytes, str]:
    """The body and the content type of an answer to Prometheus.

    Args:
        store, worker_table: Those of the whole service.
        engine: What reads in this worker; None while it is not loaded.
        accept: The request's Accept header, which chooses between the text format and OpenMetrics.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families(store, worker_table, engine)))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Families(Collector):
    """What the library asks for the families."""

    def __init__(self, found: Iterable[Family]) -> None:
        self._found = tuple(found)

    def collect(self) -> Iterable[Family]:
        """The families."""
        return self._found


def families(store: MetricsStore, worker_table: WorkerTable, engine: EngineInfo | None) -> Iterator[Family]:
    """Every metric of the service."""
    series, exemplars = store.read(), store.exemplars()
    for metric in COUNTED:
        yield _counted(metric, series, exemplars)
    yield from _head(worker_table)
    yield from _entries(worker_table)
    yield GaugeMetricFamily("process_start_time_seconds", "Start of the service, in Unix time.", store.started_s)
    yield InfoMetricFamily("ocrsvc_build", "The service itself.", {"version": __version__})
    if engine is not None:
        yield InfoMetricFamily("ocrsvc_engine", "What reads in the worker that answers.", asdict(engine))


def _counted(metric: Metric, series: Series, exemplars: Exemplars) -> Family:
    found = {key[2:]: values for key, values in series.items() if key[:2] == (metric.kind, metric.name)}
    if not metric.labels:
        # What never happened is 0, so that its first time can be seen as an increase.
        found = {(): found.get((), (0.0,) * (len(_BOUNDS) + 1))}
    if metric.kind == "histogram":
        return _histogram(metric, found, exemplars)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, values in found.items():
        family.add_metric(labels, values[0])
    return family


def _histogram(metric: Metric, found: Mapping[tuple[str, ...], Sequence[float]], exemplars: Exemplars) -> Family:
    """The text format leaves exemplars out, OpenMetrics has them."""
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, values in found.items():
        traces = exemplars.get(metric.of(*labels), {})
        buckets = [
            (bound, count, _exemplar(traces[number])) if number in traces else (bound, count)
            for number, (bound, count) in enumerate(zip(_BOUNDS, accumulate(values[:-1]), strict=True))
        ]
        family.add_metric(labels, buckets=buckets, sum_value=values[-1])
    return family


def _exemplar(found: TracedValue) -> Exemplar:
    return Exemplar({"trace_id": found.trace_id}, found.value, found.at_s)


def _head(worker_table: WorkerTable) -> Iterator[Family]:
    for row in HEAD_ROWS:
        yield row.kind(row.name, row.help, getattr(worker_table.head, row.field))
    recycles = CounterMetricFamily("ocrsvc_recycles", "Workers replaced, by reason.", labels=("reason",))
    for reason in Reason:
        if reason is not Reason.NONE:
            recycles.add_metric((reason.name.lower(),), worker_table.head.recycles[reason])
    yield recycles


def _entries(worker_table: WorkerTable) -> Iterator[Family]:
    live = worker_table.live()
    states = GaugeMetricFamily("ocrsvc_workers", "Workers, by state.", labels=("state",))
    for state in State:
        if state is not State.FREE:
            states.add_metric((state.name.lower(),), sum(worker.state is state for worker in live))
    yield states
    for row in ENTRY_ROWS:
        family = row.kind(row.name, row.help, labels=("slot",))
        for worker in live:
            family.add_metric((str(worker.slot),), getattr(worker_table.entry(worker.slot), row.field))
        yield family


def workers_to_list(worker_table: WorkerTable) -> list[dict[str, object]]:
    """Every worker as an operator sees it, in the order of the entries."""
    now_s = time.monotonic()
    return [_worker_to_dict(worker.slot, worker_table.entry(worker.slot), now_s) for worker in worker_table.live()]


def _worker_to_dict(number: int, entry: WorkerEntry, now_s: float) -> dict[str, object]:
    ages = {
        f"{event}_s_ago": round(now_s - moment, 3) if (moment := getattr(entry, f"{event}_s")) else None
        for event in ("forked", "ready", "wanted", "drained")
    }
    return {
        "slot": number,
        "pid": entry.pid or None,
        "state": State(entry.state).name.lower(),
        "reason": Reason(entry.reason).name.lower() if entry.reason else None,
        "requests": entry.requests,
        "in_flight": entry.in_flight,
        "rss_bytes": entry.rss_bytes,
        "card": entry.gpu,
        **ages,
    }
