"""Building blocks of commands: help with sections and examples, number types, reading options."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Command(click.Command):
    """A command whose help lists options by section and examples at the end."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options without a section, then the sections in order of declaration, then subcommands."""
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
        """Write the examples unwrapped."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


class Group(Command, click.Group):
    """A command with subcommands, in order of declaration."""

    command_class = Command

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names of the subcommands."""
        return list(self.commands)


class _Option(click.Option):
    def __init__(self, *args: Any, section: str = "Options", **more: Any) -> None:
        super().__init__(*args, **more)
        self.section = section


def command(*examples: str, **more: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """`click.command` with examples at the end of its help."""
    return click.command(cls=Command, examples=examples, **more)


def group(*examples: str, cls: type[Group] = Group, **more: Any) -> Callable[[Callable[..., Any]], Group]:
    """`click.group` with examples at the end of its help."""
    return click.group(cls=cls, examples=examples, **more)


option: Final = partial(click.option, cls=_Option)
"""`click.option` with an argument `section`: the heading under which the help lists the option."""


def gathered(name: str, make: Callable[..., object], *options: Decorator) -> Decorator:
    """Options that a command receives as one argument `name`, built by `make` from their values."""

    def declare(command: Callable[..., Any]) -> Callable[..., Any]:
        for add_option in reversed(options):
            command = add_option(command)
        return command

    names = [parameter.name for parameter in click.command()(declare(lambda: None)).params]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(**arguments: Any) -> Any:
            values = {parameter: arguments.pop(parameter) for parameter in names}
            return command(**arguments, **{name: make(**values)})

        return declare(run)

    return decorate


def check_at_most_one(**options: object) -> None:
    """Raises UsageError if more than one of these options is given."""
    given = [f"--{name}" for name, value in options.items() if value]
    if len(given) > 1:
        message = f"{' and '.join(given)} exclude each other: give one of them."
        raise click.UsageError(message, click.get_current_context())


def _given_once(_ctx: click.Context, _parameter: click.Parameter, values: Sequence[Any]) -> Any:
    if len(values) > 1:
        raise click.BadParameter(f"it is given {len(values)} times: give it once.")
    return values[0] if values else None


class Number(click.ParamType[Any]):
    """A number from `low` to `high`, or the text `word`; `accepted` describes both in error messages."""

    name = "number"

    def __init__(self, kind: type[int | float], low: float, high: float, accepted: str = "", word: str = "") -> None:
        self._kind, self._low, self._high, self._word = kind, low, high, word
        self._accepted = accepted or f"a whole number from {low} to {high}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the value to a number, unless it is `word`. Raises BadParameter."""
        if self._word and value == self._word:
            return value
        with suppress(ValueError):
            if self._low <= (number := self._kind(value)) <= self._high:
                return number
        return self.fail(f"{value!r} is not {self._accepted}.", param, ctx)


FILE: Final = click.Path(path_type=Path)
FILE.name = "file"
COUNT: Final = Number(int, 1, 10**18, "a whole number above 0")
AMOUNT: Final = Number(float, 0, 1e9, "a number from 0")
output_option: Final = partial(option, "-o", "--output", type=FILE, multiple=True, callback=_given_once)


_how: Final = partial(option, section="What is read")
_flag: Final = partial(_how, is_flag=True, flag_value=False, default=True)
_extra: Final = partial(option, section="Results besides the text", is_flag=True)


def _choice(name: str, choices: str, help_text: str) -> Decorator:
    """An option whose default is the first choice."""
    words = choices.split()
    return _how(name, type=click.Choice(words), default=words[0], help=help_text)


reading_options: Final = gathered(
    "reading",
    lambda segmented, **options: {**options, "words": "segmented" if segmented else options["words"]},
    _how("--pages", metavar="PAGES", help="Pages of documents, such as 1-3,7 or 5-; all by default."),
    _how("--region", metavar="X,Y,WIDTH,HEIGHT", help="Part of each page to read, in pixels."),
    _how("--lang", metavar="TAG", help="Language of the text, such as zh or en; auto chooses per line."),
    _how("--model", metavar="MODEL", help="Model: NAME, NAME/VERSION or NAME:LABEL; see docs/models.md."),
    _how("--tier", type=click.Choice(["auto", "tiny", "small", "medium"]), help="Size of the model."),
    _choice("--rotate", "auto 0 90 180 270", "Clockwise rotation that makes pages upright; by default detected."),
    _flag("--line", "detect", help="Treat each image as one line, without detection."),
    _flag("--no-unwarp", "unwarp", help="Do not flatten curved pages."),
    _choice(
        "--spaces",
        "auto model visible",
        "Spaces between Chinese and Latin: by the gaps of the whole page (auto, the default), from the model alone, or "
        "at every visible gap.",
    ),
    _choice(
        "--text-layer",
        "ignore auto only merge",
        "A PDF page's own text: ignore it (default), use it where sound (auto), use nothing else (only), or merge it "
        "with text read from the page; see docs/text_layer.md.",
    ),
    _how("--mask", metavar="KIND[,...]", help="Kinds to mask: id, phone, card, mail, own; see docs/masking.md."),
    _extra("--words", help="Words of each line, in JSON; Chinese by character."),
    _extra("--segmented", help="Words, with Chinese segmented by a dictionary."),
    _extra("--characters", help="Characters of each word, in JSON."),
    _extra("--layout", help="Regions such as titles and figures, in JSON."),
    _extra("--tables", help="Tables, in JSON."),
    _extra(
        "--barcodes",
        type=click.Choice(["true", "only"]),
        is_flag=False,
        flag_value="true",
        metavar="[only]",
        help="Bar codes and QR codes, or only those without text, in JSON.",
    ),
)
