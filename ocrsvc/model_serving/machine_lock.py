"""Locks in the state folder, by which one worker on the machine does what all of them would do at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ocrsvc.errors import OperatorError

PROOF: Final = "proof.lock"
LOAD: Final = "load.lock"


@contextlib.contextmanager
def machine_lock(folder: Path, name: str) -> Iterator[bool]:
    """Whether this process has a lock while the block lasts; nobody waits for it.

    The kernel releases it however the process ends.

    Raises:
        OperatorError: The folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        opened = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OperatorError(
            f"New versions of models wait: {folder} cannot be written to: {error.strerror}.",
            "Let this user write there, or name another folder with OCRSVC_MODELS_STATE.",
        ) from error
    try:
        yield _is_locked(opened)
    finally:
        os.close(opened)


def _is_locked(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
