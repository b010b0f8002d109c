"""Settings of how new versions of models prove themselves."""

from __future__ import annotations

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import MemoryAmount, Percentage


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
