"""What the commands of `ocrsvc models` share: the repository that the settings name, its control, names of versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ocrsvc.cli.options import FILE, Number, gathered, option
from ocrsvc.engines.model.key_source import read_model_key
from ocrsvc.engines.model.version import MOST_VERSION
from ocrsvc.errors import OperatorError
from ocrsvc.models.model_name import WantedModel, parse_wanted_model
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings

# What only these commands need is imported when they run: others, such as health checks, start without it.
if TYPE_CHECKING:
    from ocrsvc.models.model_control import ModelControl
    from ocrsvc.models.version_selection import VersionSelector


VERSION_NUMBER: Final = Number(int, 1, MOST_VERSION, "a number from 1")
repository_option: Final = gathered(
    "settings",
    lambda models: read_settings(os.environ | ({"OCRSVC_MODELS": str(models)} if models else {})),
    option("--models", type=FILE, metavar="FOLDER", help="The repository; by default that of OCRSVC_MODELS."),
)


def repository_of(settings: Settings) -> Path:
    """The folder of the repository. Raises OperatorError: none is named."""
    if settings.models is None:
        raise OperatorError("Nothing says where the models are.", "Set OCRSVC_MODELS, or name a folder with --models.")
    return settings.models


def control_of(settings: Settings) -> ModelControl:
    """The control of the repository, as a worker has it. Raises OperatorError."""
    from ocrsvc.models.model_control import open_control
    from ocrsvc.models.state import state_folder

    folder = repository_of(settings)
    return open_control(folder, state_folder(folder, settings.models_state), read_model_key(settings))


def selector_of(control: ModelControl, settings: Settings) -> VersionSelector:
    """What a worker would find that has loaded everything that is available."""
    from ocrsvc.models.version_selection import VersionSelector

    return VersionSelector(control, parse_wanted_model(settings.model), lambda _version: True)


def named_version(text: str) -> tuple[str, int]:
    """Name and number of NAME/VERSION. Raises OperatorError."""
    wanted = named_model(text)
    if wanted.number is None:
        raise OperatorError(f"{text[:100]!r} names no version.", "Accepted is NAME/VERSION, such as mine/2.")
    return wanted.name, wanted.number


def named_model(text: str) -> WantedModel:
    """What NAME or NAME/VERSION names. Raises OperatorError."""
    try:
        wanted = parse_wanted_model(text)
    except ValueError:
        wanted = None
    if wanted is None or wanted.label is not None:
        raise OperatorError(f"{text[:100]!r} is no model.", "Accepted is NAME or NAME/VERSION, such as mine or mine/2.")
    return wanted
