"""Writes a version into a repository: into a folder beside, its manifest last, then renamed; nothing is overwritten."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from ocrsvc.errors import BadModel, OperatorError
from ocrsvc.model_import.new_model import NewModel
from ocrsvc.model_import.source_files import MOST_MODEL_BYTES, SourceFile
from ocrsvc.model_import.write_description import write_description
from ocrsvc.model_repository.builtin import NAME as BUILT_IN
from ocrsvc.model_repository.builtin import NUMBER as BUILT_IN_NUMBER
from ocrsvc.model_repository.manifest import write_manifest
from ocrsvc.model_repository.version import DESCRIPTION_FILE, MOST_VERSION

ADDING: Final = ".adding-"
"""How a folder's name begins that is to become a version."""
_CHUNK_BYTES: Final = 1 << 20
_TRIES: Final = 20
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


def write_version(model: NewModel, repository: Path, name: str, number: int | None = None) -> int:
    """Write a version, whole or not at all.

    Args:
        model: Its content.
        repository: The folder; it is made if it is not there.
        name: Of the model.
        number: Of the version; None takes the next one that is free.

    Returns:
        The number.

    Raises:
        OperatorError: The number is taken, or the folder cannot be written to.
        BadModel: A file cannot be read, or is too large.
    """
    home = repository / name
    staging = home / f"{ADDING}{uuid.uuid4().hex}"
    try:
        staging.mkdir(parents=True)
        _fill(staging, model)
        return _place(staging, home, number)
    except OSError as error:
        raise OperatorError(
            f"{home} cannot be written to: {error.strerror}.", "Check its permissions and its disk's free space."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        with suppress(OSError):
            # Of a model that has no version yet.
            home.rmdir()


def next_number(home: Path) -> int:
    """One more than the highest number in a model's folder, whatever is there; never that of the built-in version."""
    names = (entry.name for entry in home.iterdir())
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal()]
    taken = [*(one for one in numbers if one < MOST_VERSION), BUILT_IN_NUMBER if home.name == BUILT_IN else 0]
    return max(taken) + 1


def _place(staging: Path, home: Path, number: int | None) -> int:
    """Give the folder its number. Others may add versions at the same time."""
    for _ in range(_TRIES):
        wanted = next_number(home) if number is None else number
        if _took(staging, home, wanted):
            _sync(home)
            return wanted
        if number is not None:
            raise OperatorError(f"{home.name}/{number} is there already.", "Choose another --version, or none.")
    raise OperatorError(f"Others add versions to {home} all the time.", "Try again.")


def _took(staging: Path, home: Path, number: int) -> bool:
    """Whether the folder has this number now; not if it is taken."""
    if (home / str(number)).exists() or (home.name, number) == (BUILT_IN, BUILT_IN_NUMBER):
        return False
    try:
        staging.rename(home / str(number))
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def _fill(folder: Path, model: NewModel) -> None:
    for name, content in model.files.items():
        target = folder / _checked(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, content)
    if DESCRIPTION_FILE not in model.files:
        _write(folder / DESCRIPTION_FILE, write_description(model.description).encode())
    write_manifest(folder)
    for inner in (*folder.rglob("*"), folder):
        if inner.is_dir():
            _sync(inner)


def _checked(name: str) -> str:
    """The name of a file below the version's folder, such as a manifest can name. Raises BadModel."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or not name.isprintable():
        raise BadModel(f"{name!r} is no name for a file of a model.", "Rename it.")
    return name


def _write(target: Path, content: SourceFile | bytes) -> None:
    with target.open("xb") as out:
        if isinstance(content, bytes):
            out.write(content)
        else:
            _copy(content, out.fileno())
        out.flush()
        os.fsync(out.fileno())


def _copy(source: SourceFile, target: int) -> None:
    left = MOST_MODEL_BYTES
    with source.open() as stream, os.fdopen(target, "wb", closefd=False) as out:
        while chunk := stream.read(_CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise BadModel(f"{source.name} is larger than {MOST_MODEL_BYTES >> 20} MiB.", "Leave it out.")
            out.write(chunk)


def _sync(folder: Path) -> None:
    """So that a crash leaves the whole version or none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
