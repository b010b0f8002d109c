"""The folder of a service for its documents: one that lasts, or a new one that is removed at the end."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Final

from ocrsvc.errors import SettingsError
from ocrsvc.jobs.files import put

PREFIX: Final = "ocrsvc-tasks-"
LASTING: Final = "ocrsvc-jobs"
"""The name of the folder that lasts, in the one that OCRSVC_TASKS_DIR names."""

_ALIVE: Final = ".alive"
_FORMAT_FILE: Final = ".format"
_FORMAT: Final = 1
# Workers of a service whose arbiter was killed notice that within a second, and end.
_WAIT_S: Final = 20.0
_CHECK_S: Final = 0.1
_REMEDY: Final = "Set OCRSVC_TASKS_DIR to a folder that the service may write to."


def open_folder(parent: Path, wait_s: float = _WAIT_S) -> Path:
    """The folder in `parent` that lasts, made where it is not there yet; this service's alone for as long as it lives.

    It is in use for as long as this process, or one that it forks, lives.

    Args:
        parent: As OCRSVC_TASKS_DIR names it.
        wait_s: How long to wait for a service that had it before and is ending.

    Raises:
        SettingsError: It cannot be used, another service uses it, or a later version has written it.
    """
    folder = parent / LASTING
    try:
        folder.mkdir(0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise SettingsError(f"{folder} is not a folder of this service's user.", _REMEDY)
        folder.chmod(0o700)
        _lock(folder, time.monotonic() + wait_s)
        _check_format(folder)
    except OSError as error:
        raise SettingsError(f"The folder {folder} cannot be used: {error.strerror}.", _REMEDY) from error
    return folder


def make_folder(parent: Path | None = None) -> Path:
    """A new folder for one service, with those removed that services left which were killed.

    It is in use for as long as this process, or one that it forks, lives.

    Args:
        parent: Where it is made; None is the system's place for temporary files.

    Raises:
        SettingsError: None can be made there.
    """
    parent = parent or Path(tempfile.gettempdir())
    try:
        for left in parent.glob(f"{PREFIX}*"):
            if _is_left(left):
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
        _lock(made, time.monotonic())
        folder = made.rename(parent / made.name[1:])
    except OSError as error:
        raise SettingsError(f"No folder for documents can be made in {parent}: {error.strerror}.", _REMEDY) from error
    return folder


def remove_folder(folder: Path) -> None:
    """Everything that is left, when the service ends."""
    shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path, until_s: float) -> None:
    """Others see by it that this process lives, or one that it forked: it is never closed. Raises SettingsError."""
    held = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until_s:
                os.close(held)
                raise SettingsError(
                    f"Another service uses the folder {folder}, and no two may.",
                    "Give each service a folder of its own with OCRSVC_TASKS_DIR, or end the other one first.",
                ) from None
            time.sleep(_CHECK_S)


def _check_format(folder: Path) -> None:
    """Raises SettingsError for a folder of a version that this one does not know."""
    path = folder / _FORMAT_FILE
    found = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else str(_FORMAT)
    if found != str(_FORMAT):
        raise SettingsError(
            f"The jobs in {folder} were written by another version of this service (format {found[:20]!r}, not "
            f"{_FORMAT}).",
            "Start that version again, or give this one another folder with OCRSVC_TASKS_DIR.",
        )
    if not path.exists():
        put(path, b"%d\n" % _FORMAT, is_durable=True)


def _is_left(folder: Path) -> bool:
    """Whether it is a folder of this user's, and the process that made it has ended."""
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        with (folder / _ALIVE).open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
