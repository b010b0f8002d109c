"""The table of metrics: name, kind, unit, help and labels of each.

Tests hold the files of `monitoring/` (reference, alert rules, dashboard) against it.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from ocrsvc.telemetry import model_metrics
from ocrsvc.telemetry.metric import Metric, counter, gauge, histogram, info, reading

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


PageSource = Literal["request", "job"]
"""Whether a client waits for an image, or it is a page of a job, for which none does."""

_SOURCES: Final = tuple((source,) for source in get_args(PageSource))

# Requests and images, counted by the workers.
REQUESTS: Final = counter(
    "ocrsvc_requests", "Requests answered, by adapter, status and code.", ("door", "status", "code")
)
REQUEST_SECONDS: Final = histogram(
    "ocrsvc_request_seconds", "Seconds from the head of a request to its answer.", ("door",)
)
IN_FLIGHT: Final = gauge("ocrsvc_in_flight_requests", "Requests and gRPC calls under way, the one that asks included.")
REFUSED: Final = counter(
    "ocrsvc_refused",
    "Requests and images that a healthy service would not take, by reason: queue_full, not_ready and others.",
    ("reason",),
)
FAILURES: Final = counter(
    "ocrsvc_failures",
    "Failures reported to clients: of requests, and of single images in a request that succeeded.",
    ("code",),
)
IMAGES: Final = counter(
    "ocrsvc_images",
    "Images read, by source: request where a client waits for the answer, job where none does.",
    ("source",),
    known=_SOURCES,
)
LINES: Final = counter("ocrsvc_lines", "Lines of text on the images read.")
CACHE_HITS: Final = counter(
    "ocrsvc_cache_hits",
    "Images answered from pages that were read before, by source; they are not among the images read.",
    ("source",),
    known=_SOURCES,
)
STAGE_SECONDS: Final = histogram(
    "ocrsvc_stage_seconds",
    "Seconds that an image that was read spent in decode, queue, engine, and in total, by source.",
    ("stage", "source"),
)
WAITING: Final = gauge(
    "ocrsvc_queue_waiting_images",
    "Images that wait for an engine thread; of workers other than the one that answers, up to half a second old.",
)
STUCK: Final = gauge(
    "ocrsvc_stuck_engine_threads",
    "Engine threads still busy 5 s after the deadline of their work, which is a call that hangs.",
)

# Workers, from their table.
WORKERS: Final = gauge("ocrsvc_workers", "Workers that are booting, ready, or draining.", ("state",))
WORKERS_WANTED: Final = gauge(
    "ocrsvc_workers_wanted", "Workers that there should be, without the successors of those that go."
)
WORKERS_MOST: Final = gauge("ocrsvc_workers_most", "Most workers alive at once since the start.")
WAITING_FOR_SUCCESSOR: Final = gauge(
    "ocrsvc_workers_waiting_for_successor",
    "Workers that have a reason to be replaced, and serve on until their successor does.",
)
RECYCLES: Final = counter("ocrsvc_recycles", "Workers replaced, by reason.", ("reason",))
DRAINS_FIRST: Final = counter(
    "ocrsvc_drains_first", "Workers that went before their successor loaded, because the GPU had no room for both."
)
BOOT_FAILURES: Final = counter("ocrsvc_boot_failures", "Workers that died before they were ready.")
BOOT_FAILURES_IN_A_ROW: Final = gauge(
    "ocrsvc_boot_failures_in_a_row",
    "Workers that died before they were ready, or could not be forked, since the last good start.",
)
WORKER_REQUESTS: Final = gauge("ocrsvc_worker_requests", "Requests that the worker in this slot has served.", ("slot",))
WORKER_IN_FLIGHT: Final = gauge(
    "ocrsvc_worker_in_flight_requests", "Requests that hold a thread of the worker.", ("slot",)
)

# Memory.
WORKER_RSS: Final = gauge("ocrsvc_worker_rss_bytes", "Resident memory of the worker.", ("slot",))
WORKER_RSS_LIMIT: Final = gauge(
    "ocrsvc_worker_rss_limit_bytes",
    "Resident memory at which the worker stops accepting at once; 0 is no limit.",
    ("slot",),
)
MEMORY_USED: Final = gauge(
    "ocrsvc_memory_used_bytes",
    "Memory in use that cannot be reclaimed, of the container or the machine, whichever is smaller.",
)
MEMORY_LIMIT: Final = gauge("ocrsvc_memory_limit_bytes", "Memory that the container or the machine has.")

# GPUs, by their place among all that the service has used since its start.
WORKER_GPU: Final = gauge("ocrsvc_worker_gpu_bytes", "Memory of the GPU that the worker holds.", ("slot",))
GPU_MEMORY_USED: Final = gauge("ocrsvc_gpu_memory_used_bytes", "Memory of the GPU that all processes hold.", ("gpu",))
GPU_MEMORY_TOTAL: Final = gauge(
    "ocrsvc_gpu_memory_total_bytes", "Memory that the GPU, or the part of it that is seen, has.", ("gpu",)
)
GPU_UTILIZATION: Final = gauge(
    "ocrsvc_gpu_utilization_ratio",
    "Share of the last second in which the GPU computed; absent where NVML does not tell, as for a part of a GPU.",
    ("gpu",),
)

# What was refused for good, and what lies on the disk.
DENIED: Final = gauge(
    "ocrsvc_crash_denied_inputs",
    "Images and request bodies that are refused now because they crashed an engine or stopped a worker.",
    ("kind",),
)
TASKS: Final = reading("ocrsvc_tasks", "Documents kept on disk; up to 15 s old.")
TASKS_BYTES: Final = reading("ocrsvc_tasks_bytes", "Disk space that the documents take; up to 15 s old.")
TASKS_LIMIT: Final = reading("ocrsvc_tasks_limit_bytes", "Disk space that documents may take (OCRSVC_TASKS_BYTES).")
JOBS: Final = counter(
    "ocrsvc_jobs",
    "Documents that are read while nobody waits, by what became of them: accepted, done, failed, deleted, displaced by "
    "others, expired; and of their callbacks: callback_delivered, callback_failed (tried again), callback_given_up.",
    ("event",),
)
TASKS_WAITING: Final = reading("ocrsvc_tasks_waiting", "Documents that are not read yet; up to 15 s old.")
TASKS_DISK_FREE: Final = reading(
    "ocrsvc_tasks_disk_free_bytes", "Disk space that is free where the documents lie; up to 15 s old."
)

# API keys, where they are asked for.
KEYS: Final = reading("ocrsvc_keys", "API keys that are neither revoked nor expired; up to a minute old.")
KEYS_NEAR_QUOTA: Final = reading(
    "ocrsvc_keys_near_quota",
    "Of these, keys that have a tenth at most left of their pages of the day or the month; up to a minute old.",
)

# TLS, where it is spoken.
TLS_HANDSHAKES: Final = counter(
    "ocrsvc_tls_handshakes",
    "TLS handshakes, by outcome: ok, refused by either side, not_tls, and unfinished.",
    ("outcome",),
)
TLS_READS: Final = counter(
    "ocrsvc_tls_certificate_reads",
    "Times that changed certificates were read, by outcome: ok, or failed, which leaves those from before.",
    ("outcome",),
)
TLS_NOT_AFTER: Final = reading(
    "ocrsvc_tls_certificate_not_after_timestamp_seconds",
    "When the service's certificate expires, in Unix time; absent without TLS.",
)

# The service itself.
EVENTS_DROPPED: Final = counter(
    "ocrsvc_access_events_dropped", "Lines of the access log that were dropped because it could not keep up."
)
LINES_DROPPED: Final = counter(
    "ocrsvc_log_lines_dropped", "Lines of the service's own log that found its queue full, or a pipe that nobody reads."
)
SPANS: Final = counter("ocrsvc_trace_spans", "Spans of traces that were exported.")
SPANS_DROPPED: Final = counter(
    "ocrsvc_trace_spans_dropped", "Spans of traces that found the queue full, or that the collector did not take."
)
SERIES_DROPPED: Final = counter(
    "ocrsvc_series_dropped", "Series of these metrics that found no room, and are not counted; report it."
)
STARTED: Final = gauge("process_start_time_seconds", "Start of the service, in Unix time.")
BUILD: Final = info("ocrsvc_build", "The service itself.", ("version",))
ENGINE: Final = info(
    "ocrsvc_engine",
    "What reads in the worker that answers.",
    ("name", "model", "version", "device", "precision", "provider"),
)

METRICS: Final = tuple(
    item for names in (globals(), vars(model_metrics)) for item in list(names.values()) if isinstance(item, Metric)
)
"""Every metric that is declared here and in model_metrics.py."""

_READ_WHEN_ASKED: Final = (
    *(WORKERS, WORKERS_WANTED, WORKERS_MOST, WAITING_FOR_SUCCESSOR, RECYCLES, DRAINS_FIRST, BOOT_FAILURES_IN_A_ROW),
    *(WORKER_REQUESTS, WORKER_IN_FLIGHT, WORKER_RSS, WORKER_RSS_LIMIT, WORKER_GPU, MEMORY_USED, MEMORY_LIMIT),
    *(GPU_MEMORY_USED, GPU_MEMORY_TOTAL, GPU_UTILIZATION, DENIED, STARTED, BUILD, ENGINE),
)

COUNTED: Final = tuple(metric for metric in METRICS if metric not in _READ_WHEN_ASKED)
"""Everything that a block of the metrics store may hold."""
