"""The service's metrics in the formats that Prometheus scrapes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar

from ocrsvc import __version__
from ocrsvc.results import EngineInfo
from ocrsvc.system.memory import read_memory_use
from ocrsvc.telemetry import metrics
from ocrsvc.telemetry.exemplars import Exemplars
from ocrsvc.telemetry.metric import BUCKETS_S, Metric
from ocrsvc.telemetry.metrics import COUNTED
from ocrsvc.telemetry.metrics_store import MetricsStore, Series
from ocrsvc.telemetry.worker_table import Reason, State, WorkerEntry, WorkerTable

_BOUNDS: Final = (*map(str, BUCKETS_S), "+Inf")

Samples = Mapping[tuple[str, ...], float]
"""The value of each series of a metric, by the values of its labels."""


class Row(NamedTuple):
    """A field of the worker table, and the metric that exposes its value to Prometheus."""

    field: str
    metric: Metric


HEAD_ROWS: Final = (
    Row("base", metrics.WORKERS_WANTED),
    Row("max_live", metrics.WORKERS_MOST),
    Row("boot_failures", metrics.BOOT_FAILURES_IN_A_ROW),
    Row("drain_first", metrics.DRAINS_FIRST),
)
"""The service-wide fields of the worker table (worker_table.Head), and the metric that exposes each."""

ENTRY_ROWS: Final = (
    Row("rss_bytes", metrics.WORKER_RSS),
    Row("rss_hard_bytes", metrics.WORKER_RSS_LIMIT),
    Row("gpu_bytes", metrics.WORKER_GPU),
    Row("requests", metrics.WORKER_REQUESTS),
    Row("in_flight", metrics.WORKER_IN_FLIGHT),
)
"""Worker fields of worker_table.WorkerEntry, labelled by slot: process ids as labels would add ever more series."""

GPU_ROWS: Final = (
    Row("gpu_used_bytes", metrics.GPU_MEMORY_USED),
    Row("gpu_total_bytes", metrics.GPU_MEMORY_TOTAL),
    Row("gpu_busy_ratio", metrics.GPU_UTILIZATION),
)
"""GPU fields of worker_table.WorkerEntry. If several workers share a GPU, the latest measurement is exposed."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the metrics are read from. `engine` is None until it is loaded; `denied` counts denylist entries by kind."""

    store: MetricsStore
    worker_table: WorkerTable
    engine: EngineInfo | None = None
    denied: Mapping[str, int] = field(default_factory=dict)


def expose(observed: Observed, accept: str) -> tuple[bytes, str]:
    """The response's body and content type; the header `accept` selects the text format or OpenMetrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families(observed)))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterable[Family]:
        """Return the metric families; prometheus_client calls this."""
        return self._families


def families(observed: Observed) -> Iterator[Family]:
    """All metrics of the service as metric families of prometheus_client."""
    series, exemplars = observed.store.read(), observed.store.exemplars()
    for metric in COUNTED:
        yield _counted(metric, series, exemplars)
    yield from _head(observed.worker_table)
    yield from _entries(observed.worker_table)
    use = read_memory_use()
    yield _family(metrics.MEMORY_USED, {(): use.used_bytes})
    yield _family(metrics.MEMORY_LIMIT, {(): use.limit_bytes})
    yield _family(metrics.DENIED, {(kind,): count for kind, count in observed.denied.items()})
    yield _family(metrics.STARTED, {(): observed.store.started_s})
    yield InfoMetricFamily(metrics.BUILD.name, metrics.BUILD.help, {"version": __version__})
    if observed.engine is not None:
        yield InfoMetricFamily(metrics.ENGINE.name, metrics.ENGINE.help, asdict(observed.engine))


def _family(metric: Metric, samples: Samples) -> Family:
    """The metric family of a counter or gauge."""
    kind = CounterMetricFamily if metric.shown_kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


def _counted(metric: Metric, series: Series, exemplars: Exemplars) -> Family:
    by_labels = {key[2:]: values for key, values in series.items() if key[:2] == (metric.kind, metric.name)}
    if metric.kind != "reading":
        # Expose series with known labels as 0 before their first event, so that Prometheus sees the first increase.
        known = metric.known if metric.labels else ((),)
        by_labels = dict.fromkeys(known, (0.0,) * (len(_BOUNDS) + 1)) | by_labels
    if metric.kind == "histogram":
        return _histogram(metric, by_labels, exemplars)
    return _family(metric, {labels: values[0] for labels, values in by_labels.items()})


def _histogram(metric: Metric, by_labels: Mapping[tuple[str, ...], Sequence[float]], exemplars: Exemplars) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    for labels, values in by_labels.items():
        traces = exemplars.get(metric.of(*labels), {})
        shown = {bucket: Exemplar({"trace_id": trace}, value, at_s) for bucket, (trace, value, at_s) in traces.items()}
        buckets = [
            (bound, count, shown[number]) if number in shown else (bound, count)
            for number, (bound, count) in enumerate(zip(_BOUNDS, accumulate(values[:-1]), strict=True))
        ]
        family.add_metric(labels, buckets=buckets, sum_value=values[-1])
    return family


def _head(worker_table: WorkerTable) -> Iterator[Family]:
    for row in HEAD_ROWS:
        yield _family(row.metric, {(): getattr(worker_table.head, row.field)})
    recycles: Samples = {(reason.name.lower(),): worker_table.head.recycles[reason] for reason in Reason if reason}
    yield _family(metrics.RECYCLES, recycles)


def _entries(worker_table: WorkerTable) -> Iterator[Family]:
    live = worker_table.live()
    states = [State(worker.state) for worker in live]
    yield _family(metrics.WORKERS, {(state.name.lower(),): states.count(state) for state in State if state})
    yield _family(metrics.WAITING_FOR_SUCCESSOR, {(): sum(worker.needs_replacement for worker in live)})
    entries = {str(worker.slot): worker_table.entry(worker.slot) for worker in live}
    for row in ENTRY_ROWS:
        yield _family(row.metric, {(slot,): getattr(entry, row.field) for slot, entry in entries.items()})
    for row in GPU_ROWS:
        yield _family(row.metric, latest_by_gpu(entries.values(), row))


def latest_by_gpu(entries: Iterable[WorkerEntry], row: Row) -> Samples:
    """For each GPU, the latest value: that of the worker which read it last."""
    read_at = "gpu_busy_read_s" if row.metric is metrics.GPU_UTILIZATION else "gpu_read_s"
    read = sorted((entry for entry in entries if getattr(entry, read_at)), key=lambda entry: getattr(entry, read_at))
    return {(str(entry.gpu),): getattr(entry, row.field) for entry in read}
