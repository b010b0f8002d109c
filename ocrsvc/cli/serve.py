"""`ocrsvc serve`: starts gunicorn with the configuration that is inside the package."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import ocrsvc

HELP: Final = "serve over HTTP; all further arguments are gunicorn's"
_APPLICATION: Final = "ocrsvc.worker.hooks:build_app()"


def run(flags: Sequence[str]) -> NoReturn:
    """Become gunicorn: the process keeps its id, so that signals and exit codes are gunicorn's own.

    Args:
        flags: gunicorn's own flags, such as `-b 0.0.0.0:80`; they win over the settings.
    """
    sys.stdout.flush()
    command = command_line(flags)
    os.execv(command[0], command)  # noqa: S606  no shell is wanted


def command_line(flags: Sequence[str]) -> list[str]:
    """The program and its arguments."""
    configuration = Path(ocrsvc.__file__).parent / "worker" / "gunicorn_conf.py"
    return [sys.executable, "-m", "gunicorn", "-c", str(configuration), *flags, _APPLICATION]
