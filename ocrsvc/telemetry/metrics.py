"""The table of metrics: name, kind, unit, help and labels of each.

Tests compare the files of `monitoring/` (reference, alert rules, dashboard) with it.
"""

from typing import Final, Literal, get_args

from ocrsvc.results import FALLBACK_REASONS
from ocrsvc.telemetry import model_metrics
from ocrsvc.telemetry.metric import Metric, counter, gauge, histogram, info, reading

OWN_FAULTS: Final = ("internal", "engine_failed", "deadline_exceeded")
"""Error codes of failures inside the service, not caused by callers or load."""

SERVICE_FAULTS: Final = (
    *(*OWN_FAULTS, "queue_full", "not_ready", "model_unavailable"),
    *("resources_exhausted", "storage_full", "keys_unavailable"),
)
"""Error codes that are not the caller's fault, with HTTP status 500, 503 or 504."""

CALLERS_LIMITS: Final = ("too_many_at_once", "too_many_jobs", "quota_exceeded")
"""Error codes of refusals because a caller reached its limits; they do not depend on the load."""


PageSource = Literal["request", "job"]
"""Origin of an image: a request whose client waits for the result, or a job."""

_SOURCES: Final = tuple((source,) for source in get_args(PageSource))

# Metrics of requests and images.
REQUESTS: Final = counter("ocrsvc_requests", "Requests, by adapter, status and code.", ("adapter", "status", "code"))
REQUEST_SECONDS: Final = histogram("ocrsvc_request_seconds", "Seconds of requests, head to response.", ("adapter",))
IN_FLIGHT: Final = gauge("ocrsvc_in_flight_requests", "Requests and gRPC calls in progress, including the scrape.")
REFUSED: Final = counter(
    "ocrsvc_refused", "Requests and images refused by a working service, by reason, such as queue_full.", ("reason",)
)
FAILURES: Final = counter(
    "ocrsvc_failures", "Failures of requests, and of single images in requests that succeeded.", ("code",)
)
IMAGES: Final = counter(
    "ocrsvc_images",
    "Images read, by source: request if a client waits for the result, else job.",
    ("source",),
    known=_SOURCES,
)
LINES: Final = counter("ocrsvc_lines", "Text lines on the images read.")
CACHE_HITS: Final = counter(
    "ocrsvc_cache_hits",
    "Images from the result cache, by source; not counted as images read.",
    ("source",),
    known=_SOURCES,
)
FALLBACKS: Final = counter(
    "ocrsvc_remote_fallbacks",
    "Images that the local engine read in place of the engine remote, by reason, such as late or repeated.",
    ("reason",),
    known=tuple((reason,) for reason in FALLBACK_REASONS),
)
STAGE_SECONDS: Final = histogram(
    "ocrsvc_stage_seconds",
    "Seconds per image read, in decode, queue, engine and total, by source.",
    ("stage", "source"),
)
WAITING: Final = gauge(
    "ocrsvc_queue_waiting_images", "Images that wait for an engine thread; of other workers up to half a second old."
)
STUCK: Final = gauge("ocrsvc_stuck_engine_threads", "Engine threads busy 5 s after their deadline: a call that hangs.")

# Metrics of workers, from the worker table.
WORKERS: Final = gauge("ocrsvc_workers", "Workers, by state: booting, ready or draining.", ("state",))
WORKERS_WANTED: Final = gauge("ocrsvc_workers_wanted", "Workers that should run, not counting successors.")
WORKERS_MOST: Final = gauge("ocrsvc_workers_most", "Largest number of workers alive at once since the start.")
WAITING_FOR_SUCCESSOR: Final = gauge(
    "ocrsvc_workers_waiting_for_successor", "Workers to be replaced, which serve until their successor is ready."
)
RECYCLES: Final = counter("ocrsvc_recycles", "Workers replaced, by reason.", ("reason",))
DRAINS_FIRST: Final = counter(
    "ocrsvc_drains_first", "Workers that drained before their successor loaded, because the GPU had no room for both."
)
BOOT_FAILURES: Final = counter("ocrsvc_boot_failures", "Workers that died before they were ready.")
BOOT_FAILURES_IN_A_ROW: Final = gauge(
    "ocrsvc_boot_failures_in_a_row",
    "Workers that died before they were ready, or could not be forked, since the last successful start.",
)
WORKER_REQUESTS: Final = gauge("ocrsvc_worker_requests", "Requests served by the worker in this slot.", ("slot",))
WORKER_IN_FLIGHT: Final = gauge("ocrsvc_worker_in_flight_requests", "Requests in progress in the worker.", ("slot",))

# Metrics of memory.
WORKER_RSS: Final = gauge("ocrsvc_worker_rss_bytes", "Resident memory of the worker.", ("slot",))
WORKER_RSS_LIMIT: Final = gauge(
    "ocrsvc_worker_rss_limit_bytes", "Resident memory at which the worker stops accepting; 0 is no limit.", ("slot",)
)
MEMORY_USED: Final = gauge(
    "ocrsvc_memory_used_bytes",
    "Memory in use, without what the kernel can reclaim, of the container or the machine, whichever has less.",
)
MEMORY_LIMIT: Final = gauge("ocrsvc_memory_limit_bytes", "Memory of the container or the machine.")

# Metrics of GPUs; the label "gpu" is a number among all GPUs that the service has used since its start.
WORKER_GPU: Final = gauge("ocrsvc_worker_gpu_bytes", "GPU memory that the worker holds.", ("slot",))
GPU_MEMORY_USED: Final = gauge("ocrsvc_gpu_memory_used_bytes", "GPU memory that all processes hold.", ("gpu",))
GPU_MEMORY_TOTAL: Final = gauge("ocrsvc_gpu_memory_total_bytes", "Memory of the GPU or its visible MIG part.", ("gpu",))
GPU_UTILIZATION: Final = gauge(
    "ocrsvc_gpu_utilization_ratio",
    "Share of the last second in which the GPU computed; absent if NVML does not report it, as under MIG.",
    ("gpu",),
)

# Metrics of the crash denylist and of jobs on disk.
DENIED: Final = gauge(
    "ocrsvc_crash_denied_inputs",
    "Images and request bodies on the crash denylist: they crashed an engine, or hung or killed a worker.",
    ("kind",),
)
JOBS_KEPT: Final = reading("ocrsvc_jobs_kept", "Jobs kept on disk; up to 15 s old.")
JOBS_BYTES: Final = reading("ocrsvc_jobs_bytes", "Disk space that jobs take; up to 15 s old.")
JOBS_LIMIT: Final = reading("ocrsvc_jobs_limit_bytes", "Disk space that jobs may take (OCRSVC_JOBS_BYTES).")
JOBS: Final = counter(
    "ocrsvc_jobs",
    "Jobs, by event: accepted, done, failed, deleted, displaced by other jobs, expired; and their callbacks: "
    "callback_delivered, callback_failed (retried), callback_given_up.",
    ("event",),
)
JOBS_WAITING: Final = reading("ocrsvc_jobs_waiting", "Jobs that are not finished yet; up to 15 s old.")
JOBS_DISK_FREE: Final = reading("ocrsvc_jobs_disk_free_bytes", "Free disk space in the folder of jobs; up to 15 s old.")

# Metrics of API keys; they exist only with OCRSVC_KEYS.
KEYS: Final = reading("ocrsvc_keys", "API keys that are neither revoked nor expired; up to a minute old.")
KEYS_NEAR_QUOTA: Final = reading(
    "ocrsvc_keys_near_quota", "API keys with at most a tenth left of their daily or monthly pages; up to a minute old."
)

# Metrics of TLS.
TLS_HANDSHAKES: Final = counter(
    "ocrsvc_tls_handshakes", "Handshakes, by outcome: ok, refused (by either side), not_tls, unfinished.", ("outcome",)
)
TLS_READS: Final = counter(
    "ocrsvc_tls_certificate_reads",
    "Reads of changed certificates, by outcome: ok, or failed, which keeps the old certificates.",
    ("outcome",),
)
TLS_NOT_AFTER: Final = reading(
    "ocrsvc_tls_certificate_not_after_timestamp_seconds", "Expiry of the certificate, in Unix time; absent without TLS."
)

# Metrics of the service's operation: logs, traces and versions.
EVENTS_DROPPED: Final = counter("ocrsvc_access_events_dropped", "Access log lines dropped as its queue was full.")
LINES_DROPPED: Final = counter(
    "ocrsvc_log_lines_dropped", "Lines of the service's own log dropped because its queue or its pipe was full."
)
SPANS: Final = counter("ocrsvc_trace_spans", "Trace spans exported.")
SPANS_DROPPED: Final = counter("ocrsvc_trace_spans_dropped", "Trace spans dropped: queue full or export failed.")
SERIES_DROPPED: Final = counter(
    "ocrsvc_series_dropped", "Metric series that are not counted because their table is full; please report it."
)
STARTED: Final = gauge("process_start_time_seconds", "Start of the service, in Unix time.")
BUILD: Final = info("ocrsvc_build", "The service's version.", ("version",))
ENGINE: Final = info(
    "ocrsvc_engine", "The engine of this worker.", ("name", "model", "version", "device", "precision", "provider")
)

METRICS: Final = tuple(
    item for names in (globals(), vars(model_metrics)) for item in list(names.values()) if isinstance(item, Metric)
)
"""Every metric declared here and in model_metrics.py."""

_READ_AT_SCRAPE: Final = (
    *(WORKERS, WORKERS_WANTED, WORKERS_MOST, WAITING_FOR_SUCCESSOR, RECYCLES, DRAINS_FIRST, BOOT_FAILURES_IN_A_ROW),
    *(WORKER_REQUESTS, WORKER_IN_FLIGHT, WORKER_RSS, WORKER_RSS_LIMIT, WORKER_GPU, MEMORY_USED, MEMORY_LIMIT),
    *(GPU_MEMORY_USED, GPU_MEMORY_TOTAL, GPU_UTILIZATION, DENIED, STARTED, BUILD, ENGINE),
)

COUNTED: Final = tuple(metric for metric in METRICS if metric not in _READ_AT_SCRAPE)
"""Metrics stored in the blocks of the metrics store; the others are read at scrape time."""
