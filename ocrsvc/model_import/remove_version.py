"""Removes a version: without its manifest it does not exist, before any of its other files goes."""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from ocrsvc.errors import OperatorError
from ocrsvc.model_repository.manifest import FILE

REMOVING: Final = ".removing-"
"""How a folder's name begins that was a version."""


def remove_version(folder: Path) -> None:
    """Remove a version's folder, and that of its model if it was the last one. Raises OperatorError."""
    leaving = folder.with_name(f"{REMOVING}{uuid.uuid4().hex}")
    try:
        (folder / FILE).unlink(missing_ok=True)
        folder.rename(leaving)
        shutil.rmtree(leaving)
    except OSError as error:
        raise OperatorError(f"{folder} cannot be removed: {error.strerror}.", "Check its permissions.") from error
    with suppress(OSError):
        folder.parent.rmdir()
