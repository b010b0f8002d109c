"""Settings of the model repository, and of the models that a worker has loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import MemoryAmount, Names

_MODEL: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}(?:/[1-9][0-9]{0,8}|:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?")


def _check_model(name: str) -> str:
    """The name of a model, with a version or a label if need be; raises ValueError."""
    if not _MODEL.fullmatch(name):
        raise ValueError("no name of a model")
    return name


def _check_models(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of models; raises ValueError."""
    return tuple(_check_model(name) for name in names)


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
    models_load: Annotated[Names, AfterValidator(_check_models)] = setting(
        ("default",),
        "Models that are loaded before a worker is ready: the default one alone, all, or these as well, as NAME, "
        "NAME/VERSION or NAME:LABEL. Others are loaded when a request names them.",
        accepted="default, all, or names of models",
    )
    models_memory: MemoryAmount | None = setting(
        None,
        "Memory that the models loaded in one worker may take together, children of OCRSVC_ISOLATION=process included; "
        "the least recently used ones make room for others. A share is of the memory of the machine or container; by "
        "default such that the models of all workers and one successor fill half of that.",
        "bytes",
    )
    models_code: bool = setting(
        False,
        "Whether versions of models may hold programs that the service runs, as libtr.so for the engine tr: then who "
        "may write into OCRSVC_MODELS decides what it does.",
    )
    model: Annotated[str, AfterValidator(_check_model)] = setting(
        "ppocr",
        "The model that reads requests that name none, where OCRSVC_MODELS is set.",
        accepted="NAME, NAME/VERSION or NAME:LABEL",
    )
