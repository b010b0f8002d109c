"""`ocrsvc models`: lists, adds, checks, encrypts and removes models, which a running service follows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from ocrsvc.cli import models_add, models_check, models_encrypt, models_list, models_new_key, models_remove
from ocrsvc.cli.models_control import FORGET, LABEL, LOAD, UNLOAD
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings

HELP: Final = "list, add, check, label, load, encrypt and remove models"


class Action(Protocol):
    """One command: a module, or an object like one."""

    @property
    def HELP(self) -> str:  # noqa: N802  a module's constant
        """In one line."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declare the arguments."""

    def run(self, args: argparse.Namespace, settings: Settings, /) -> int:
        """The exit code. Raises OcrsvcError."""


_ACTIONS: Final[Mapping[str, Action]] = {
    "list": models_list,
    "add": models_add,
    "check": models_check,
    "label": LABEL,
    "load": LOAD,
    "unload": UNLOAD,
    "forget": FORGET,
    "remove": models_remove,
    "encrypt": models_encrypt,
    "new-key": models_new_key,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands of `ocrsvc models`."""
    parser.description = "The model repository, the folder that OCRSVC_MODELS names."
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    for name, action in _ACTIONS.items():
        subparser = actions.add_parser(name, help=action.HELP, allow_abbrev=False)
        subparser.add_argument(
            "--models", type=Path, metavar="FOLDER", help="the repository; that of OCRSVC_MODELS if left out"
        )
        action.add_arguments(subparser)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises OperatorError."""
    named = {} if args.models is None else {"OCRSVC_MODELS": str(args.models)}
    return _ACTIONS[args.action].run(args, read_settings(os.environ | named))
