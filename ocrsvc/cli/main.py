"""The command line `ocrsvc`: its commands, exit codes and error messages."""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click
from click.shell_completion import shell_complete

from ocrsvc import __version__
from ocrsvc.batch.human_readable import visible
from ocrsvc.cli.options import Group, group
from ocrsvc.errors import OcrsvcError

COMMANDS: Final = {
    "Read pages": ("read", "batch", "job", "mcp"),
    "Run a service": ("serve", "health", "status", "recycle", "metrics"),
    "Set it up": ("check", "settings", "keys", "models", "tune", "optimize"),
}
"""Commands by section of the help; each is a function in the module of its name, imported when called."""
_MODULES: Final = {"health": "status", "models": "models_add", "recycle": "serve"}
"""Modules of commands that are not in a module of their name."""

_COMPLETION: Final = "_OCRSVC_COMPLETE"


class _Commands(Group):
    """The commands; a command's module is imported only when it is needed."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names of all commands, in the order of the help text."""
        return [name for names in COMMANDS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of this name; None if it is an option. Raises NoSuchCommand."""
        if cmd_name in (names := self.list_commands(ctx)):
            module = import_module(f"ocrsvc.cli.{_MODULES.get(cmd_name, cmd_name)}")
            command: click.Command = getattr(module, cmd_name)
            return command
        if cmd_name.startswith("-"):
            return None
        raise click.exceptions.NoSuchCommand(cmd_name, possibilities=names, ctx=ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        for title, names in COMMANDS.items():
            with formatter.section(title):
                commands = ((name, self.get_command(ctx, name)) for name in names)
                formatter.write_dl([(name, command.get_short_help_str(100)) for name, command in commands if command])


@group(
    "ocrsvc read page.png                        print its text",
    "ocrsvc read scan.pdf -o searchable.pdf      write a PDF with its text",
    "ocrsvc batch scans/ --out results           read a folder",
    "ocrsvc serve                                serve on http://127.0.0.1:8000",
    'eval "$(_OCRSVC_COMPLETE=bash_source ocrsvc)"   enable completion (or zsh_source, fish_source)',
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="ocrsvc %(version)s", help="Print the version.")
def ocrsvc() -> None:
    """Read the text of images and documents, here or as a service."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command (default: sys.argv); its exit code is 2 for a wrong command line, else as in `ocrsvc.errors`."""
    if shell := os.environ.get(_COMPLETION):
        return shell_complete(ocrsvc, {}, "ocrsvc", _COMPLETION, shell)
    # Frozen objects are not searched for garbage at exit, which would take a third of a short command's time.
    atexit.register(gc.freeze)
    try:
        # click's own `main` would exit with other codes after an interrupt or a closed pipe.
        with ocrsvc.make_context("ocrsvc", list(sys.argv[1:] if argv is None else argv)) as context:
            code: int | None = ocrsvc.invoke(context)
        sys.stdout.flush()
        return code or 0
    except (click.exceptions.Exit, click.ClickException, OcrsvcError) as error:
        if isinstance(error, click.ClickException):
            error.show()
        elif isinstance(error, OcrsvcError):
            print(visible(f"ocrsvc: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader closed the pipe, as `head -1` does; without this, the flush of stdout at exit would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
