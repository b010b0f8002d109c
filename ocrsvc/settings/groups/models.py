"""Settings of the model repository, and of the models that a worker has loaded."""

from __future__ import annotations

from pathlib import Path

from ocrsvc.settings.group import SettingsGroup, setting


class ModelSettings(SettingsGroup):
    """Where models are, and which of them a worker holds."""

    title = "Models"

    models: Path | None = setting(
        None,
        "Folder of models, NAME/VERSION/ with model.toml each; by default there is only the built-in one, ppocr/1.",
    )
