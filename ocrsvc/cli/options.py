"""Commands and options of the command line: help by sections with examples, numbers, and how pages are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

if TYPE_CHECKING:
    from ocrsvc.client.request import Options

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


def command(*examples: str, **more: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """A command as `click.command` declares it, with examples."""
    return click.command(cls=Command, examples=examples, **more)


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

    def __init__(
        self, kind: type[int | float], least: float, most: float, accepted: str = "", word: str | None = None
    ) -> None:
        self._kind, self._least, self._most, self._word = kind, least, most, word
        self._accepted = accepted or f"a whole number from {least} to {most}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or the word as it is. Raises BadParameter."""
        if value == self._word:
            return value
        with suppress(ValueError):
            if self._least <= (number := self._kind(value)) <= self._most:
                return number
        return self.fail(f"{value!r} is not {self._accepted}.", param, ctx)


FILE: Final = click.Path(path_type=Path)
FILE.name = "file"
COUNT: Final = Number(int, 1, 10**18, "a whole number above 0")
AMOUNT: Final = Number(float, 0, 1e9, "a number from 0")


class Reading(NamedTuple):
    """Which pages of documents are read, all of them by default, and how, in the names of a service's options."""

    pages: str | None
    options: Options


def _reading(pages: str | None, *, segmented: bool, **options: Any) -> Reading:
    return Reading(pages, {**options, "words": "segmented" if segmented else options["words"]})  # type: ignore[typeddict-item]


_how: Final = partial(option, section="What is read")
_flag: Final = partial(_how, is_flag=True, flag_value=False, default=True)
_found: Final = partial(option, section="What is found besides the text", is_flag=True)


def _choice(name: str, choices: str, said: str) -> Decorator:
    """An option of which the first of these words is the default."""
    words = choices.split()
    return _how(name, type=click.Choice(words), default=words[0], help=said)


reading_options: Final = gathered(
    "reading",
    _reading,
    _how("--pages", metavar="PAGES", help="Pages of documents, such as 1-3,7 or 5-; all by default."),
    _how("--region", metavar="X,Y,WIDTH,HEIGHT", help="The part of each page that is read, in pixels."),
    _how("--lang", metavar="TAG", help="Language of the text, such as zh or en; auto chooses by line."),
    _how("--model", metavar="MODEL", help="Model that reads: NAME, NAME/VERSION or NAME:LABEL; see docs/models.md."),
    _how("--tier", type=click.Choice(["tiny", "small", "medium"]), help="How large a model reads."),
    _choice(
        "--rotate", "auto 0 90 180 270", "Clockwise turn that makes the page upright; auto, the default, finds it."
    ),
    _flag("--line", "detect", help="Each image is one line: detect nothing."),
    _flag("--no-unwarp", "unwarp", help="Read curved pages as they are."),
    _choice(
        "--spaces",
        "auto model visible",
        "Spaces between Chinese and Latin: by the gaps of the whole page (auto, the default), as the model alone reads "
        "them, or wherever a gap is seen.",
    ),
    _choice(
        "--text-layer",
        "ignore auto only merge",
        "The text that a page of a PDF has itself: nothing of it (ignore, the default), what is sound of it, nothing "
        "else, or it and whatever else stands on the page; see docs/text_layer.md.",
    ),
    _how("--mask", metavar="KIND[,...]", help="What becomes stars: id, phone, card, mail, own; see docs/masking.md."),
    _found("--words", help="Words of each line, in JSON; Chinese by character."),
    _found("--segmented", help="The same, with Chinese words by a dictionary."),
    _found("--characters", help="Characters of each word, too."),
    _found("--layout", help="Regions, such as titles and figures; JSON has them."),
    _found("--tables", help="Tables; JSON has them."),
    _found(
        "--barcodes",
        type=click.Choice(["true", "only"]),
        is_flag=False,
        flag_value="true",
        metavar="[only]",
        help="Bar codes and QR codes, or only them and no text; JSON has them.",
    ),
)
