"""`ocrsvc models`: lists, adds, checks, removes and encrypts models of a repository; a running service follows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from ocrsvc.cli import models_add, models_encrypt, models_list, models_new_key
from ocrsvc.settings.load import read_settings

HELP: Final = "list, add, check, remove and encrypt models"

_ACTIONS: Final[Mapping[str, ModuleType]] = {
    "list": models_list,
    "add": models_add,
    "encrypt": models_encrypt,
    "new-key": models_new_key,
}
"""Each module has HELP, add_arguments(parser) and run(args, settings), which returns the exit code."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands of `ocrsvc models`."""
    parser.description = "The model repository, the folder that OCRSVC_MODELS names."
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    for name, action in _ACTIONS.items():
        subparser = actions.add_parser(name, help=action.HELP, description=action.__doc__, allow_abbrev=False)
        subparser.add_argument(
            "--models", type=Path, metavar="FOLDER", help="the repository; that of OCRSVC_MODELS if left out"
        )
        action.add_arguments(subparser)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises OperatorError."""
    named = {} if args.models is None else {"OCRSVC_MODELS": str(args.models)}
    code: int = _ACTIONS[args.action].run(args, read_settings(os.environ | named))
    return code
