"""JSON for the operators' page: workers, figures, the last ten minutes, failures, crash denylist."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any, Final

from ocrsvc import __version__
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_store import usage_to_dict
from ocrsvc.http.request_metrics import RequestMetrics
from ocrsvc.results import EngineInfo
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.system.memory import read_memory_use
from ocrsvc.telemetry import metrics, model_metrics
from ocrsvc.telemetry.history import EVERY_S, curves
from ocrsvc.telemetry.metric import Metric
from ocrsvc.telemetry.metrics_store import Series
from ocrsvc.telemetry.prometheus import GPU_ROWS, latest_by_gpu
from ocrsvc.telemetry.worker_table import Reason, State, WorkerEntry, WorkerTable

Node = dict[str, Any]

_MAX_ERRORS: Final = 20
"""Maximum number of failures to list per kind of fault: "caller", "service" and "refused"."""


def overview(request_metrics: RequestMetrics, engine: EngineInfo | None, settings_name: str = "") -> Node:
    """The content of the operators' page; `engine` is None until it is loaded."""
    series, table = request_metrics.store.read(), request_metrics.worker_table
    memory = read_memory_use()
    points = request_metrics.history.read() if request_metrics.history is not None else []
    return {
        "version": __version__,
        "engine": asdict(engine) if engine is not None else {"name": settings_name},
        "now_s": time.time(),
        "started_s": request_metrics.store.started_s,
        "arbiter_pid": os.getppid() if table.head.base else None,
        "workers_wanted": table.head.base,
        "workers_most": table.head.max_live,
        "workers": workers_to_list(table),
        "gpus": _gpus_to_list(table),
        "memory": {"used_bytes": memory.used_bytes, "limit_bytes": memory.limit_bytes},
        "counts": _counts(series),
        "recycles": {reason.name.lower(): table.head.recycles[reason] for reason in Reason if reason},
        "boot_failures": {"ever": _one(series, metrics.BOOT_FAILURES), "in_a_row": table.head.boot_failures},
        "documents": _documents(series),
        "models": _models(series),
        "errors": errors_to_list(request_metrics),
        "denylist": denylist_to_dict(request_metrics),
        "history": {"every_s": EVERY_S, "curves": curves(points)},
    }


def _counts(series: Series) -> Node:
    shown = (metrics.IN_FLIGHT, metrics.WAITING, metrics.STUCK, metrics.IMAGES, metrics.CACHE_HITS, metrics.LINES)
    return {
        **{metric.name.removeprefix("ocrsvc_"): _all(series, metric) for metric in shown},
        "requests_by_adapter": _by(series, metrics.REQUESTS),
        "requests_by_code": _by(series, metrics.REQUESTS, 2),
        "stage_images": _by(series, metrics.STAGE_SECONDS, value=lambda values: sum(values[:-1])),
        "stage_s": _by(series, metrics.STAGE_SECONDS, value=itemgetter(-1)),
        "refused": _by(series, metrics.REFUSED),
        "failures": _by(series, metrics.FAILURES),
    }


def _one(series: Series, metric: Metric) -> float:
    """The value of a metric without labels."""
    return series.get(metric.of(), (0.0,))[0]


def _all(series: Series, metric: Metric) -> float:
    """The sum of all series of a metric."""
    return sum(values[0] for key, values in series.items() if key[1] == metric.name)


def _by(
    series: Series, metric: Metric, label: int = 0, value: Callable[[Sequence[float]], float] = itemgetter(0)
) -> dict[str, float]:
    """Sum a metric by the values of one of its labels; largest sum first."""
    sums: dict[str, float] = {}
    for key, values in series.items():
        if key[1] == metric.name:
            sums[key[2 + label]] = sums.get(key[2 + label], 0.0) + value(values)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _documents(series: Series) -> Node | None:
    """The stored jobs; None without a job store."""
    if metrics.JOBS_LIMIT.of() not in series:
        return None
    return {
        "count": _one(series, metrics.JOBS_KEPT),
        "bytes": _one(series, metrics.JOBS_BYTES),
        "limit_bytes": _one(series, metrics.JOBS_LIMIT),
        "disk_free_bytes": _one(series, metrics.JOBS_DISK_FREE),
    }


def _models(series: Series) -> Node | None:
    """The loaded models of all workers; None without a repository."""
    if model_metrics.MODELS_LIMIT.of() not in series:
        return None
    return {
        "loaded": _one(series, model_metrics.MODELS_LOADED),
        "refused_versions": _one(series, model_metrics.MODEL_REFUSED),
        "bytes": _one(series, model_metrics.MODELS_BYTES),
        "limit_bytes_of_worker": _one(series, model_metrics.MODELS_LIMIT),
        "leases": _by(series, model_metrics.MODEL_LEASES),
        "loads": _by(series, model_metrics.MODEL_LOADS),
        "unloads": _by(series, model_metrics.MODEL_UNLOADS),
    }


def errors_to_list(request_metrics: RequestMetrics) -> list[Node]:
    """The last failures of all workers, newest first, at most _MAX_ERRORS per kind of fault."""
    slots = max(1, request_metrics.worker_table.head.high)
    errors = request_metrics.errors.read(slots) if request_metrics.errors is not None else []
    seen: Counter[str] = Counter()
    kept = []
    for error in errors:
        seen[error.fault] += 1
        if seen[error.fault] <= _MAX_ERRORS:
            kept.append(asdict(error))
    return kept


def denylist_to_dict(request_metrics: RequestMetrics) -> Mapping[str, list[Node]]:
    """The crash denylist: images and request bodies that crash engines or stop workers."""
    return {"images": _entries(request_metrics.image_denylist), "requests": _entries(request_metrics.body_denylist)}


def keys_to_list(gate: AccessGate, now_s: float) -> list[Node]:
    """All API keys without their secrets, and their usage. Raises KeysUnavailable."""
    return [usage_to_dict(entry, usage, now_s) for entry, usage in gate.usage()]


def _entries(known: CrashDenylist | None) -> list[Node]:
    return [asdict(entry) | {"is_refused": entry.is_refused} for entry in known.entries()] if known is not None else []


def _gpus_to_list(worker_table: WorkerTable) -> list[Node]:
    """All GPUs with their latest figures."""
    entries = [worker_table.entry(worker.slot) for worker in worker_table.live()]
    used, total, busy = (latest_by_gpu(entries, row) for row in GPU_ROWS)
    return [
        {"gpu": int(key[0]), "used_bytes": used[key], "total_bytes": total[key], "busy_ratio": busy.get(key)}
        for key in sorted(used)
    ]


def workers_to_list(worker_table: WorkerTable) -> list[Node]:
    """All workers, in order of their slots."""
    now_s = time.monotonic()
    return [_worker_to_dict(worker.slot, worker_table.entry(worker.slot), now_s) for worker in worker_table.live()]


def _worker_to_dict(number: int, entry: WorkerEntry, now_s: float) -> Node:
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
        "rss_limit_bytes": entry.rss_hard_bytes or None,
        "gpu_bytes": entry.gpu_bytes or None,
        "card": entry.gpu,
        **ages,
    }
