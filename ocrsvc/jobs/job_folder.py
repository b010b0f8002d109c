"""The service's job folder: a persistent one, or a temporary one that is removed at the end.

It is locked while the process that opened it, or any that it has forked, is alive.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from ocrsvc.errors import Refused, SettingsError
from ocrsvc.jobs.job_database import LOGGER, storing
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.settings.settings import Settings

PREFIX: Final = "ocrsvc-tasks-"
LASTING: Final = "ocrsvc-jobs"
_ALIVE: Final = ".alive"
_FORMAT_FILE: Final = ".format"
_FORMAT: Final = "3"
# Workers of a service whose arbiter was killed need time to notice and end.
_WAIT_S: Final = 20.0
_CHECK_S: Final = 0.1
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_REMEDY: Final = "Set OCRSVC_JOBS_DIR to a folder to which the service's user may write."


def open_jobs(settings: Settings) -> JobStore:
    """For the arbiter: open the job store, with the jobs of an earlier service. Raises SettingsError."""
    jobs = JobStore(
        make_folder() if settings.jobs_dir is None else open_folder(settings.jobs_dir / LASTING),
        settings.jobs_bytes,
        settings.jobs_s,
        max_waiting=settings.jobs_waiting,
        max_pages=settings.jobs_waiting_pages,
        is_durable=settings.jobs_dir is not None,
    )
    try:
        with storing():
            jobs.sweep(_BOOT_ID.read_text(encoding="ascii") if _BOOT_ID.exists() else "")
    except Refused as error:
        LOGGER.error("cleaning up jobs of an earlier service later: %s", error)
    except OSError as error:
        raise SettingsError(f"The jobs in {jobs.folder} cannot be used: {error.strerror}.", _REMEDY) from error
    finally:
        # Close the arbiter's connection before the fork; each worker opens its own.
        jobs.database.close()
        jobs.uploads.database.close()
    return jobs


def make_folder(parent: Path | None = None) -> Path:
    """Create a temporary folder, and remove the folders that killed services left. Raises SettingsError."""
    parent, name = parent or Path(tempfile.gettempdir()), f"{PREFIX}{uuid.uuid4().hex}"
    for left in parent.glob(f"{PREFIX}*/{_ALIVE}"):
        with suppress(OSError, SettingsError):
            _lock(left.parent, 0.0)
            shutil.rmtree(left.parent, ignore_errors=True)
    return open_folder(parent / f".{name}").rename(parent / name)


def open_folder(folder: Path, wait_s: float = _WAIT_S) -> Path:
    """Open a persistent folder, and wait until another service that uses it ends. Raises SettingsError."""
    try:
        folder.mkdir(0o700, exist_ok=True)
        _lock(folder, wait_s)
        folder.chmod(0o700)
        file = folder / _FORMAT_FILE
        # After a power failure the format file may be empty: write it again.
        if not file.exists() or not file.stat().st_size:
            file.write_text(_FORMAT, encoding="ascii")
        version = file.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError) and not folder.parent.exists()
        remedy = f"The folder {folder.parent} does not exist: create it first." if is_missing else _REMEDY
        raise SettingsError(f"The folder {folder} cannot be used: {error.strerror}.", remedy) from error
    if version != _FORMAT:
        raise SettingsError(
            f"Another version of the service wrote the jobs in {folder}: format {version[:20]!r}, not {_FORMAT}.",
            "Let that version finish them and rename the folder, or set OCRSVC_JOBS_DIR to another one.",
        )
    return folder


def _lock(folder: Path, wait_s: float) -> None:
    """Lock the folder; the lock file stays open until this process and its forks have ended. Raises SettingsError."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise SettingsError(f"{folder} is not a folder of this service's user.", _REMEDY)
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
    text = f"Another service uses the folder {folder}."
    raise SettingsError(text, "Set OCRSVC_JOBS_DIR to a different folder for each service, or stop the other one.")
