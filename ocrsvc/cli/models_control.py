"""`ocrsvc models label|load|unload|forget`: what a running service follows without a change on disk."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ocrsvc.cli.models_repository import control_of, named_model, named_version
from ocrsvc.errors import OperatorError, UnknownModel
from ocrsvc.settings.settings import Settings

if TYPE_CHECKING:
    from ocrsvc.models.model_control import ModelControl

_NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class ControlCommand:
    """One command; see models.Action.

    Attributes:
        HELP: In one line.
        arguments: Name and help of each, in order.
        change: Does it, and says what is so now. Raises OperatorError, UnknownModel or BadOption.
    """

    HELP: str
    arguments: tuple[tuple[str, str], ...]
    change: Callable[[ModelControl, argparse.Namespace], str]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments of the command."""
        for name, words in self.arguments:
            parser.add_argument(name, metavar=name.upper(), help=words)

    def run(self, args: argparse.Namespace, settings: Settings) -> int:
        """Do it. Raises OperatorError, UnknownModel or BadOption."""
        print(self.change(control_of(settings), args))
        return 0


def _label(control: ModelControl, args: argparse.Namespace) -> str:
    if args.version == _NONE:
        control.set_labels(args.name, {args.label: None})
        return f"{args.name} has no label {args.label}."
    if not args.version.isascii() or not args.version.isdecimal():
        raise OperatorError(f"{args.version[:40]!r} is no version.", f"Accepted is its number, or {_NONE}.")
    control.set_labels(args.name, {args.label: int(args.version)})
    return f"{args.name}:{args.label} is {args.name}/{int(args.version)}."


def _load(control: ModelControl, args: argparse.Namespace) -> str:
    wanted = named_model(args.model)
    control.load(wanted.name, wanted.number)
    return f"{wanted} is wanted, and serves as soon as it has proved itself."


def _unload(control: ModelControl, args: argparse.Namespace) -> str:
    wanted = named_model(args.model)
    control.unload(wanted.name, wanted.number)
    return f"{wanted} serves no more requests."


def _forget(control: ModelControl, args: argparse.Namespace) -> str:
    name, number = named_version(args.version)
    found = next((one.version for one in control.status() if (one.name, one.number) == (name, number)), None)
    if found is None:
        raise UnknownModel(f"There is no {name}/{number} that could be tried.", "See `ocrsvc models list`.")
    control.store.forget_verdict(found.digest)
    return f"{name}/{number} is tried anew, as if it had just been added."


_MODEL: Final = ("model", "NAME, or NAME/VERSION")
LABEL: Final = ControlCommand(
    "set a label, such as stable or canary",
    (("name", "of the model"), ("label", "its label"), ("version", f"its number, or {_NONE} to take the label away")),
    _label,
)
LOAD: Final = ControlCommand("have a model or version serve that the policy does not want", (_MODEL,), _load)
UNLOAD: Final = ControlCommand("have a model or version serve no more", (_MODEL,), _unload)
FORGET: Final = ControlCommand(
    "forget what was found of a version, so that it is tried anew", (("version", "NAME/VERSION"),), _forget
)
