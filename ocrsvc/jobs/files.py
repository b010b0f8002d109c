"""Small files of the job store: written beside their place and renamed, locked, and made to survive a loss of power."""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from ocrsvc.errors import QueueFull

# Others need milliseconds, unless a disk or a process has stopped.
_LOCK_WAIT_S: Final = 5.0
_LOCK_CHECK_S: Final = 0.02
_RETRY_S: Final = 30


def put(path: Path, data: bytes, *, is_durable: bool) -> None:
    """Write a file that is there as a whole or not at all. Raises OSError, and leaves nothing then.

    Args:
        path: Its place.
        data: What is in it.
        is_durable: Whether it is to be on the disk when this returns.
    """
    beside = path.parent / f".{uuid.uuid4().hex}"
    try:
        beside.write_bytes(data)
        if is_durable:
            sync(beside)
        beside.rename(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    if is_durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, survive a loss of power. Raises OSError."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def try_lock(file: IO[bytes]) -> bool:
    """Whether the file is locked for this process now, until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """No other process is in such a block meanwhile.

    Args:
        path: The file that is locked, made where it is not there.
        what: Is stored in the block, for people.

    Raises:
        QueueFull: Another process, which may be frozen, does not end.
        OSError: The file cannot be opened.
    """
    until_s = time.monotonic() + _LOCK_WAIT_S
    with path.open("ab") as lock:
        while not try_lock(lock):
            if time.monotonic() >= until_s:
                raise QueueFull(
                    f"Other {what} are being stored, and that takes long.", "Send it again later.", _RETRY_S
                )
            time.sleep(_LOCK_CHECK_S)
        yield


def size_of(folder: Path | str) -> int:
    """Bytes of all files in a folder and below it. Raises FileNotFoundError where the folder itself is gone."""
    size_bytes = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                is_folder = entry.is_dir(follow_symlinks=False)
                size_bytes += size_of(entry.path) if is_folder else entry.stat(follow_symlinks=False).st_size
    return size_bytes
