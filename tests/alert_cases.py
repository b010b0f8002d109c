"""What makes each alert fire, and what does not: series in the notation of `promtool test rules`.

The values are worked out by hand from the sentence of each alert; `a+bxn` is a, and n more that grow by b each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """Series, by name and labels, with a value for each step, and whether the alert fires over them at a time."""

    alert: str
    fires: bool
    at: str
    series: dict[str, str]
    step: str = "1m"


def answered(read: str = "0x20", cached: str = "0x20") -> dict[str, str]:
    """The series of images that were read, and of those from the cache."""
    return {'ocrsvc_images_total{source="request"}': read, 'ocrsvc_cache_hits_total{source="request"}': cached}


def both(alert: str, at: str, fires: dict[str, str], quiet: dict[str, str], step: str = "1m") -> tuple[Case, Case]:
    """Over the first series the alert fires, over the second it does not."""
    return Case(alert, fires=True, at=at, series=fires, step=step), Case(
        alert, fires=False, at=at, series=quiet, step=step
    )


def queue(below_1_s: str, all_of_them: str, source: str = "request") -> dict[str, str]:
    """Images by how long they waited: at most 1 s, and at most 5."""
    return {
        f'ocrsvc_stage_seconds_bucket{{stage="queue",source="{source}",le="{bound}"}}': values
        for bound, values in (("1.0", below_1_s), ("5.0", all_of_them), ("+Inf", all_of_them))
    }


def failing(failures: str, images: str) -> dict[str, str]:
    """Images that were read, and refusals."""
    return {
        'ocrsvc_failures_total{code="queue_full"}': failures,
        'ocrsvc_images_total{source="request"}': images,
        'ocrsvc_cache_hits_total{source="request"}': "0x600",
    }


def slow(in_time: str, images: str, source: str = "request") -> dict[str, str]:
    """Images that were read within 5 s, and all."""
    return {
        f'ocrsvc_stage_seconds_bucket{{stage="total",source="{source}",le="5.0"}}': in_time,
        f'ocrsvc_stage_seconds_count{{stage="total",source="{source}"}}': images,
    }


READY = 'ocrsvc_workers{state="ready"}'
DRAINING = 'ocrsvc_workers{state="draining"}'
BUILD = 'ocrsvc_build_info{version="1"}'
CALLERS = 'ocrsvc_failures_total{code="bad_option"}'
INTERNAL = 'ocrsvc_failures_total{code="internal"}'

CASES = (
    # Of 70 requests in a minute 10 fail, 14 %, of an objective of 0.5 % at 14.4 times its rate, 7.2 %; and 1.6 %.
    *both("OcrsvcErrorBudgetBurnsFast", "70m", failing("0+10x90", "0+60x90"), failing("0+1x90", "0+60x90")),
    # It was so for 70 minutes, and has not been for 40: the budget does not burn any more.
    Case("OcrsvcErrorBudgetBurnsFast", fires=False, at="110m", series=failing("0+10x70 700x45", "0+60x115")),
    # Failures alone, and no images at all.
    Case("OcrsvcErrorBudgetBurnsFast", fires=True, at="70m", series=failing("0+10x90", "0x90")),
    Case(
        "OcrsvcErrorBudgetBurnsFast", fires=False, at="70m", series={'ocrsvc_images_total{source="request"}': "0+60x90"}
    ),
    # 1 % for eight hours, and 0.2 %.
    *both("OcrsvcErrorBudgetBurnsSlow", "8h", failing("0+1x50", "0+99x50"), failing("0+1x50", "0+499x50"), "10m"),
    *both("OcrsvcLatencyBudgetBurnsFast", "70m", slow("0+50x90", "0+60x90"), slow("0+99x90", "0+100x90")),
    # Nobody waits for the pages of jobs.
    Case(
        "OcrsvcLatencyBudgetBurnsFast",
        fires=False,
        at="70m",
        series=slow("0+100x90", "0+100x90") | slow("0x90", "0+500x90", "job"),
    ),
    *both("OcrsvcLatencyBudgetBurnsSlow", "8h", slow("0+98x50", "0+100x50"), slow("0+995x50", "0+1000x50"), "10m"),
    *both("OcrsvcAbsent", "6m", {}, {BUILD: "1x10"}),
    *both("OcrsvcDown", "10m", {BUILD: "1x5", "up{}": "1x5 0x10"}, {BUILD: "1x20", 'up{job="other"}': "0x20"}),
    *both("OcrsvcNoWorkerReady", "3m", {READY: "1 0x5"}, {READY: "1 1 0 1 1"}),
    *both(
        "OcrsvcFewWorkers",
        "12m",
        {READY: "1x20", "ocrsvc_workers_wanted{}": "2x20"},
        {READY: "2x4 1x6 2x10", "ocrsvc_workers_wanted{}": "2x20"},
    ),
    *both(
        "OcrsvcBootFailures",
        "3m",
        {"ocrsvc_boot_failures_in_a_row{}": "1x5"},
        {"ocrsvc_boot_failures_in_a_row{}": "0 1 0 1 0"},
    ),
    *both(
        "OcrsvcReplacementStuck",
        "17m",
        {"ocrsvc_workers_waiting_for_successor{}": "1x20"},
        {"ocrsvc_workers_waiting_for_successor{}": "1x8 0 1x20"},
    ),
    *both("OcrsvcReplacementStuck", "17m", {DRAINING: "1x20"}, {DRAINING: "1x8 0 1x20"}),
    # 60 in an hour, of two workers; and as many because the requests were counted.
    *both(
        "OcrsvcReplacedOften",
        "65m",
        {'ocrsvc_recycles_total{reason="rss_soft"}': "0+1x90", "ocrsvc_workers_wanted{}": "2x90"},
        {'ocrsvc_recycles_total{reason="max_requests"}': "0+1x90", "ocrsvc_workers_wanted{}": "2x90"},
    ),
    *both(
        "OcrsvcStuckEngineThreads",
        "7m",
        {"ocrsvc_stuck_engine_threads{}": "1x10"},
        {"ocrsvc_stuck_engine_threads{}": "1x3 0 1x10"},
    ),
    # Another service may start as often as it likes.
    *both(
        "OcrsvcRestarts",
        "6m",
        {"process_start_time_seconds{}": "100 100 200 300 400 400 400", BUILD: "1x10"},
        {'process_start_time_seconds{instance="other"}': "100 100 200 300 400 400 400", BUILD: "1x10"},
    ),
    *both("OcrsvcQueueWait", "20m", queue("0+50x30", "0+60x30"), queue("0+59x30", "0+60x30")),
    Case(
        "OcrsvcQueueWait",
        fires=False,
        at="20m",
        series=queue("0+60x30", "0+60x30") | queue("0x30", "0+600x30", "job"),
    ),
    *both(
        "OcrsvcRefusing",
        "15m",
        {'ocrsvc_refused_total{reason="queue_full"}': "0+10x20", **answered(read="0+90x20")},
        {'ocrsvc_refused_total{reason="queue_full"}': "0+1x20", **answered(read="0+90x20")},
    ),
    # The first one ever; and one that is older than ten minutes, and one that is the caller's.
    *both("OcrsvcInternalErrors", "12m", {INTERNAL: "_x10 1x5"}, {INTERNAL: "1x15"}),
    *both(
        "OcrsvcInternalErrors", "12m", {INTERNAL: "1x10 2x5"}, {'ocrsvc_failures_total{code="bad_option"}': "1+1x15"}
    ),
    *both(
        "OcrsvcRefusing",
        "15m",
        {'ocrsvc_refused_total{reason="not_ready"}': "0+10x20", **answered(read="0+90x20")},
        {'ocrsvc_refused_total{reason="quota_exceeded"}': "0+10x20", **answered(read="0+90x20")},
    ),
    # Pages from the cache are answered, too.
    *both(
        "OcrsvcRefusing",
        "15m",
        {'ocrsvc_refused_total{reason="queue_full"}': "0+10x20", **answered(cached="0+90x20")},
        {'ocrsvc_refused_total{reason="queue_full"}': "0+1x20", **answered(read="0+9x20", cached="0+81x20")},
    ),
    *both(
        "OcrsvcKeysUnavailable",
        "7m",
        {'ocrsvc_failures_total{code="keys_unavailable"}': "_x5 1x5"},
        {'ocrsvc_failures_total{code="keys_unavailable"}': "1x10"},
    ),
    *both(
        "OcrsvcCertificateExpires",
        "70m",
        {"ocrsvc_tls_certificate_not_after_timestamp_seconds{}": "604800x80"},
        {"ocrsvc_tls_certificate_not_after_timestamp_seconds{}": "612600x80"},
    ),
    *both(
        "OcrsvcCertificateNotTaken",
        "7m",
        {'ocrsvc_tls_certificate_reads_total{outcome="failed"}': "_x5 1x5"},
        {'ocrsvc_tls_certificate_reads_total{outcome="ok"}': "_x5 1x5"},
    ),
    *both(
        "OcrsvcModelRefused",
        "3m",
        {"ocrsvc_model_refused_versions{}": "0 1x10"},
        {"ocrsvc_model_refused_versions{}": "0x10"},
    ),
    *both("OcrsvcKeysNearQuota", "7m", {"ocrsvc_keys_near_quota{}": "1x10"}, {"ocrsvc_keys_near_quota{}": "0x10"}),
    *both(
        "OcrsvcMemoryNearLimit",
        "6m",
        {"ocrsvc_memory_used_bytes{}": "95x10", "ocrsvc_memory_limit_bytes{}": "100x10"},
        {"ocrsvc_memory_used_bytes{}": "90x10", "ocrsvc_memory_limit_bytes{}": "100x10"},
    ),
    *both(
        "OcrsvcGpuMemoryNearLimit",
        "6m",
        {'ocrsvc_gpu_memory_used_bytes{gpu="0"}': "98x10", 'ocrsvc_gpu_memory_total_bytes{gpu="0"}': "100x10"},
        {'ocrsvc_gpu_memory_used_bytes{gpu="0"}': "95x10", 'ocrsvc_gpu_memory_total_bytes{gpu="0"}': "100x10"},
    ),
    *both(
        "OcrsvcCrashDenylistGrows",
        "75m",
        {'ocrsvc_crash_denied_inputs{kind="image"}': "0x40 6x40"},
        {'ocrsvc_crash_denied_inputs{kind="image"}': "6x80"},
    ),
    *both(
        "OcrsvcDocumentsNearLimit",
        "32m",
        {"ocrsvc_tasks_bytes{}": "95x40", "ocrsvc_tasks_limit_bytes{}": "100x40"},
        {"ocrsvc_tasks_bytes{}": "0x40", "ocrsvc_tasks_limit_bytes{}": "0x40"},
    ),
    *both(
        "OcrsvcDocumentsDiskShort",
        "12m",
        {f"ocrsvc_tasks_{name}_bytes{{}}": f"{value}x20" for name, value in (("limit", 100), ("disk_free", 10))}
        | {"ocrsvc_tasks_bytes{}": "50x20"},
        {f"ocrsvc_tasks_{name}_bytes{{}}": f"{value}x20" for name, value in (("limit", 100), ("disk_free", 60))}
        | {"ocrsvc_tasks_bytes{}": "50x20"},
    ),
    *both(
        "OcrsvcLogLinesDropped",
        "3m",
        {"ocrsvc_access_events_dropped_total{}": "0 0 5 5"},
        {"ocrsvc_access_events_dropped_total{}": "5x5"},
    ),
    *both(
        "OcrsvcSeriesDropped",
        "2m",
        {"ocrsvc_series_dropped_total{}": "1x5"},
        {"ocrsvc_series_dropped_total{}": "0x5"},
    ),
)
