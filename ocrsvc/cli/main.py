"""The command line `ocrsvc`: its commands, and how a failure ends the process: one line on stderr and an exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from ocrsvc import __version__
from ocrsvc.batch.visible_text import visible
from ocrsvc.cli import (
    batch,
    check,
    health,
    job,
    keys,
    mcp,
    metrics,
    models,
    optimize,
    read,
    recycle,
    serve,
    settings,
    status,
    tune,
)
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
        sys.stdout.flush()
    except BrokenPipeError:
        return _end_after_broken_pipe()
    except OcrsvcError as error:
        print(visible(f"ocrsvc: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return code


def _end_after_broken_pipe() -> int:
    """Nobody reads the output any more, as with `| head -1`; the exit code is that of a program which SIGPIPE ends."""
    # The interpreter flushes stdout once more when it ends, and would report the pipe again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="ocrsvc", description="Read the text on images.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"ocrsvc {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (
        read,
        batch,
        job,
        serve,
        settings,
        check,
        keys,
        status,
        health,
        recycle,
        metrics,
        tune,
        mcp,
        optimize,
        models,
    ):
        _, _, name = command.__name__.rpartition(".")
        subparser = commands.add_parser(name, help=command.HELP, add_help=command is not serve)
        # gunicorn parses the flags of `serve`, which does not come here.
        if command is not serve:
            command.add_arguments(subparser)
            subparser.set_defaults(run=command.run)
    return parser
