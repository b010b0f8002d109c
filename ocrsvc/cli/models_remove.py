"""`ocrsvc models remove`: takes a version out of the repository, its manifest first, so that nobody sees half of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from ocrsvc.cli.models_repository import control_of, named_version, repository_of, selector_of
from ocrsvc.engines.model.version import built_in_model
from ocrsvc.errors import OperatorError
from ocrsvc.models.importers.write_version import remove_version
from ocrsvc.models.model_control import VersionStatus
from ocrsvc.models.model_name import WantedModel
from ocrsvc.settings.settings import Settings

HELP: Final = "remove a version"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc models remove`."""
    parser.add_argument("version", metavar="NAME/VERSION", help="the version")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="also if requests are read by it, or a label names it")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Remove it. Raises OperatorError: it is not there, serves, or nobody has said yes."""
    name, number = named_version(args.version)
    folder = repository_of(settings) / name / str(number)
    if (name, number) == (built_in_model().name, built_in_model().number):
        raise OperatorError(f"{name}/{number} is the built-in model.", "OCRSVC_MODEL names another one to read with.")
    if not folder.is_dir():
        raise OperatorError(f"There is no {name}/{number} in {settings.models}.", "See `ocrsvc models list`.")
    if not args.force:
        _check_free(settings, name, number)
    if not args.yes and not _ask(folder):
        return 1
    remove_version(folder)
    print(f"{name}/{number} is removed.")
    return 0


def _check_free(settings: Settings, name: str, number: int) -> None:
    """Raises OperatorError where requests would be read by another version from now on, or by none."""
    control = control_of(settings)
    uses = [f"the label {label} names it" for label in _labels(control.status(), name, number)]
    for wanted in (WantedModel(name), selector_of(control, settings).default):
        serving = selector_of(control, settings).serving(wanted)
        if serving is not None and (serving.name, serving.number) == (name, number):
            uses.append(f"it reads requests for {wanted}")
    if uses:
        raise OperatorError(
            f"{name}/{number} is in use: {', '.join(dict.fromkeys(uses))}.",
            "Have another version serve first (ocrsvc models label, load or unload), or say --force.",
        )


def _labels(found: list[VersionStatus], name: str, number: int) -> tuple[str, ...]:
    return next((one.labels for one in found if (one.name, one.number) == (name, number)), ())


def _ask(folder: Path) -> bool:
    """Whether the operator says yes. Raises OperatorError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise OperatorError("Nobody can be asked whether to remove it.", "Say --yes.")
    print(f"Remove {folder}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
