"""The folder of a service for its jobs: one that lasts, or a new one that is removed at the end.

It is in use for as long as the process that has opened it, or one that it forks, lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ocrsvc.errors import Refused, SettingsError
from ocrsvc.jobs.job import write_whole
from ocrsvc.jobs.job_database import LOGGER, storing, sync
from ocrsvc.jobs.job_store import CallerLimits, JobStore
from ocrsvc.settings.settings import Settings

PREFIX: Final = "ocrsvc-tasks-"
LASTING: Final = "ocrsvc-jobs"
"""The name of the folder that lasts, in the one that OCRSVC_TASKS_DIR names."""

_ALIVE: Final = ".alive"
_FORMAT_FILE: Final = ".format"
_FORMAT: Final = b"3"
# Workers of a service whose arbiter was killed notice that within a second, and end.
_WAIT_S: Final = 20.0
_CHECK_S: Final = 0.1
_REMEDY: Final = "Set OCRSVC_TASKS_DIR to a folder that the service may write to."


def open_jobs(settings: Settings) -> JobStore:
    """The job store of a service, for the arbiter before it forks. Raises SettingsError.

    With OCRSVC_TASKS_DIR it lasts, and what an earlier service left in it is gone on with; without, it is removed when
    the service ends.
    """
    folder = make_folder() if settings.tasks_dir is None else open_folder(settings.tasks_dir)
    limits = CallerLimits(settings.jobs_waiting, settings.jobs_waiting_pages)
    is_durable = settings.tasks_dir is not None
    jobs = JobStore(folder, settings.tasks_bytes, settings.tasks_s, limits=limits, is_durable=is_durable)
    try:
        with storing():
            jobs.sweep(boot_id())
    except Refused as error:
        LOGGER.error("jobs of an earlier service are put in order later: %s", error)
    except OSError as error:
        raise SettingsError(f"The jobs in {folder} cannot be used: {error.strerror}.", _REMEDY) from error
    finally:
        # Each worker opens a connection of its own.
        jobs.database.close()
        jobs.uploads.database.close()
    return jobs


def open_folder(parent: Path, wait_s: float = _WAIT_S) -> Path:
    """The folder in `parent` that lasts, once a service that had it before has ended.

    Raises SettingsError where it cannot be used, another service uses it, or another version has written it.
    """
    folder = parent / LASTING
    try:
        folder.mkdir(0o700, exist_ok=True)
        if not _is_own(folder):
            raise SettingsError(f"{folder} is not a folder of this service's user.", _REMEDY)
        folder.chmod(0o700)
        _lock(folder, wait_s)
        _check_format(folder)
    except OSError as error:
        raise SettingsError(f"The folder {folder} cannot be used: {error.strerror}.", _REMEDY) from error
    return folder


def make_folder(parent: Path | None = None) -> Path:
    """A new temporary folder; those of killed services are removed. Raises SettingsError."""
    parent = parent or Path(tempfile.gettempdir())
    try:
        for left in parent.glob(f"{PREFIX}*"):
            # No folder of another user, and no link.
            with suppress(OSError, SettingsError):
                if _is_own(left) and (left / _ALIVE).exists():
                    _lock(left, 0.0)
                    shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
        _lock(made, 0.0)
        return made.rename(parent / made.name[1:])
    except OSError as error:
        raise SettingsError(f"No folder for documents can be made in {parent}: {error.strerror}.", _REMEDY) from error


def boot_id() -> str:
    """The identity of this boot of the machine; empty where the system does not tell."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _lock(folder: Path, wait_s: float) -> None:
    """Others see by it that this process lives, or one that it forked: it is never closed. Raises SettingsError."""
    held, until_s = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until_s:
                break
            time.sleep(_CHECK_S)
    os.close(held)
    raise SettingsError(
        f"Another service uses the folder {folder}, and no two may.",
        "Give each service a folder of its own with OCRSVC_TASKS_DIR, or end the other one first.",
    )


def _check_format(folder: Path) -> None:
    """Raises SettingsError for a folder of another version."""
    path = folder / _FORMAT_FILE
    if not path.exists():
        write_whole(path, _FORMAT, sync)
    found = path.read_bytes().strip()
    if found != _FORMAT:
        shown, wanted = (each[:20].decode(errors="replace") for each in (found, _FORMAT))
        raise SettingsError(
            f"Another version of this service has written the jobs in {folder}: format {shown!r}, not {wanted}.",
            "Have that version finish them and rename the folder, or give this one another with OCRSVC_TASKS_DIR.",
        )


def _is_own(folder: Path) -> bool:
    """Whether it is a folder of this user's, and no link."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
