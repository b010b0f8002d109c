"""Settings of the workers: how many processes and threads, and the limits at which one is replaced."""

from __future__ import annotations

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import MemoryAmount


class WorkerSettings(SettingsGroup):
    """Worker processes, their threads and their limits. None: `ocrsvc.system.thread_plan` decides."""

    title = "Workers"

    workers: int | None = setting(None, "Worker processes; gunicorn's -w wins.", "processes", ge=1, le=256)
    threads: int | None = setting(
        None, "Threads that hold requests in each worker; gunicorn's --threads wins.", "threads", ge=1, le=4096
    )
    engine_threads: int | None = setting(
        None, "Threads that run the engine in each worker, one engine handle each.", "threads", ge=1, le=256
    )
    boot_limit_s: float = setting(
        600.0, "How long a worker may take to load and warm up its engine before it is ended.", "s", gt=0, le=86400
    )
    max_requests: int = setting(
        0, "Requests after which a worker is replaced by a fresh one; 0 is never.", "requests", ge=0, le=10**9
    )
    max_requests_jitter: int = setting(
        0,
        "Upper end of a random number added to max_requests, so that workers do not go together.",
        "requests",
        ge=0,
        le=10**9,
    )
    max_age_s: float = setting(
        0.0, "Time after which a ready worker is replaced by a fresh one; 0 is never.", "s", ge=0, le=10**9
    )
    rss_soft_bytes: MemoryAmount | None = setting(
        None,
        "Resident memory at which a worker is replaced, its successor first; 0 is no limit, a share is of the memory "
        "of the machine or container; by default such that all workers and one successor fill 80 % of that.",
        "bytes",
    )
    rss_hard_bytes: MemoryAmount | None = setting(
        None,
        "Resident memory at which a worker stops accepting at once, successor or not; 0 is no limit; by default as for "
        "the soft limit, with 90 %.",
        "bytes",
    )
    gpu_soft_bytes: MemoryAmount | None = setting(
        None,
        "Memory of the GPU at which a worker is replaced, its successor first; 0 is no limit, a share is of the GPU; "
        "by default such that all workers, and a successor where there is room for one, fill 85 % of it.",
        "bytes",
    )
    gpu_hard_bytes: MemoryAmount | None = setting(
        None,
        "Memory of the GPU at which a worker stops accepting at once, successor or not; 0 is no limit; by default as "
        "for the soft limit, with 95 %.",
        "bytes",
    )
