"""The table of metrics: name, kind, unit, help and labels of each; what shows, documents and watches them follows it.

`GET /metrics`, docs/metrics.md, the Grafana dashboard and the alert rules of `monitoring/` are made from here.
"""

from __future__ import annotations

from typing import Final

from ocrsvc.telemetry.metric import Metric
from ocrsvc.telemetry.model_metrics import (
    MODEL_LAST,
    MODEL_LEASES,
    MODEL_LOAD_SECONDS,
    MODEL_LOADS,
    MODEL_PROOF_SECONDS,
    MODEL_REFUSALS,
    MODEL_REFUSED,
    MODEL_SECONDS,
    MODEL_STAGE_SECONDS,
    MODEL_SWAPS,
    MODEL_UNLOADS,
    MODELS_BYTES,
    MODELS_LIMIT,
    MODELS_LOADED,
    VERSION_IMAGES,
    VERSION_REQUESTS,
    VERSION_SECONDS,
)

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


CALLERS_LIMITS: Final = ("too_many_at_once", "too_many_jobs", "quota_exceeded")
"""Codes of refusals of which one caller has had enough; a service with room to spare refuses them too."""


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
JOBS: Final = Metric(
    "ocrsvc_jobs",
    "counter",
    "Documents that are read while nobody waits, by what became of them: accepted, done, failed, deleted, displaced by "
    "others, expired; and of their callbacks: callback_delivered, callback_failed (tried again), callback_given_up.",
    ("event",),
)
TASKS_WAITING: Final = Metric("ocrsvc_tasks_waiting", "reading", "Documents that are not read yet; up to 15 s old.")
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
    *(TASKS, TASKS_WAITING, TASKS_BYTES, TASKS_LIMIT, TASKS_DISK_FREE, JOBS, KEYS, KEYS_NEAR_QUOTA),
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
    (
        "Inputs refused, and documents on disk",
        (DENIED, TASKS, TASKS_WAITING, TASKS_BYTES, TASKS_LIMIT, TASKS_DISK_FREE, JOBS),
    ),
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
