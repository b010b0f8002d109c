"""`ocrsvc serve`: replaces itself by gunicorn with the package's configuration."""

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
    # All other options are gunicorn's; -h is left out because click would find it in -bhost:80.
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAG]...")
def serve(flags: Sequence[str]) -> None:
    """Serve over HTTP until a signal comes.

    Settings are environment variables (`ocrsvc settings`, docs/settings.md). Flags are gunicorn's, such as -b, -w and
    --threads, and override the settings; `gunicorn --help` lists them.
    """
    sys.stdout.flush()
    line = command_line(flags)
    # exec keeps the process id, so signals and exit codes are gunicorn's.
    os.execv(line[0], line)  # noqa: S606  no shell needed


def command_line(flags: Sequence[str]) -> list[str]:
    """gunicorn's command line."""
    configuration = Path(ocrsvc.__file__).parent / "worker" / "gunicorn_conf.py"
    return [sys.executable, "-m", "gunicorn", "-c", str(configuration), *flags, _APPLICATION]
