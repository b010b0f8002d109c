"""Settings of workers, request limits, jobs, the result cache and masking."""

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, SecretStr, StringConstraints

from ocrsvc.settings.group import ByteCount, MemoryAmount, SettingsGroup, setting, split_list

_FORMATS: Final = ("jpeg", "png", "bmp", "pnm", "tiff", "webp", "heic", "avif", "gif", "pdf")
_PIXELS: Final = dict.fromkeys(_FORMATS, 50_000_000) | {
    "tiff": 40_000_000,
    "webp": 30_000_000,
    "gif": 20_000_000,
}
_MAX_PATTERNS: Final = 100
_MAX_PATTERN_CHARS: Final = 1000


def _complete_formats(value: object) -> object:
    """Parse pixel limits such as "gif=1000, webp=2000" or a table, and add missing formats. Raises ValueError."""
    if isinstance(value, str):
        value = {key.strip(): limit.strip() for key, _, limit in (part.partition("=") for part in value.split(","))}
    if not isinstance(value, Mapping):
        return value
    if unknown := set(value) - set(_PIXELS):
        raise ValueError(f"unknown formats {sorted(map(str, unknown))}")
    return _PIXELS | dict(value)


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Check that RE2 compiles each pattern and none matches empty text. Raises ValueError."""
    if patterns and (find_spec("re2") is None or len(patterns) > _MAX_PATTERNS):
        raise ValueError("re2 is not installed, or there are too many patterns")
    for pattern in patterns:
        if len(pattern) > _MAX_PATTERN_CHARS or compile_pattern(pattern).search(""):
            raise ValueError("a pattern is too long, or matches empty text")
    return patterns


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern with re2 and a memory limit. Raises ValueError, and ImportError without re2."""
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = 1 << 20, False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"not an RE2 pattern: {error}") from error


_ACCEPTED: Final = (
    f"with the extra mask, up to {_MAX_PATTERNS} RE2 regular expressions, one a line (in the file a list), "
    f"each of up to {_MAX_PATTERN_CHARS} characters, and none that matches empty text"
)
Patterns = Annotated[
    tuple[str, ...], BeforeValidator(partial(split_list, separator="\n")), AfterValidator(_check_patterns)
]
HeaderName = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9-]{0,64}$")]
FormatPixels = Annotated[dict[str, Annotated[int, Field(ge=1)]], BeforeValidator(_complete_formats)]


class WorkerSettings(SettingsGroup, title="Workers"):
    """Worker processes, their threads and limits. Where a value is None, `ocrsvc.system.thread_plan` decides."""

    workers: int | None = setting(None, "Worker processes; overridden by gunicorn's -w.", "processes", between=(1, 256))
    threads: int | None = setting(
        None, "Request threads per worker; overridden by gunicorn's --threads.", "threads", between=(1, 4096)
    )
    engine_threads: int | None = setting(
        None, "Engine threads per worker, each with its own engine.", "threads", between=(1, 256)
    )
    boot_limit_s: PositiveFloat = setting(
        600.0, "Time after which a worker that is still loading or warming up its engine is killed.", le=86400
    )
    max_requests: int = setting(0, "Requests until a worker is replaced; 0 is never.", "requests", between=(0, 10**9))
    max_requests_jitter: int = setting(
        0,
        "Upper bound of a random number added to max_requests, so that workers are not replaced together.",
        "requests",
        between=(0, 10**9),
    )
    max_age_s: float = setting(0.0, "Age at which a ready worker is replaced; 0 is never.", between=(0, 10**9))
    rss_soft_bytes: MemoryAmount | None = setting(
        None,
        "Resident memory at which a worker is replaced (its successor starts first); 0 is no limit, a percentage is of "
        "the machine's or container's memory; by default all workers and one successor may fill 80 % of that.",
    )
    rss_hard_bytes: MemoryAmount | None = setting(
        None,
        "Resident memory at which a worker stops accepting immediately, even without a successor; 0 is no limit; by "
        "default as for the soft limit, with 90 %.",
    )
    gpu_soft_bytes: MemoryAmount | None = setting(
        None,
        "GPU memory at which a worker is replaced (its successor starts first); 0 is no limit, a percentage is of the "
        "GPU; by default all workers, and a successor if there is room for one, may fill 85 % of it.",
    )
    gpu_hard_bytes: MemoryAmount | None = setting(
        None,
        "GPU memory at which a worker stops accepting immediately, even without a successor; 0 is no limit; by default "
        "as for the soft limit, with 95 %.",
    )


class LimitSettings(SettingsGroup, title="Limits"):
    """Limits on requests: queue, time, bytes, callers, pixels and pages."""

    queue_size: int = setting(
        64,
        "Images that may wait for the engine in each worker; batch requests may take three quarters of the places; "
        "more are answered 503.",
        "images",
        between=(1, 100_000),
    )
    deadline_s: PositiveFloat = setting(60.0, "Longest time of a request; then it is answered 504.", le=3600)
    max_body_bytes: ByteCount = setting(
        64 * 2**20, "Largest request body; a larger one is answered 413.", between=(1024, 4 * 2**30)
    )
    request_memory_bytes: MemoryAmount | None = setting(
        None,
        "Memory that the requests of each worker may hold together, from a request's first byte to the end of its "
        "response; what does not fit is answered 503, or 413 if it never can; by default a quarter of the memory for "
        "all workers together, at most 384 MiB each.",
    )
    caller_requests: int = setting(
        0, "Concurrent requests of a caller per worker, else 429; 0 is no limit.", "requests", between=(0, 100_000)
    )
    caller_header: HeaderName = setting(
        "",
        "Header whose last entry identifies the caller, such as X-Forwarded-For behind a proxy that sets it; without "
        "it, the remote address does (for IPv6 its first 64 bits).",
        accepted="a header name of letters, digits and hyphens",
    )
    max_pixels: int = setting(
        50_000_000, "Most pixels that an image may declare; more are answered 413.", "pixels", between=(1, 2**31 - 1)
    )
    format_max_pixels: FormatPixels = setting(
        _PIXELS,
        "Most pixels per image format, in addition to max_pixels; formats left out keep their default.",
        "pixels",
        accepted="format=pixels, … (in the file a table) for " + ", ".join(_PIXELS),
    )
    max_pages: int = setting(50, "Most pages of one document; more are answered 413.", "pages", between=(1, 100_000))
    pdf_dpi: int = setting(
        200,
        "Resolution at which PDF pages are drawn, or lower if a page would have too many pixels; a page that is one "
        "image is read at that image's own resolution, up to 1.5 times this one; 0 reads no PDFs.",
        "dpi",
        between=(0, 1200),
    )


class JobSettings(SettingsGroup, title="Jobs"):
    """The job folder and its limits."""

    jobs_dir: Path | None = setting(
        None,
        "Folder in which jobs (POST /v1/jobs, Umi-OCR's /api/doc) survive restarts of the service, in a subfolder "
        "ocrsvc-jobs that one service at a time may use; without it they are in a temporary folder, and lost when the "
        "service ends.",
    )
    jobs_bytes: ByteCount = setting(
        2**30,
        "Most bytes of jobs' documents and results, of all workers together; callers share them, and finished jobs are "
        "deleted to make room for new ones; 0 accepts no jobs.",
        between=(0, 2**50),
    )
    jobs_s: PositiveFloat = setting(86_400.0, "How long a job's document and results are kept.", le=10**9)
    job_pages: int = setting(
        10_000, "Most pages of one job; OCRSVC_MAX_PAGES is for documents that a client waits for.", between=(1, 10**6)
    )
    jobs_waiting: int = setting(100, "Most unfinished jobs of one caller.", between=(1, 1000))
    jobs_waiting_pages: int = setting(100_000, "Most pages of one caller's unfinished jobs.", between=(1, 10**9))
    callback_tries: int = setting(
        12,
        "Most tries of a callback: the first immediately, the second after 5 s, and each further one after twice the "
        "time, up to an hour.",
        between=(1, 100),
    )
    # Secret, so it is excluded when settings are passed to other processes.
    callback_secret: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None,
        "Secret from which each API key's own secret is derived; that signs callbacks of the key's jobs that have no "
        "callback_secret. ocrsvc keys callback-secret NAME prints it.",
        accepted="a text of at least 16 characters, or whsec_ and base64",
    )


class CacheSettings(SettingsGroup, title="Result cache"):
    """The result cache, in each worker's memory or in Redis."""

    cache_bytes: ByteCount | None = setting(
        None,
        "Memory of each worker for results: the same page with the same options is then answered without the engine; 0 "
        "switches the cache off. By default 64 MiB, for requests with the header X-Keep-Result alone, such as those of "
        "the web page.",
        between=(0, 2**40),
    )
    cache_url: str | None = setting(
        None,
        "Redis that caches results for all workers and machines, instead of each worker's memory.",
        accepted="an address, such as redis://host:6379/0, rediss://… (over TLS) or unix://…",
    )
    cache_s: PositiveFloat = setting(86_400.0, "How long results are cached.", le=10**9)


class MaskingSettings(SettingsGroup, title="Masking"):
    """The operator's patterns of text to mask."""

    mask_patterns: Patterns = setting(
        (), "Your own patterns, which mask=own masks, such as EMP-[0-9]{6}, in RE2's syntax.", accepted=_ACCEPTED
    )
