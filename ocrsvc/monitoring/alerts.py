"""The alerts: what is wrong with a service, when its metrics show it, and what to look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ocrsvc.monitoring.objectives import Objectives, recordings
from ocrsvc.monitoring.objectives import alerts as objective_alerts
from ocrsvc.monitoring.promql import new_or_increased, one_of, quantile, series, total_rate
from ocrsvc.monitoring.rules import Alert, Group, rules_file
from ocrsvc.telemetry import metrics, model_metrics

_COMMENT: Final = "Made by `ocrsvc metrics --alerts`; docs/metrics.md says what each is."
# One process tree of the service.
_INSTANCE: Final = "namespace, job, instance"


def alerts_file(objectives: Objectives) -> str:
    """The text of deploy/prometheus/alerts.yml."""
    return rules_file(groups(objectives), _COMMENT)


def groups(objectives: Objectives) -> tuple[Group, ...]:
    """All rules, in the order in which they are evaluated."""
    return (
        Group("ocrsvc_objectives", (*recordings(objectives), *objective_alerts(objectives))),
        Group("ocrsvc_workers", tuple(_workers())),
        Group("ocrsvc_load", tuple(_load())),
        Group("ocrsvc_models", tuple(_models())),
        Group("ocrsvc_keys", tuple(_keys())),
        Group("ocrsvc_tls", tuple(_certificates())),
        Group("ocrsvc_memory", tuple(_memory())),
        Group("ocrsvc_state", tuple(_state())),
    )


def _workers() -> Iterator[Alert]:
    ready, draining = (series(metrics.WORKERS, f'state="{state}"') for state in ("ready", "draining"))
    for_need = series(metrics.RECYCLES, 'reason=~"rss_.*|gpu_.*|stuck"')
    replaced = f"sum by ({_INSTANCE}) (increase({for_need}[1h]))"
    yield Alert(
        "OcrsvcAbsent",
        f"absent({series(metrics.BUILD)})",
        *("5m", "critical"),
        "No ocrsvc is scraped",
        "Is it running, and may Prometheus ask it for /metrics (OCRSVC_OPS)?",
    )
    yield Alert(
        "OcrsvcDown",
        f"up == 0 and on (job) last_over_time({series(metrics.BUILD)}[1h])",
        *("2m", "critical"),
        "{{ $labels.instance }} does not answer Prometheus",
        "Its log and `ocrsvc status` on its machine; the arbiter logs why it ends.",
    )
    yield Alert(
        "OcrsvcNoWorkerReady",
        f"{ready} == 0",
        *("1m", "critical"),
        "No worker of {{ $labels.instance }} is ready",
        "The workers' own lines in the log: an engine that cannot be opened, or memory that is not there.",
    )
    yield Alert(
        "OcrsvcFewWorkers",
        f"{ready} < ignoring (state) {series(metrics.WORKERS_WANTED)}",
        *("10m", "warning"),
        "{{ $labels.instance }} has had fewer workers than it should have for 10 minutes",
        "Workers that die, or that load for very long: their lines in the log, `ocrsvc status`.",
    )
    yield Alert(
        "OcrsvcBootFailures",
        f"{series(metrics.BOOT_FAILURES_IN_A_ROW)} > 0",
        *("1m", "warning"),
        "{{ $value }} workers of {{ $labels.instance }} in a row could not start",
        'The workers\' own lines in the log; the table in docs/operations.md, "When the operating system refuses".',
    )
    yield Alert(
        "OcrsvcReplacementStuck",
        f"{series(metrics.WAITING_FOR_SUCCESSOR)} > 0 or {draining} > 0",
        *("15m", "warning"),
        "A worker of {{ $labels.instance }} has been waiting for its successor, or draining, for 15 minutes",
        "`ocrsvc status` names it and its reason; a successor needs room for one model more, a request its deadline.",
    )
    yield Alert(
        "OcrsvcReplacedOften",
        f"{replaced} > 6 * sum by ({_INSTANCE}) ({series(metrics.WORKERS_WANTED)})",
        *("0s", "warning"),
        "Workers of {{ $labels.instance }} are replaced every few minutes for their memory or for stuck threads",
        f"{series(metrics.RECYCLES)} by reason; fewer workers or threads leave each more memory.",
    )
    yield Alert(
        "OcrsvcStuckEngineThreads",
        f"{series(metrics.STUCK)} > 0",
        *("5m", "warning"),
        "Engine threads of {{ $labels.instance }} do not come back",
        "Their stacks are in the log under STUCK.",
    )
    yield Alert(
        "OcrsvcRestarts",
        f"changes({series(metrics.STARTED)}[1h]) > 2 and on (job, instance) {series(metrics.BUILD)}",
        *("0s", "warning"),
        "{{ $labels.instance }} was started {{ $value }} times in an hour",
        "Why it ended before: its log, the kernel's log (out of memory), the orchestrator's events.",
    )


def _load() -> Iterator[Alert]:
    wait = quantile(0.95, metrics.STAGE_SECONDS, "5m", 'stage="queue"', by=_INSTANCE)
    for_want = f'reason!~"{one_of(metrics.CALLERS_LIMITS)}"'
    refused = total_rate(metrics.REFUSED, "5m", for_want, by=_INSTANCE)
    read, cached = (total_rate(metric, "5m", by=_INSTANCE) for metric in (metrics.IMAGES, metrics.CACHE_HITS))
    yield Alert(
        "OcrsvcQueueWait",
        f"{wait} > 2",
        *("10m", "warning"),
        "One image in 20 waits {{ $value | humanizeDuration }} and more for an engine of {{ $labels.instance }}",
        "More workers or machines; a caller that sends too much at once (OCRSVC_CALLER_REQUESTS).",
    )
    yield Alert(
        "OcrsvcRefusing",
        f"{refused} / ({refused} + {read} + {cached}) > 0.05",
        *("5m", "warning"),
        "{{ $labels.instance }} refuses {{ $value | humanizePercentage }} of what it is sent",
        f"{series(metrics.REFUSED)} by reason.",
    )
    yield Alert(
        "OcrsvcInternalErrors",
        new_or_increased(metrics.FAILURES, "10m", 'code=~"internal|engine_failed"'),
        *("0s", "warning"),
        "{{ $labels.instance }} has failed by its own fault: {{ $labels.code }}",
        "The log has each with the id of its request; /ops lists the last ones.",
    )


def _models() -> Iterator[Alert]:
    yield Alert(
        "OcrsvcModelRefused",
        f"{series(model_metrics.MODEL_REFUSED)} > 0",
        *("1m", "warning"),
        "{{ $value }} versions of models of {{ $labels.instance }} are refused, and older ones serve in their place",
        "`ocrsvc models list` says why; mend the version, or remove it. The reason `live` is one that was rolled back.",
    )


def _keys() -> Iterator[Alert]:
    yield Alert(
        "OcrsvcKeysUnavailable",
        new_or_increased(metrics.FAILURES, "5m", 'code="keys_unavailable"'),
        *("0s", "critical"),
        "{{ $labels.instance }} admits nobody: its store of API keys does not answer",
        "The file or the Redis that OCRSVC_KEYS names.",
    )
    yield Alert(
        "OcrsvcKeysNearQuota",
        f"{series(metrics.KEYS_NEAR_QUOTA)} > 0",
        *("5m", "warning"),
        "{{ $value }} API keys have a tenth at most left of their pages",
        "`ocrsvc keys list` and /ops name them; `ocrsvc keys change` gives them more.",
    )


def _certificates() -> Iterator[Alert]:
    yield Alert(
        "OcrsvcCertificateExpires",
        f"{series(metrics.TLS_NOT_AFTER)} - time() < 7 * 86400",
        *("1h", "warning"),
        "The TLS certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "Whatever renews it; new files are read without a restart (docs/tls.md).",
    )
    yield Alert(
        "OcrsvcCertificateNotTaken",
        new_or_increased(metrics.TLS_READS, "10m", 'outcome="failed"'),
        *("0s", "warning"),
        "{{ $labels.instance }} keeps its TLS certificate: the new one cannot be used",
        "The log says why, under `The certificates stay as they were`.",
    )


def _memory() -> Iterator[Alert]:
    yield Alert(
        "OcrsvcMemoryNearLimit",
        f"{series(metrics.MEMORY_USED)} / {series(metrics.MEMORY_LIMIT)} > 0.92",
        *("5m", "warning"),
        "{{ $value | humanizePercentage }} of the memory of {{ $labels.instance }} is in use",
        "Workers are replaced below 90 %: something else takes memory, or PDFs do (docs/operations.md).",
    )
    yield Alert(
        "OcrsvcGpuMemoryNearLimit",
        f"{series(metrics.GPU_MEMORY_USED)} / {series(metrics.GPU_MEMORY_TOTAL)} > 0.97",
        *("5m", "warning"),
        "{{ $value | humanizePercentage }} of the memory of GPU {{ $labels.gpu }} of {{ $labels.instance }} is in use",
        "Workers are replaced below 95 %: another process is on the GPU, or there are too many workers on it.",
    )


def _state() -> Iterator[Alert]:
    yield Alert(
        "OcrsvcCrashDenylistGrows",
        f"delta({series(metrics.DENIED)}[1h]) > 5",
        *("0s", "warning"),
        "{{ $labels.instance }} refuses {{ $value }} inputs more than an hour ago ({{ $labels.kind }}): they crash it",
        "/ops lists them with their causes; somebody may be trying out what crashes the engine.",
    )
    yield Alert(
        "OcrsvcDocumentsNearLimit",
        f"{series(metrics.TASKS_BYTES)} / ({series(metrics.TASKS_LIMIT)} > 0) > 0.9",
        *("30m", "warning"),
        "Documents on the disk of {{ $labels.instance }} take {{ $value | humanizePercentage }} of what they may",
        "Finished ones are removed for new ones; raise OCRSVC_TASKS_BYTES or lower OCRSVC_TASKS_S.",
    )
    yield Alert(
        "OcrsvcDocumentsDiskShort",
        f"{series(metrics.TASKS_DISK_FREE)} < {series(metrics.TASKS_LIMIT)} - {series(metrics.TASKS_BYTES)}",
        *("10m", "warning"),
        "The disk of {{ $labels.instance }} has less room than OCRSVC_TASKS_BYTES promises to documents",
        "Free some, lower OCRSVC_TASKS_BYTES, or name another folder in OCRSVC_TASKS_DIR.",
    )
    yield Alert(
        "OcrsvcLogLinesDropped",
        f"increase({series(metrics.EVENTS_DROPPED)}[10m]) > 0 or increase({series(metrics.LINES_DROPPED)}[10m]) > 0",
        *("0s", "warning"),
        "A log of {{ $labels.instance }} loses lines",
        "What reads the service's standard output or error is too slow, or stands still.",
    )
    yield Alert(
        "OcrsvcSeriesDropped",
        f"{series(metrics.SERIES_DROPPED)} > 0",
        *("0s", "warning"),
        "Metrics of {{ $labels.instance }} are incomplete",
        "A label has more values than there is room for; report it.",
    )
