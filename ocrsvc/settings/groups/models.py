"""Settings of the model repository, and of the models that a worker has loaded."""

from __future__ import annotations

from pathlib import Path

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import MemoryAmount, Percentage


class ModelSettings(SettingsGroup):
    """Where models are, and which of them a worker holds."""

    title = "Models"

    models: Path | None = setting(
        None,
        "Folder of models, NAME/VERSION/ with model.toml each; by default there is only the built-in one, ppocr/1.",
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
