"""Settings of how new versions of models prove themselves, take traffic, and are rolled back."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import MemoryAmount, Percentage

FEWEST_LIVE_PAGES: Final = 30
"""Of each version; fewer say nothing."""


def _check_live_pages(pages: int) -> int:
    """The number, if a version can be judged by so many pages, or is not to be; raises ValueError."""
    if 0 < pages < FEWEST_LIVE_PAGES:
        raise ValueError("too few pages to judge by")
    return pages


class ModelSwapSettings(SettingsGroup):
    """How a new version of a model gets to serve while the service runs."""

    title = "New versions of models"

    models_poll_s: float = setting(
        5.0,
        "How often each worker looks at the folders of OCRSVC_MODELS for versions that have come or gone; that works "
        "on every file system, a network's too.",
        "s",
        ge=0.1,
        le=3600,
    )
    models_proof_s: float = setting(
        300.0,
        "Time that a new version has to open and read the reference pages, in a process of its own, without what that "
        "process waits for a processor; then it is refused.",
        "s",
        gt=0,
        le=3600,
    )
    models_proof_memory: MemoryAmount = setting(
        Percentage(25),
        "Memory that this process may take; a version that takes more is refused.",
        "bytes",
        accepted="bytes with an optional unit such as 2GiB, or a percentage of the machine's or container's memory",
    )
    models_live_pages: Annotated[int, AfterValidator(_check_live_pages)] = setting(
        200,
        "Pages that a worker reads with a new version before it is trusted, held against as many of the version "
        "before: it is rolled back when they are out of the bands below; 0 never rolls back.",
        ge=0,
        le=10_000,
        accepted=f"0, or {FEWEST_LIVE_PAGES} and more: a whole number",
    )
    models_live_errors: float = setting(
        0.02, "By how much the share of these pages on which the engine fails may be higher.", ge=0, le=1
    )
    models_live_confidence: float = setting(
        0.03, "By how much the mean confidence of these pages may be lower.", ge=0, le=1
    )
