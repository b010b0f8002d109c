"""`ocrsvc serve`: becomes gunicorn with the configuration that is inside the package."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

import ocrsvc
from ocrsvc.cli.options import command

_APPLICATION: Final = "ocrsvc.worker.hooks:build_app()"


@command(
    "ocrsvc serve",
    "ocrsvc serve -b 0.0.0.0:80 -w 4",
    "OCRSVC_WORKERS=2 ocrsvc serve",
    # gunicorn reads all other options, and finds its own -h in a word such as -bhost:80.
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAG]...")
def serve(flags: Sequence[str]) -> None:
    """Serve over HTTP until a signal comes.

    The settings are variables (`ocrsvc settings`, docs/settings.md). Flags are gunicorn's own, such as -b, -w and
    --threads, which win over the settings; `gunicorn --help` lists them.
    """
    sys.stdout.flush()
    line = command_line(flags)
    # The process keeps its id, so that signals and exit codes are gunicorn's own.
    os.execv(line[0], line)  # noqa: S606  no shell is wanted


def command_line(flags: Sequence[str]) -> list[str]:
    """The program and its arguments."""
    configuration = Path(ocrsvc.__file__).parent / "worker" / "gunicorn_conf.py"
    return [sys.executable, "-m", "gunicorn", "-c", str(configuration), *flags, _APPLICATION]
