"""The folder of a service for its documents: made when the service starts, and removed with it."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from ocrsvc.errors import SettingsError

PREFIX: Final = "ocrsvc-tasks-"
_ALIVE: Final = ".alive"


def make_folder(parent: Path | None) -> Path:
    """A new folder for one service, with those removed that services left which were killed.

    It is in use for as long as this process, or one that it forks, lives.

    Raises:
        SettingsError: None can be made there.
    """
    parent = parent or Path(tempfile.gettempdir())
    try:
        for left in parent.glob(f"{PREFIX}*"):
            if _is_left(left):
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
        # Never closed: by it others see that this process lives, or one that it forked.
        fcntl.flock(os.open(made / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
        folder = made.rename(parent / made.name[1:])
    except OSError as error:
        raise SettingsError(
            f"No folder for documents can be made in {parent}: {error.strerror}.",
            "Set OCRSVC_TASKS_DIR to a folder that the service may write to.",
        ) from error
    return folder


def remove_folder(folder: Path) -> None:
    """Everything that is left, when the service ends."""
    shutil.rmtree(folder, ignore_errors=True)


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
