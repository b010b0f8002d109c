"""Commands and options of the command line: help by sections with examples, options of several commands, numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Command(click.Command):
    """A command whose help has its options by section, and examples at the end."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options without a section first, the others in the order of declaration, then commands below."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


class Group(Command, click.Group):
    """Commands under one name, in the order of declaration."""

    command_class = Command

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Their names."""
        return list(self.commands)


class _Option(click.Option):
    def __init__(self, *args: Any, section: str = "Options", **more: Any) -> None:
        super().__init__(*args, **more)
        self.section = section


def option(*names: str, **more: Any) -> Decorator:
    """An option as `click.option` declares it; `section` is the heading under which the help has it."""
    return click.option(*names, cls=_Option, **more)


def gathered(name: str, make: Callable[..., object], *options: Decorator) -> Decorator:
    """Options that a command takes as one argument of this name, which `make` makes of their values."""

    def declare(command: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(options):
            command = one(command)
        return command

    own = [parameter.name for parameter in click.command()(declare(lambda: None)).params]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(**given: Any) -> Any:
            values = {parameter: given.pop(parameter) for parameter in own}
            return command(**given, **{name: make(**values)})

        return declare(run)

    return decorate


def check_at_most_one(**given: object) -> None:
    """Raises UsageError where several of these are given, by the names of their options."""
    named = [f"--{name}" for name, value in given.items() if value]
    if len(named) > 1:
        said = f"{' and '.join(named)} exclude each other: give one of them."
        raise click.UsageError(said, click.get_current_context())


class Number(click.ParamType[Any]):
    """A number within bounds, both accepted, or a certain word; `accepted` says so."""

    name = "number"

    def __init__(self, kind: type[int | float], least: float, most: float, accepted: str, word: str = "") -> None:
        self._kind, self._least, self._most, self._accepted, self._word = kind, least, most, accepted, word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or the word as it is. Raises BadParameter."""
        if value == self._word:
            return value
        try:
            number = self._kind(value)
        except ValueError:
            number = math.nan
        if not self._least <= number <= self._most:
            self.fail(f"{value!r} is not {self._accepted}.", param, ctx)
        return number


FILE: Final = click.Path(path_type=Path)
FILE.name = "file"
COUNT: Final = Number(int, 1, 10**18, "a whole number above 0")
AMOUNT: Final = Number(float, 0, 1e9, "a number from 0")
