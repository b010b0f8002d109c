"""The command line `ocrsvc`: its commands, exit codes and error messages."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import click
from click.shell_completion import shell_complete

from ocrsvc import __version__
from ocrsvc.batch.human_readable import visible
from ocrsvc.cli.options import Group
from ocrsvc.errors import OcrsvcError

COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "Read pages": {
        "read": "Print the text of images and documents, or write files of it.",
        "batch": "Read many files into one output, each page exactly once.",
        "job": "Have a service read a document in the background.",
        "mcp": "Serve page-reading tools to assistants (MCP).",
    },
    "Run a service": {
        "serve": "Serve over HTTP; takes gunicorn's arguments.",
        "health": "Exit with 0 if a running service is ready.",
        "status": "Print the workers and main figures of a running service.",
        "recycle": "Replace all workers of a running service without downtime.",
        "metrics": "Print the metrics, alert rules or a dashboard.",
    },
    "Set it up": {
        "check": "Print what is installed and which engines open here.",
        "settings": "Print the settings in effect and their sources.",
        "keys": "Add, list, change, revoke and rotate API keys.",
        "models": "List, add, check, label, load, encrypt and remove models.",
        "tune": "Measure which settings suit this machine and your pages.",
        "optimize": "Find the fastest runtime for the models on this machine.",
    },
}
"""Help by section and command; each command is a function in the module of its name, imported when called."""
_MODULES: Final = {"health": "status"}
"""Modules of commands that do not have their own."""

_COMPLETION: Final = "_OCRSVC_COMPLETE"
_EXAMPLES: Final = (
    "ocrsvc read page.png                        print its text",
    "ocrsvc read scan.pdf -o searchable.pdf      write a PDF with its text",
    "ocrsvc batch scans/ --out results           read a folder",
    "ocrsvc serve                                serve on http://127.0.0.1:8000",
    'eval "$(_OCRSVC_COMPLETE=bash_source ocrsvc)"   enable completion (or zsh_source, fish_source)',
)


class _Commands(Group):
    """The commands; only the called one is imported."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return [name for names in COMMANDS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; None for an option. Raises NoSuchCommand."""
        if cmd_name in (names := self.list_commands(ctx)):
            module = import_module(f"ocrsvc.cli.{_MODULES.get(cmd_name, cmd_name)}")
            command: click.Command = getattr(module, cmd_name)
            return command
        if cmd_name.startswith("-"):
            return None
        raise click.exceptions.NoSuchCommand(cmd_name, possibilities=names, ctx=ctx)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        for title, names in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl(list(names.items()))


@click.group(
    cls=_Commands,
    examples=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="ocrsvc %(version)s", help="Print the version.")
def ocrsvc() -> None:
    """Read the text of images and documents, here or as a service."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command with these arguments (default: sys.argv) and return its exit code.

    0, 2 for a wrong command line, else the first error's code (`ocrsvc.errors`, after sysexits.h).
    """
    if shell := os.environ.get(_COMPLETION):
        return shell_complete(ocrsvc, {}, "ocrsvc", _COMPLETION, shell)
    try:
        return _call(list(sys.argv[1:] if argv is None else argv))
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OcrsvcError as error:
        print(visible(f"ocrsvc: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # As with `| head -1`. The interpreter's last flush of stdout would report the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _call(arguments: list[str]) -> int:
    """Replaces click's `main`, whose exit codes for an interrupt and a closed pipe differ."""
    try:
        with ocrsvc.make_context("ocrsvc", arguments) as context:
            code: int | None = ocrsvc.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return code or 0
