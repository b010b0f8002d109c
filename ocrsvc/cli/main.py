"""The command line `ocrsvc`: its commands, and how each ends: an exit code, and one line on stderr for a failure."""

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
        "batch": "Read many files into one output, each page once.",
        "job": "Have a service read a document in the background.",
        "mcp": "Give assistants tools that read pages (MCP).",
    },
    "Run a service": {
        "serve": "Serve over HTTP; the arguments are gunicorn's.",
        "health": "End with 0 when a running service is ready.",
        "status": "Print the workers and main numbers of a running service.",
        "recycle": "Replace every worker of a running service, without a gap.",
        "metrics": "Print the metrics, alert rules or a dashboard.",
    },
    "Set it up": {
        "check": "Say what is installed and which engines open here.",
        "settings": "Print the settings in effect, and where each came from.",
        "keys": "Add, list, change, revoke and rotate API keys.",
        "models": "List, add, check, label, load, encrypt and remove models.",
        "tune": "Measure which settings suit this machine and your pages.",
        "optimize": "Choose the fastest runtime for the models on this machine.",
    },
}
"""Each is a function in a module of its name, loaded when it is called."""
_MODULES: Final = {"health": "status"}
"""Of commands that share one."""

_COMPLETION: Final = "_OCRSVC_COMPLETE"
_EXAMPLES: Final = (
    "ocrsvc read page.png                        print its text",
    "ocrsvc read scan.pdf -o searchable.pdf      write a PDF with its text",
    "ocrsvc batch scans/ --out results           read a folder",
    "ocrsvc serve                                serve on http://127.0.0.1:8000",
    'eval "$(_OCRSVC_COMPLETE=bash_source ocrsvc)"   complete commands and options (or zsh_source, fish_source)',
)


class _Commands(Group):
    """The commands, of which only the one that is called is loaded."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return [name for names in COMMANDS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name. Raises NoSuchCommand, but for what begins as an option does."""
        if cmd_name in (names := self.list_commands(ctx)):
            module = import_module(f"ocrsvc.cli.{_MODULES.get(cmd_name, cmd_name)}")
            command: click.Command = getattr(module, cmd_name)
            return command
        if cmd_name.startswith("-"):
            return None
        raise click.exceptions.NoSuchCommand(cmd_name, possibilities=names, ctx=ctx)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them by section."""
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
    """Read the text on images and documents: here, or as a service."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command with these arguments, by default the process's own, and give its exit code.

    It is 0, or after sysexits.h what the first failure says (`ocrsvc.errors`); 2 for a wrong command line.
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
        # As with `| head -1`. The interpreter flushes stdout once more when it ends, and would report the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _call(arguments: list[str]) -> int:
    """What click's own `main` does, which has other exit codes for an interrupt and a closed pipe."""
    try:
        with ocrsvc.make_context("ocrsvc", arguments) as context:
            code: int | None = ocrsvc.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return code or 0
