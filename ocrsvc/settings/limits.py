"""Settings of what requests, workers, jobs and the result cache may take, and of masking."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, SecretStr, StringConstraints

from ocrsvc.settings.group import ByteCount, MemoryAmount, SettingsGroup, setting, split_list

_FORMATS: Final = ("jpeg", "png", "bmp", "pnm", "tiff", "webp", "gif", "pdf")
_FORMAT_PIXELS: Final = dict.fromkeys(_FORMATS, 50_000_000) | {
    "tiff": 40_000_000,
    "webp": 30_000_000,
    "gif": 20_000_000,
}
_MAX_PATTERNS: Final = 100
_MAX_PATTERN_CHARS: Final = 1000


def _complete_formats(value: object) -> object:
    """Pixel limits of "gif=1000, webp=2000" or of a table, over the defaults of the formats left out."""
    if isinstance(value, str):
        value = {key.strip(): limit.strip() for key, _, limit in (part.partition("=") for part in value.split(","))}
    if not isinstance(value, Mapping):
        return value
    if unknown := set(value) - set(_FORMAT_PIXELS):
        raise ValueError(f"unknown formats {sorted(map(str, unknown))}")
    return _FORMAT_PIXELS | dict(value)


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns, if RE2 compiles each and none of them finds empty text; raises ValueError."""
    if patterns and (find_spec("re2") is None or len(patterns) > _MAX_PATTERNS):
        raise ValueError("not installed, or too many")
    for pattern in patterns:
        if len(pattern) > _MAX_PATTERN_CHARS or compile_pattern(pattern).search(""):
            raise ValueError("a pattern that is too long, or that finds empty text")
    return patterns


def compile_pattern(pattern: str) -> Any:
    """What re2 makes of a pattern, with little memory. Raises ValueError, and ImportError where it is not installed."""
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = 1 << 20, False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"not a pattern of RE2: {error}") from error


_ACCEPTED: Final = (
    f"with the extra ocrsvc[mask], up to {_MAX_PATTERNS} regular expressions of RE2, one a line (in the file a list), "
    f"each of up to {_MAX_PATTERN_CHARS} letters and none of which finds empty text"
)
Patterns = Annotated[
    tuple[str, ...], BeforeValidator(partial(split_list, separator="\n")), AfterValidator(_check_patterns)
]
HeaderName = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9-]{0,64}$")]
FormatPixels = Annotated[dict[str, Annotated[int, Field(ge=1)]], BeforeValidator(_complete_formats)]


class WorkerSettings(SettingsGroup, title="Workers"):
    """Worker processes, their threads and their limits. None: `ocrsvc.system.thread_plan` decides."""

    workers: int | None = setting(None, "Worker processes; gunicorn's -w wins.", "processes", between=(1, 256))
    threads: int | None = setting(
        None, "Threads that hold requests in each worker; gunicorn's --threads wins.", "threads", between=(1, 4096)
    )
    engine_threads: int | None = setting(
        None, "Threads that run the engine in each worker, one engine handle each.", "threads", between=(1, 256)
    )
    boot_limit_s: PositiveFloat = setting(
        600.0, "How long a worker may take to load and warm up its engine before it is ended.", le=86400
    )
    max_requests: int = setting(
        0, "Requests after which a worker is replaced by a fresh one; 0 is never.", "requests", between=(0, 10**9)
    )
    max_requests_jitter: int = setting(
        0,
        "Upper end of a random number added to max_requests, so that workers do not go together.",
        "requests",
        between=(0, 10**9),
    )
    max_age_s: float = setting(
        0.0, "Time after which a ready worker is replaced by a fresh one; 0 is never.", between=(0, 10**9)
    )
    rss_soft_bytes: MemoryAmount | None = setting(
        None,
        "Resident memory at which a worker is replaced, its successor first; 0 is no limit, a share is of the memory "
        "of the machine or container; by default such that all workers and one successor fill 80 % of that.",
    )
    rss_hard_bytes: MemoryAmount | None = setting(
        None,
        "Resident memory at which a worker stops accepting at once, successor or not; 0 is no limit; by default as for "
        "the soft limit, with 90 %.",
    )
    gpu_soft_bytes: MemoryAmount | None = setting(
        None,
        "Memory of the GPU at which a worker is replaced, its successor first; 0 is no limit, a share is of the GPU; "
        "by default such that all workers, and a successor where there is room for one, fill 85 % of it.",
    )
    gpu_hard_bytes: MemoryAmount | None = setting(
        None,
        "Memory of the GPU at which a worker stops accepting at once, successor or not; 0 is no limit; by default as "
        "for the soft limit, with 95 %.",
    )


class LimitSettings(SettingsGroup, title="Limits"):
    """The queue, time, bytes, callers, pixels and pages of requests."""

    queue_size: int = setting(
        64,
        "Images that may wait for the engine in each worker, batch ones in three quarters of the places; more are "
        "answered 503.",
        "images",
        between=(1, 100_000),
    )
    deadline_s: PositiveFloat = setting(
        60.0, "Longest time that a request may take before it is answered 504.", le=3600
    )
    max_body_bytes: ByteCount = setting(
        64 * 2**20, "Largest request body; a larger one is answered 413.", between=(1024, 4 * 2**30)
    )
    request_memory_bytes: MemoryAmount | None = setting(
        None,
        "Memory that the requests of each worker may hold together, from a request's first byte until its answer has "
        "left; what does not fit is answered 503, or 413 where it never can; by default a quarter of the memory for "
        "all workers, 384 MiB each at most.",
    )
    caller_requests: int = setting(
        0,
        "Requests that one caller may have under way in each worker; more are answered 429; 0 is no limit.",
        "requests",
        between=(0, 100_000),
    )
    caller_header: HeaderName = setting(
        "",
        "Header that tells callers apart, by its last entry, such as X-Forwarded-For behind a proxy that sets it; "
        "empty, or where a request lacks it, the remote address does (of IPv6 its first 64 bits).",
        accepted="the name of a header, of letters, digits and hyphens",
    )
    max_pixels: int = setting(
        50_000_000,
        "Most pixels that an image's header may declare; more is answered 413.",
        "pixels",
        between=(1, 2**31 - 1),
    )
    format_max_pixels: FormatPixels = setting(
        _FORMAT_PIXELS,
        "Most pixels per image format, beside max_pixels: the lower one holds; formats left out keep their default.",
        "pixels",
        accepted="format=pixels, … (in the file a table) for " + ", ".join(_FORMAT_PIXELS),
    )
    max_pages: int = setting(
        50,
        "Most pages of one document that a request may ask for; more are answered 413.",
        "pages",
        between=(1, 100_000),
    )
    pdf_dpi: int = setting(
        200,
        "Resolution at which the pages of a PDF are drawn, lower where a page would have too many pixels; a page that "
        "is one image is read at that image's own resolution, up to 1.5 times this one; 0 reads no PDFs.",
        "dpi",
        between=(0, 1200),
    )


class JobSettings(SettingsGroup, title="Jobs"):
    """The folder of jobs, and its limits."""

    tasks_dir: Path | None = setting(
        None,
        "Folder in which jobs (POST /v1/jobs, Umi-OCR's /api/doc) are kept over restarts of the service, in a folder "
        "ocrsvc-jobs in it that one service at a time uses; without it they lie in a temporary folder, and are lost "
        "when the service ends.",
    )
    tasks_bytes: ByteCount = setting(
        2**30,
        "Most bytes of such documents and their results, all workers together; callers share them, and finished "
        "documents make room for new ones; 0 takes none.",
        between=(0, 2**50),
    )
    tasks_s: PositiveFloat = setting(86_400.0, "How long such a document and its results are kept.", le=10**9)
    job_pages: int = setting(
        10_000, "Most pages of one job; OCRSVC_MAX_PAGES is for documents that a client waits for.", between=(1, 10**6)
    )
    jobs_waiting: int = setting(100, "Most jobs of one caller that are not read yet.", between=(1, 1000))
    jobs_waiting_pages: int = setting(
        100_000, "Most pages of all jobs of one caller that are not read yet.", between=(1, 10**9)
    )
    callback_tries: int = setting(
        12,
        "How often the end of a job is told to its callback, which answers nothing or an error: the first time at "
        "once, then after 5 s, and twice as long after each further time, up to an hour.",
        between=(1, 100),
    )
    # What is handed to other processes goes without it.
    callback_secret: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None,
        "From it comes the secret of each API key, which signs callbacks of the key's jobs that name none: ocrsvc keys "
        "callback-secret NAME prints it.",
        accepted="a text of at least 16 characters, also whsec_ and base64",
    )


class CacheSettings(SettingsGroup, title="Result cache"):
    """The result cache: in each worker's memory, or in Redis."""

    cache_bytes: ByteCount = setting(
        0,
        "Memory of each worker for pages that were read; the same bytes with the same options are then answered "
        "without the engine; 0 keeps none.",
        between=(0, 2**40),
    )
    cache_url: str | None = setting(
        None,
        "A Redis that keeps such pages for all workers and machines, instead of the workers' own memory.",
        accepted="an address, such as redis://host:6379/0, rediss://… (over TLS) or unix://…",
    )
    cache_s: PositiveFloat = setting(86_400.0, "How long such a page is kept.", le=10**9)


class MaskingSettings(SettingsGroup, title="Masking"):
    """The operator's patterns."""

    mask_patterns: Patterns = setting(
        (),
        "Patterns of your own that mask=own masks, such as EMP-[0-9]{6}; RE2 matches them, in linear time whatever "
        "they are.",
        accepted=_ACCEPTED,
    )
