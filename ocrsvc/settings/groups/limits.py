"""Settings of the limits of requests (queue, time, bytes, callers, pixels, pages): answered 413, 429, 503 or 504."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import ByteCount, MemoryAmount

_FORMAT_MAX_PIXELS: Final = {
    "jpeg": 50_000_000,
    "png": 50_000_000,
    "bmp": 50_000_000,
    "pnm": 50_000_000,
    "tiff": 40_000_000,
    "webp": 30_000_000,
    "gif": 20_000_000,
    "pdf": 50_000_000,
}


def _check_header(value: str) -> str:
    """The name itself, if it is one of a header that WSGI can pass on, or empty; raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9-]{0,64}", value):
        raise ValueError("not the name of a header")
    return value


def _complete_formats(value: object) -> object:
    """Pixel limits of "gif=1000, webp=2000" or of a table, over the defaults of the formats left out."""
    if isinstance(value, str):
        value = {key.strip(): limit.strip() for key, _, limit in (part.partition("=") for part in value.split(","))}
    if not isinstance(value, Mapping):
        return value
    if unknown := set(value) - set(_FORMAT_MAX_PIXELS):
        raise ValueError(f"unknown formats {sorted(map(str, unknown))}")
    return _FORMAT_MAX_PIXELS | dict(value)


HeaderName = Annotated[str, AfterValidator(_check_header)]
FormatPixels = Annotated[dict[str, Annotated[int, Field(ge=1)]], BeforeValidator(_complete_formats)]


class LimitSettings(SettingsGroup):
    """The queue, time, bytes, callers, pixels and pages of requests."""

    title = "Limits"

    queue_size: int = setting(
        64,
        "Images that may wait for the engine in each worker, batch ones in three quarters of the places; more are "
        "answered 503.",
        "images",
        ge=1,
        le=100_000,
    )
    deadline_s: float = setting(
        60.0, "Longest time that a request may take before it is answered 504.", "s", gt=0, le=3600
    )
    max_body_bytes: ByteCount = setting(
        64 * 2**20, "Largest request body; a larger one is answered 413.", "bytes", ge=1024, le=4 * 2**30
    )
    request_memory_bytes: MemoryAmount | None = setting(
        None,
        "Memory that the requests of each worker may hold together, from a request's first byte until its answer has "
        "left; what does not fit is answered 503, or 413 where it never can; by default a quarter of the memory for "
        "all workers, 384 MiB each at most.",
        "bytes",
    )
    caller_requests: int = setting(
        0,
        "Requests that one caller may have under way in each worker; more are answered 429; 0 is no limit.",
        "requests",
        ge=0,
        le=100_000,
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
        ge=1,
        le=2**31 - 1,
    )
    format_max_pixels: FormatPixels = setting(
        _FORMAT_MAX_PIXELS,
        "Most pixels per image format, beside max_pixels: the lower one holds; formats left out keep their default.",
        "pixels",
        accepted="format=pixels, … (in the file a table) for " + ", ".join(_FORMAT_MAX_PIXELS),
    )
    max_pages: int = setting(
        50, "Most pages of one document that a request may ask for; more are answered 413.", "pages", ge=1, le=100_000
    )
    pdf_dpi: int = setting(
        200,
        "Resolution at which the pages of a PDF are drawn, lower where a page would have too many pixels; a page that "
        "is one image is read at that image's own resolution, up to 1.5 times this one; 0 reads no PDFs.",
        "dpi",
        ge=0,
        le=1200,
    )
