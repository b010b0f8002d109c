"""The panels of the dashboard: what each of them shows, and by which queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ocrsvc.monitoring.objectives import ERROR_RATIO, SLOW_RATIO, Objectives
from ocrsvc.monitoring.promql import quantile, series, total_rate
from ocrsvc.telemetry import metrics, model_metrics
from ocrsvc.telemetry.metric import Metric

_CHOSEN: Final = ('job=~"$job"', 'instance=~"$instance"')
_WINDOW: Final = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """A query and how its series are called; the name may hold labels, as `{{code}}`."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: What it shows.
        unit: As Grafana calls it: s, bytes, percentunit, reqps, short.
        queries: What is drawn.
        kind: A curve over time, or one number now.
        width, height: In Grafana's grid, which has 24 columns.
        is_stacked: Whether the curves add up.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8
    height: int = 8
    is_stacked: bool = False


Row = tuple[str, tuple[Panel, ...]]


def rows(objectives: Objectives) -> tuple[Row, ...]:
    """All panels, under their headings."""
    return (
        ("Objectives", tuple(_objectives(objectives))),
        ("Requests and images", tuple(_requests())),
        ("Time", tuple(_time())),
        ("Workers", tuple(_workers())),
        ("Memory", tuple(_memory())),
        ("GPUs", tuple(_gpus())),
        ("New versions of models", tuple(_models())),
        ("Models that are loaded", tuple(_loaded_models())),
        ("TLS", tuple(_tls())),
        ("Inputs refused, documents, keys, and the service itself", tuple(_state())),
    )


def _of(metric: Metric, *matchers: str) -> str:
    """The metric's series of the chosen services."""
    return series(metric, *_CHOSEN, *matchers)


def _rate(metric: Metric, *matchers: str, by: str = "", part: str = "") -> str:
    return total_rate(metric, _WINDOW, *_CHOSEN, *matchers, by=by, part=part)


def _quantiles(metric: Metric, *matchers: str) -> tuple[Query, ...]:
    shares = (0.5, 0.95, 0.99)
    return tuple(Query(quantile(share, metric, _WINDOW, *_CHOSEN, *matchers), f"p{share:.0%}"[:-1]) for share in shares)


def _objectives(objectives: Objectives) -> Iterator[Panel]:
    job = 'job=~"$job"'
    for name, ratio, share in (("Images", ERROR_RATIO, objectives.available), ("Fast", SLOW_RATIO, objectives.fast)):
        title = {"Images": "answered", "Fast": f"read within {objectives.fast_s:g} s"}[name]
        over_3_days = f"1 - {ratio.format(window='3d')}{{{job}}}"
        yield Panel(f"Images {title}, 3 days", "percentunit", (Query(over_3_days, "{{job}}"),), "stat", 4, 6)
        burning = tuple(
            Query(f"{ratio.format(window=window)}{{{job}}} / {1 - share:.6g}", f"{{{{job}}}} {window}")
            for window in ("1h", "6h", "3d")
        )
        yield Panel(
            f"Error budget of images {title}: multiple of the rate that uses it up", "short", burning, width=8, height=6
        )


def _requests() -> Iterator[Panel]:
    yield Panel(
        "Requests by adapter", "reqps", (Query(_rate(metrics.REQUESTS, by="door"), "{{door}}"),), is_stacked=True
    )
    yield Panel("Requests by status", "reqps", (Query(_rate(metrics.REQUESTS, by="status"), "{{status}}"),))
    yield Panel("Failures", "cps", (Query(_rate(metrics.FAILURES, by="code"), "{{code}}"),))
    images = (
        Query(_rate(metrics.IMAGES), "images read"),
        Query(_rate(metrics.CACHE_HITS), "images from the cache"),
        Query(_rate(metrics.LINES), "lines read"),
    )
    yield Panel("Images and lines", "cps", images)
    yield Panel("Refused", "cps", (Query(_rate(metrics.REFUSED, by="reason"), "{{reason}}"),))
    load = (
        Query(f"sum({_of(metrics.IN_FLIGHT)})", "requests under way"),
        Query(f"sum({_of(metrics.WAITING)})", "images that wait"),
        Query(f"sum({_of(metrics.STUCK)})", "stuck engine threads"),
    )
    yield Panel("Under way and waiting", "short", load)


def _time() -> Iterator[Panel]:
    yield Panel("Seconds of an image", "s", _quantiles(metrics.STAGE_SECONDS, 'stage="total"'))
    yield Panel("Seconds in the queue", "s", _quantiles(metrics.STAGE_SECONDS, 'stage="queue"'))
    stages = 'stage!="total"'
    total, count = (_rate(metrics.STAGE_SECONDS, stages, by="stage", part=part) for part in ("sum", "count"))
    yield Panel("Mean seconds by stage", "s", (Query(f"{total} / {count}", "{{stage}}"),), is_stacked=True)
    by_adapter = quantile(0.95, metrics.REQUEST_SECONDS, _WINDOW, *_CHOSEN, by="door")
    yield Panel("Seconds of a request by adapter, p95", "s", (Query(by_adapter, "{{door}}"),))
    yield Panel(
        "Seconds of a request to the model API", "s", _quantiles(model_metrics.MODEL_SECONDS, 'outcome="success"')
    )
    stage = quantile(0.95, model_metrics.MODEL_STAGE_SECONDS, _WINDOW, *_CHOSEN, by="stage")
    since = f"time() - max({_of(model_metrics.MODEL_LAST)})"
    model = (Query(stage, "{{stage}}, p95"), Query(since, "since the last request"))
    yield Panel("Seconds of an image over the model API", "s", model)
    version = "model, version"
    asked = _rate(model_metrics.VERSION_REQUESTS, by=f"{version}, outcome")
    yield Panel(
        "Requests to the model API by version", "reqps", (Query(asked, "{{model}}/{{version}} {{outcome}}"),), width=12
    )
    engine_s = _rate(model_metrics.VERSION_SECONDS, 'stage="engine"', by=version)
    mean_s = f"{engine_s} / {_rate(model_metrics.VERSION_IMAGES, by=version)}"
    yield Panel(
        "Mean seconds of an image in the engine by version", "s", (Query(mean_s, "{{model}}/{{version}}"),), width=12
    )


def _workers() -> Iterator[Panel]:
    states = (
        Query(f"sum by (state) ({_of(metrics.WORKERS)})", "{{state}}"),
        Query(f"sum({_of(metrics.WORKERS_WANTED)})", "wanted"),
        Query(f"sum({_of(metrics.WAITING_FOR_SUCCESSOR)})", "waiting for a successor"),
        Query(f"sum({_of(metrics.WORKERS_MOST)})", "most at once"),
    )
    yield Panel("Workers", "short", states)
    replaced = f"sum by (reason) (increase({_of(metrics.RECYCLES)}[{_WINDOW}]))"
    drained = f"sum(increase({_of(metrics.DRAINS_FIRST)}[{_WINDOW}]))"
    yield Panel("Workers replaced", "short", (Query(replaced, "{{reason}}"), Query(drained, "drained first")))
    failures = (
        Query(f"sum(increase({_of(metrics.BOOT_FAILURES)}[{_WINDOW}]))", "died before they were ready"),
        Query(f"sum({_of(metrics.BOOT_FAILURES_IN_A_ROW)})", "in a row"),
    )
    yield Panel("Workers that could not start", "short", failures)
    yield Panel(
        "Requests of each worker", "short", (Query(_of(metrics.WORKER_REQUESTS), "{{instance}} {{slot}}"),), width=12
    )
    yield Panel(
        "Requests under way at each worker",
        "short",
        (Query(_of(metrics.WORKER_IN_FLIGHT), "{{instance}} {{slot}}"),),
        width=12,
    )


def _memory() -> Iterator[Panel]:
    used = (
        Query(_of(metrics.MEMORY_USED), "{{instance}} in use"),
        Query(_of(metrics.MEMORY_LIMIT), "{{instance}} limit"),
    )
    yield Panel("Memory of the container or machine", "bytes", used, width=12)
    workers = (
        Query(_of(metrics.WORKER_RSS), "{{instance}} {{slot}}"),
        Query(f"{_of(metrics.WORKER_RSS_LIMIT)} > 0", "{{instance}} {{slot}} limit"),
    )
    yield Panel("Resident memory of each worker", "bytes", workers, width=12)


def _gpus() -> Iterator[Panel]:
    used = (
        Query(_of(metrics.GPU_MEMORY_USED), "{{instance}} GPU {{gpu}} in use"),
        Query(_of(metrics.GPU_MEMORY_TOTAL), "{{instance}} GPU {{gpu}} total"),
    )
    yield Panel("Memory of each GPU", "bytes", used)
    yield Panel("GPU memory of each worker", "bytes", (Query(_of(metrics.WORKER_GPU), "{{instance}} {{slot}}"),))
    yield Panel(
        "Utilization of each GPU", "percentunit", (Query(_of(metrics.GPU_UTILIZATION), "{{instance}} GPU {{gpu}}"),)
    )


def _models() -> Iterator[Panel]:
    swaps = (
        Query(_rate(model_metrics.MODEL_SWAPS), "swaps of workers"),
        Query(_rate(model_metrics.MODEL_REFUSALS, by="reason"), "refused: {{reason}}"),
    )
    yield Panel("Versions that began to serve, and that were refused, a second", "short", swaps)
    yield Panel("Seconds of a proof", "s", _quantiles(model_metrics.MODEL_PROOF_SECONDS))
    yield Panel("Versions refused now", "short", (Query(_of(model_metrics.MODEL_REFUSED), "{{instance}}"),), "stat")


def _loaded_models() -> Iterator[Panel]:
    memory = (
        Query(_of(model_metrics.MODELS_BYTES), "{{instance}} loaded models"),
        Query(_of(model_metrics.MODELS_LIMIT), "{{instance}} limit of a worker"),
    )
    yield Panel("Memory of loaded models", "bytes", memory)
    loads = (
        Query(f"sum({_of(model_metrics.MODELS_LOADED)})", "loaded now"),
        Query(f"sum by (outcome) (increase({_of(model_metrics.MODEL_LOADS)}[{_WINDOW}]))", "loads: {{outcome}}"),
        Query(f"sum by (reason) (increase({_of(model_metrics.MODEL_UNLOADS)}[{_WINDOW}]))", "closed: {{reason}}"),
    )
    yield Panel("Models loaded and closed", "short", loads)
    misses, every = (_rate(model_metrics.MODEL_LEASES, *only, by="model") for only in (('outcome="miss"',), ()))
    yield Panel(
        "Requests that found their model not loaded", "percentunit", (Query(f"{misses} / {every}", "{{model}}"),)
    )
    yield Panel("Seconds of a load", "s", _quantiles(model_metrics.MODEL_LOAD_SECONDS))


def _tls() -> Iterator[Panel]:
    handshakes = (Query(_rate(metrics.TLS_HANDSHAKES, by="outcome"), "{{outcome}}"),)
    yield Panel("Handshakes a second", "short", handshakes)
    read = (Query(f"sum by (outcome) ({_of(metrics.TLS_READS)})", "{{outcome}}"),)
    yield Panel("Certificates read since the start", "short", read)
    left = (Query(f"{_of(metrics.TLS_NOT_AFTER)} - time()", "{{instance}}"),)
    yield Panel("The certificate expires in", "s", left, "stat")


def _state() -> Iterator[Panel]:
    denied = (Query(f"sum by (kind) ({_of(metrics.DENIED)})", "{{kind}}"),)
    yield Panel("Inputs refused because they crash", "short", denied, width=4)
    disk = (
        Query(_of(metrics.TASKS_BYTES), "{{instance}} documents"),
        Query(_of(metrics.TASKS_LIMIT), "{{instance}} limit"),
        Query(_of(metrics.TASKS_DISK_FREE), "{{instance}} free"),
    )
    yield Panel("Disk space of documents", "bytes", disk, width=6)
    kept = Query(_of(metrics.TASKS), "{{instance}}"), Query(_of(metrics.TASKS_WAITING), "{{instance}} not read yet")
    yield Panel("Documents", "short", kept, width=4)
    became = (Query(f"sum by (event) ({_of(metrics.JOBS)})", "{{event}}"),)
    yield Panel("Jobs since the start", "short", became, width=5)
    keys = (
        Query(f"max({_of(metrics.KEYS)})", "valid"),
        Query(f"max({_of(metrics.KEYS_NEAR_QUOTA)})", "near their quota"),
    )
    yield Panel("API keys", "short", keys, width=5)
    up = (Query(f"time() - {_of(metrics.STARTED)}", "{{instance}}"),)
    yield Panel("Up since", "s", up, "stat", 6, 6)
    build = (Query(f"count by (version) ({_of(metrics.BUILD)})", "{{version}}"),)
    yield Panel("Versions", "short", build, "stat", 6, 6)
    engine = (
        Query(
            f"count by (name, model, device, provider) ({_of(metrics.ENGINE)})",
            "{{name}} {{model}} {{device}} {{provider}}",
        ),
    )
    yield Panel("Engines", "short", engine, "stat", 6, 6)
    lost = (
        Query(f"sum({_of(metrics.EVENTS_DROPPED)})", "access log lines"),
        Query(f"sum({_of(metrics.LINES_DROPPED)})", "log lines"),
        Query(f"sum({_of(metrics.SPANS_DROPPED)})", "spans of traces"),
        Query(f"sum({_of(metrics.SERIES_DROPPED)})", "series"),
    )
    yield Panel("Lost since the start", "short", lost, "stat", 6, 6)
    sent = (Query(_rate(metrics.SPANS), "spans"),)
    yield Panel("Spans of traces a second", "short", sent, "stat", 6, 6)
