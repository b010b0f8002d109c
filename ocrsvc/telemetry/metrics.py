"""The table of metrics: name, kind, unit, help and labels of each; what shows, documents and watches them follows it.

`GET /metrics`, docs/metrics.md, the Grafana dashboard and the alert rules of `monitoring/` are made from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram", "latest", "reading", "info"]

Unit = Literal["", "seconds", "bytes", "ratio"]

Key = tuple[str, ...]
"""A series: its kind, its metric's name, and the values of its labels."""

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the buckets of every histogram, in seconds; one more bucket takes what is above the last."""


OWN_FAULTS: Final = ("internal", "engine_failed", "deadline_exceeded")
"""Codes of failures that are the service's own."""

SERVICE_FAULTS: Final = (
    *OWN_FAULTS,
    "queue_full",
    "not_ready",
    "model_unavailable",
    "resources_exhausted",
    "storage_full",
    "keys_unavailable",
)
"""Codes of failures that are not the caller's: those whose status is 500, 503 or 504."""


CALLERS_LIMITS: Final = ("too_many_at_once", "quota_exceeded")
"""Codes of refusals of which one caller has had enough; a service with room to spare refuses them too."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is counted or read.

    Attributes:
        name: By the conventions of Prometheus, without the `_total` of a counter and the `_info` of an info.
        kind: Counters and histograms outlive their worker, gauges end with it. Of a "latest", which is a time, the
            latest of all workers counts, and outlives them. A "reading" is what every worker reads of the same thing:
            the largest counts, and ends with its worker. An "info" is 1, and says what it says by its labels.
        help: One sentence.
        labels: Names of the labels; their values must come from small, fixed sets.
        unit: Of the value; the name ends in it. Empty for a number of things.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: Unit = ""

    @property
    def shown_name(self) -> str:
        """As Prometheus lists it; a histogram's series have `_bucket`, `_sum` and `_count` behind it."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")

    @property
    def shown_kind(self) -> str:
        """The type by which Prometheus knows it."""
        return self.kind if self.kind in ("counter", "histogram") else "gauge"

    def of(self, *labels: str) -> Key:
        """The key of one of its series."""
        return (self.kind, self.name, *labels)


# Requests and images, counted by the workers.
REQUESTS: Final = Metric(
    "ocrsvc_requests", "counter", "Requests answered, by adapter, status and code.", ("door", "status", "code")
)
REQUEST_SECONDS: Final = Metric(
    "ocrsvc_request_seconds", "histogram", "Seconds from the head of a request to its answer.", ("door",), "seconds"
)
IN_FLIGHT: Final = Metric(
    "ocrsvc_in_flight_requests", "gauge", "Requests and gRPC calls under way, the one that asks included."
)
REFUSED: Final = Metric(
    "ocrsvc_refused",
    "counter",
    "Requests and images that a healthy service would not take, by reason: queue_full, not_ready and others.",
    ("reason",),
)
FAILURES: Final = Metric(
    "ocrsvc_failures",
    "counter",
    "Failures reported to clients: of requests, and of single images in a request that succeeded.",
    ("code",),
)
IMAGES: Final = Metric("ocrsvc_images", "counter", "Images read.")
LINES: Final = Metric("ocrsvc_lines", "counter", "Lines of text on the images read.")
CACHE_HITS: Final = Metric(
    "ocrsvc_cache_hits",
    "counter",
    "Images answered from pages that were read before; they are not among the images read.",
)
STAGE_SECONDS: Final = Metric(
    "ocrsvc_stage_seconds",
    "histogram",
    "Seconds that an image that was read spent in decode, queue, engine, and in total.",
    ("stage",),
    "seconds",
)
WAITING: Final = Metric(
    "ocrsvc_queue_waiting_images",
    "gauge",
    "Images that wait for an engine thread; of workers other than the one that answers, up to half a second old.",
)
STUCK: Final = Metric(
    "ocrsvc_stuck_engine_threads",
    "gauge",
    "Engine threads still busy 5 s after the deadline of their work, which is a call that hangs.",
)

# The model API.
MODEL_SECONDS: Final = Metric(
    "ocrsvc_model_request_seconds",
    "histogram",
    "Seconds of a request to the model API (KServe, TensorFlow Serving), by success and fail.",
    ("outcome",),
    "seconds",
)
MODEL_STAGE_SECONDS: Final = Metric(
    "ocrsvc_model_stage_seconds",
    "histogram",
    "Seconds that an image answered over the model API spent in decode, queue, and engine.",
    ("stage",),
    "seconds",
)
MODEL_LAST: Final = Metric(
    "ocrsvc_model_last_request_timestamp_seconds",
    "latest",
    "End of the last request to the model API that succeeded, in Unix time.",
    unit="seconds",
)

# The same by version, where there is a repository of models.
VERSION_REQUESTS: Final = Metric(
    "ocrsvc_version_requests",
    "counter",
    "Requests to the model API by the model and the version that they name or were read by, by success and fail.",
    ("model", "version", "outcome"),
)
VERSION_IMAGES: Final = Metric(
    "ocrsvc_version_images", "counter", "Images read over the model API, by model and version.", ("model", "version")
)
VERSION_SECONDS: Final = Metric(
    "ocrsvc_version_seconds",
    "counter",
    "Seconds of requests to the model API by model and version: success and fail of whole ones, and of their images "
    "in decode, queue, and engine.",
    ("model", "version", "stage"),
    "seconds",
)

# New versions of models, where there is a repository of them.
MODEL_SWAPS: Final = Metric(
    "ocrsvc_model_swaps", "counter", "Times that a worker has begun to read with another version of a model."
)
MODEL_REFUSALS: Final = Metric(
    "ocrsvc_model_refusals",
    "counter",
    "Versions of models that were refused, by reason: files, reference, open, failed, nonsense, text, slow, memory, "
    "crash, late, and live for those that were rolled back.",
    ("reason",),
)
MODEL_REFUSED: Final = Metric(
    "ocrsvc_model_refused_versions", "reading", "Versions in the repository of models that are refused now."
)
MODEL_PROOF_SECONDS: Final = Metric(
    "ocrsvc_model_proof_seconds",
    "histogram",
    "Seconds that a version's proof has taken, that of the version beside it included.",
    unit="seconds",
)

# Workers, from their table.
WORKERS: Final = Metric("ocrsvc_workers", "gauge", "Workers that are booting, ready, or draining.", ("state",))
WORKERS_WANTED: Final = Metric(
    "ocrsvc_workers_wanted", "gauge", "Workers that there should be, without the successors of those that go."
)
WORKERS_MOST: Final = Metric("ocrsvc_workers_most", "gauge", "Most workers alive at once since the start.")
WAITING_FOR_SUCCESSOR: Final = Metric(
    "ocrsvc_workers_waiting_for_successor",
    "gauge",
    "Workers that have a reason to be replaced, and serve on until their successor does.",
)
RECYCLES: Final = Metric("ocrsvc_recycles", "counter", "Workers replaced, by reason.", ("reason",))
DRAINS_FIRST: Final = Metric(
    "ocrsvc_drains_first",
    "counter",
    "Workers that went before their successor loaded, because the GPU had no room for both.",
)
BOOT_FAILURES: Final = Metric("ocrsvc_boot_failures", "counter", "Workers that died before they were ready.")
BOOT_FAILURES_IN_A_ROW: Final = Metric(
    "ocrsvc_boot_failures_in_a_row",
    "gauge",
    "Workers that died before they were ready, or could not be forked, since the last good start.",
)
WORKER_REQUESTS: Final = Metric(
    "ocrsvc_worker_requests", "gauge", "Requests that the worker in this slot has served.", ("slot",)
)
WORKER_IN_FLIGHT: Final = Metric(
    "ocrsvc_worker_in_flight_requests", "gauge", "Requests that hold a thread of the worker.", ("slot",)
)

# Memory.
WORKER_RSS: Final = Metric("ocrsvc_worker_rss_bytes", "gauge", "Resident memory of the worker.", ("slot",), "bytes")
WORKER_RSS_LIMIT: Final = Metric(
    "ocrsvc_worker_rss_limit_bytes",
    "gauge",
    "Resident memory at which the worker stops accepting at once; 0 is no limit.",
    ("slot",),
    "bytes",
)
MEMORY_USED: Final = Metric(
    "ocrsvc_memory_used_bytes",
    "gauge",
    "Memory in use that cannot be reclaimed, of the container or the machine, whichever is smaller.",
    unit="bytes",
)
MEMORY_LIMIT: Final = Metric(
    "ocrsvc_memory_limit_bytes", "gauge", "Memory that the container or the machine has.", unit="bytes"
)

# GPUs, by their place among all that the service has used since its start.
WORKER_GPU: Final = Metric(
    "ocrsvc_worker_gpu_bytes", "gauge", "Memory of the GPU that the worker holds.", ("slot",), "bytes"
)
GPU_MEMORY_USED: Final = Metric(
    "ocrsvc_gpu_memory_used_bytes", "gauge", "Memory of the GPU that all processes hold.", ("gpu",), "bytes"
)
GPU_MEMORY_TOTAL: Final = Metric(
    "ocrsvc_gpu_memory_total_bytes",
    "gauge",
    "Memory that the GPU, or the part of it that is seen, has.",
    ("gpu",),
    "bytes",
)
GPU_UTILIZATION: Final = Metric(
    "ocrsvc_gpu_utilization_ratio",
    "gauge",
    "Share of the last second in which the GPU computed; absent where NVML does not tell, as for a part of a GPU.",
    ("gpu",),
    "ratio",
)

# What was refused for good, and what lies on the disk.
DENIED: Final = Metric(
    "ocrsvc_crash_denied_inputs",
    "gauge",
    "Images and request bodies that are refused now because they crashed an engine or stopped a worker.",
    ("kind",),
)
TASKS: Final = Metric("ocrsvc_tasks", "reading", "Documents kept on disk; up to 15 s old.")
TASKS_BYTES: Final = Metric(
    "ocrsvc_tasks_bytes", "reading", "Disk space that the documents take; up to 15 s old.", unit="bytes"
)
TASKS_LIMIT: Final = Metric(
    "ocrsvc_tasks_limit_bytes",
    "reading",
    "Disk space that documents may take (OCRSVC_TASKS_BYTES).",
    unit="bytes",
)
TASKS_DISK_FREE: Final = Metric(
    "ocrsvc_tasks_disk_free_bytes",
    "reading",
    "Disk space that is free where the documents lie; up to 15 s old.",
    unit="bytes",
)

# API keys, where they are asked for.
KEYS: Final = Metric("ocrsvc_keys", "reading", "API keys that are neither revoked nor expired; up to a minute old.")
KEYS_NEAR_QUOTA: Final = Metric(
    "ocrsvc_keys_near_quota",
    "reading",
    "Of these, keys that have a tenth at most left of their pages of the day or the month; up to a minute old.",
)

# TLS, where it is spoken.
TLS_HANDSHAKES: Final = Metric(
    "ocrsvc_tls_handshakes",
    "counter",
    "TLS handshakes, by outcome: ok, refused by either side, not_tls, and unfinished.",
    ("outcome",),
)
TLS_READS: Final = Metric(
    "ocrsvc_tls_certificate_reads",
    "counter",
    "Times that changed certificates were read, by outcome: ok, or failed, which leaves those from before.",
    ("outcome",),
)
TLS_NOT_AFTER: Final = Metric(
    "ocrsvc_tls_certificate_not_after_timestamp_seconds",
    "reading",
    "When the service's certificate expires, in Unix time; absent without TLS.",
    unit="seconds",
)

# Models of a repository, where there is one; the series of a model are counted under its name by no more than a few.
MODELS_LOADED: Final = Metric(
    "ocrsvc_loaded_models", "gauge", "Versions of models that are loaded now, in all workers together."
)
MODELS_BYTES: Final = Metric(
    "ocrsvc_loaded_models_bytes",
    "gauge",
    "Memory that the loaded versions of models take in all workers together, as measured when each was loaded.",
    unit="bytes",
)
MODELS_LIMIT: Final = Metric(
    "ocrsvc_loaded_models_limit_bytes",
    "reading",
    "Memory that the models of one worker may take together (OCRSVC_MODELS_MEMORY).",
    unit="bytes",
)
MODEL_LEASES: Final = Metric(
    "ocrsvc_model_leases",
    "counter",
    "Requests that read with a model, by its name and whether it was loaded already: hit or miss.",
    ("model", "outcome"),
)
MODEL_LOADS: Final = Metric(
    "ocrsvc_model_loads", "counter", "Loads of models, by name and outcome: success or fail.", ("model", "outcome")
)
MODEL_LOAD_SECONDS: Final = Metric(
    "ocrsvc_model_load_seconds", "histogram", "Seconds that the loads of models took.", unit="seconds"
)
MODEL_UNLOADS: Final = Metric(
    "ocrsvc_model_unloads",
    "counter",
    "Versions of models that were closed, by the model's name and why: memory, retired or end.",
    ("model", "reason"),
)

# The service itself.
EVENTS_DROPPED: Final = Metric(
    "ocrsvc_access_events_dropped", "counter", "Lines of the access log that were dropped because it could not keep up."
)
LINES_DROPPED: Final = Metric(
    "ocrsvc_log_lines_dropped",
    "counter",
    "Lines of the service's own log that found its queue full, or a pipe that nobody reads.",
)
SPANS: Final = Metric("ocrsvc_trace_spans", "counter", "Spans of traces that were exported.")
SPANS_DROPPED: Final = Metric(
    "ocrsvc_trace_spans_dropped",
    "counter",
    "Spans of traces that found the queue full, or that the collector did not take.",
)
SERIES_DROPPED: Final = Metric(
    "ocrsvc_series_dropped", "counter", "Series of these metrics that found no room, and are not counted; report it."
)
STARTED: Final = Metric("process_start_time_seconds", "gauge", "Start of the service, in Unix time.", unit="seconds")
BUILD: Final = Metric("ocrsvc_build", "info", "The service itself.", ("version",))
ENGINE: Final = Metric(
    "ocrsvc_engine",
    "info",
    "What reads in the worker that answers.",
    ("name", "model", "version", "device", "precision", "provider"),
)

COUNTED: Final = (
    *(REQUESTS, REQUEST_SECONDS, IN_FLIGHT, REFUSED, FAILURES, IMAGES, LINES, CACHE_HITS, STAGE_SECONDS),
    *(WAITING, STUCK, MODEL_SECONDS, MODEL_STAGE_SECONDS, MODEL_LAST, BOOT_FAILURES),
    *(VERSION_REQUESTS, VERSION_IMAGES, VERSION_SECONDS),
    *(MODEL_SWAPS, MODEL_REFUSALS, MODEL_REFUSED, MODEL_PROOF_SECONDS),
    *(TASKS, TASKS_BYTES, TASKS_LIMIT, TASKS_DISK_FREE, KEYS, KEYS_NEAR_QUOTA),
    *(TLS_HANDSHAKES, TLS_READS, TLS_NOT_AFTER),
    *(MODELS_LOADED, MODELS_BYTES, MODELS_LIMIT, MODEL_LEASES, MODEL_LOADS, MODEL_LOAD_SECONDS, MODEL_UNLOADS),
    *(EVENTS_DROPPED, LINES_DROPPED, SPANS, SPANS_DROPPED, SERIES_DROPPED),
)
"""Everything that a block of the metrics store may hold; a new one is declared here, and then counted."""

SECTIONS: Final = (
    (
        "Requests and images",
        (
            *(REQUESTS, REQUEST_SECONDS, IN_FLIGHT, REFUSED, FAILURES, IMAGES, LINES, CACHE_HITS, STAGE_SECONDS),
            *(WAITING, STUCK),
        ),
    ),
    (
        "The model API",
        (MODEL_SECONDS, MODEL_STAGE_SECONDS, MODEL_LAST, VERSION_REQUESTS, VERSION_IMAGES, VERSION_SECONDS),
    ),
    ("New versions of models", (MODEL_SWAPS, MODEL_REFUSALS, MODEL_REFUSED, MODEL_PROOF_SECONDS)),
    (
        "Workers",
        (
            *(WORKERS, WORKERS_WANTED, WORKERS_MOST, WAITING_FOR_SUCCESSOR, RECYCLES, DRAINS_FIRST, BOOT_FAILURES),
            *(BOOT_FAILURES_IN_A_ROW, WORKER_REQUESTS, WORKER_IN_FLIGHT),
        ),
    ),
    ("Memory", (WORKER_RSS, WORKER_RSS_LIMIT, MEMORY_USED, MEMORY_LIMIT)),
    ("GPUs", (WORKER_GPU, GPU_MEMORY_USED, GPU_MEMORY_TOTAL, GPU_UTILIZATION)),
    ("Inputs refused, and documents on disk", (DENIED, TASKS, TASKS_BYTES, TASKS_LIMIT, TASKS_DISK_FREE)),
    ("API keys", (KEYS, KEYS_NEAR_QUOTA)),
    ("TLS", (TLS_HANDSHAKES, TLS_READS, TLS_NOT_AFTER)),
    (
        "Models of a repository",
        (MODELS_LOADED, MODELS_BYTES, MODELS_LIMIT, MODEL_LEASES, MODEL_LOADS, MODEL_LOAD_SECONDS, MODEL_UNLOADS),
    ),
    (
        "The service itself",
        (EVENTS_DROPPED, LINES_DROPPED, SPANS, SPANS_DROPPED, SERIES_DROPPED, STARTED, BUILD, ENGINE),
    ),
)
"""Every metric, by the headings of docs/metrics.md."""

METRICS: Final = tuple(metric for _, metrics in SECTIONS for metric in metrics)
