"""Which commands there are, and how each failure leaves the process: one line on stderr and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ocrsvc import __version__
from ocrsvc.cli import check, read, serve, settings
from ocrsvc.errors import OcrsvcError


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; None takes the process's own.

    Returns:
        The exit code: 0, or after sysexits.h what the first failure says (`ocrsvc.errors`).
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv[:1] == ["serve"]:
            serve.run(argv[1:])
        args = _parser().parse_args(argv)
        code: int = args.run(args)
    except OcrsvcError as error:
        print(f"ocrsvc: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="ocrsvc", description="Read the text on images.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"ocrsvc {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    read.add_command(commands)
    commands.add_parser("serve", help="serve over HTTP; all further arguments are gunicorn's", add_help=False)
    settings.add_command(commands)
    check.add_command(commands)
    return parser
