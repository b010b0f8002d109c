"""Settings of the model repository, and of the models that a worker has loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator

from ocrsvc.settings.group import SettingsGroup, setting

_MODEL: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}(?:/[1-9][0-9]{0,8}|:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?")


def _check_model(name: str) -> str:
    """The name of a model, with a version or a label if need be; raises ValueError."""
    if not _MODEL.fullmatch(name):
        raise ValueError("no name of a model")
    return name


class ModelSettings(SettingsGroup):
    """Where models are, and which of them a worker holds."""

    title = "Models"

    models: Path | None = setting(
        None,
        "Folder of models, NAME/VERSION/ with model.toml each; by default there is only the built-in one, ppocr/1.",
    )
    models_state: Path | None = setting(
        None,
        "Folder for what is decided about the models while the service runs, such as verdicts and labels; by default "
        "one for each repository in the user's cache folder.",
    )
    model: Annotated[str, AfterValidator(_check_model)] = setting(
        "ppocr",
        "The model that reads requests that name none, where OCRSVC_MODELS is set.",
        accepted="NAME, NAME/VERSION or NAME:LABEL",
    )
