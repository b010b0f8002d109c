"""Settings of the result cache: its memory or its Redis, and the lifetime of a page."""

from __future__ import annotations

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import ByteCount


class CacheSettings(SettingsGroup):
    """The result cache: in each worker's memory, or in Redis."""

    title = "Result cache"

    cache_bytes: ByteCount = setting(
        0,
        "Memory of each worker for pages that were read; the same bytes with the same options are then answered "
        "without the engine; 0 keeps none.",
        "bytes",
        ge=0,
        le=2**40,
    )
    cache_url: str | None = setting(
        None,
        "A Redis that keeps such pages for all workers and machines, instead of the workers' own memory.",
        accepted="an address, such as redis://host:6379/0, rediss://… (over TLS) or unix://…",
    )
    cache_s: float = setting(86_400.0, "How long such a page is kept.", "s", gt=0, le=10**9)
