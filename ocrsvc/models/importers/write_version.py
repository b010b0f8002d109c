"""Writes, encrypts and removes versions of a repository.

A version is written into a folder beside, its manifest last, then renamed; nothing is overwritten. One that is removed
loses its manifest first, without which it does not exist.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ocrsvc.engines.model.description import Description, Encryption, parse_description
from ocrsvc.engines.model.encryption import ModelKey, encrypt, new_set_id
from ocrsvc.engines.model.files import MANIFEST, write_manifest
from ocrsvc.engines.model.version import BUILT_IN, DESCRIPTION_FILE, MOST_VERSION, ModelVersion
from ocrsvc.errors import BadModel, OperatorError
from ocrsvc.models.importers.source_files import MOST_MODEL_BYTES, NewModel, SourceFile
from ocrsvc.models.state import sync_folder

# Prefix of a folder that is to become a version.
ADDING: Final = ".adding-"
# Prefix of a folder that was a version.
REMOVING: Final = ".removing-"
_CHUNK_BYTES: Final = 1 << 20
_TRIES: Final = 20
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


def write_version(model: NewModel, repository: Path, name: str, number: int | None = None) -> int:
    """Write a version of a model, whole or not at all, and return its number. Raises OperatorError, BadModel."""
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
            # The folder of a model that has no version yet.
            home.rmdir()


def remove_version(folder: Path) -> None:
    """Remove a version's folder, and that of its model if it was the last one. Raises OperatorError."""
    leaving = folder.with_name(f"{REMOVING}{uuid.uuid4().hex}")
    try:
        (folder / MANIFEST).unlink(missing_ok=True)
        folder.rename(leaving)
        shutil.rmtree(leaving)
    except OSError as error:
        raise OperatorError(f"{folder} cannot be removed: {error.strerror}.", "Check its permissions.") from error
    with suppress(OSError):
        folder.parent.rmdir()


def encrypt_model(version: ModelVersion, key: ModelKey) -> NewModel:
    """The files of a plain version, compared with its manifest and encrypted, all but `model.toml`. Raises BadModel."""
    if version.description.encryption is not None:
        raise BadModel(f"{version} is encrypted already.", "Take the plain version.")
    if paths := version.description.paths:
        raise BadModel(
            f"{version}: the engine {version.description.engine} opens files by their path ({', '.join(paths)}), and "
            "an encrypted one is plain in memory only.",
            "Leave models of this engine plain.",
        )
    encryption = Encryption(key=key.id, set=new_set_id())
    text = write_description(version.description) if version.is_built_in else version.read(DESCRIPTION_FILE).decode()
    text = f'{text.rstrip()}\n\n[encryption]\nkey = "{encryption.key}"\nset = "{encryption.set}"\n'
    names = [name for name in version.digests or version.description.files if name != DESCRIPTION_FILE]
    files = {name: encrypt(version.read(name), name, encryption.set, key) for name in names}
    return NewModel(parse_description(text), {DESCRIPTION_FILE: text.encode(), **files})


def _next_number(home: Path) -> int:
    """One more than the highest number in a model's folder, whatever is there; never that of the built-in version."""
    names = (entry.name for entry in home.iterdir())
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal()]
    taken = [*(one for one in numbers if one < MOST_VERSION), BUILT_IN[1] if home.name == BUILT_IN[0] else 0]
    return max(taken) + 1


def _place(staging: Path, home: Path, number: int | None) -> int:
    """Give the folder its number. Others may add versions at the same time."""
    for _ in range(_TRIES):
        wanted = _next_number(home) if number is None else number
        if _took(staging, home, wanted):
            sync_folder(home)
            return wanted
        if number is not None:
            raise OperatorError(f"{home.name}/{number} is there already.", "Choose another --version, or none.")
    raise OperatorError(f"Others add versions to {home} all the time.", "Try again.")


def _took(staging: Path, home: Path, number: int) -> bool:
    """Whether the folder has this number now; not if it is taken."""
    if (home / str(number)).exists() or (home.name, number) == BUILT_IN:
        return False
    try:
        staging.rename(home / str(number))
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def _fill(folder: Path, model: NewModel) -> None:
    described = (
        {} if DESCRIPTION_FILE in model.files else {DESCRIPTION_FILE: write_description(model.description).encode()}
    )
    for name, content in {**model.files, **described}.items():
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or not name.isprintable():
            raise BadModel(f"{name!r} is no name for a file of a model.", "Rename it.")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _write(folder / name, content)
    write_manifest(folder)
    for inner in (*folder.rglob("*"), folder):
        if inner.is_dir():
            sync_folder(inner)


def _write(target: Path, content: SourceFile | bytes) -> None:
    with target.open("xb") as out:
        if isinstance(content, bytes):
            out.write(content)
        else:
            with content.open() as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    if out.tell() + len(chunk) > MOST_MODEL_BYTES:
                        most = MOST_MODEL_BYTES >> 20
                        raise BadModel(f"{content.name} is larger than {most} MiB.", "Leave it out.")
                    out.write(chunk)
        out.flush()
        os.fsync(out.fileno())


def write_description(description: Description) -> str:
    """The text of a `model.toml` that `parse_description` reads as this; the standard library only reads TOML."""
    lines, tables = list[str](), list[str]()
    for name, field in Description.model_fields.items():
        # What is not said stays out, so that a better default holds one day.
        if getattr(description, name) == field.get_default():
            continue
        value = description.model_dump(include={name}, exclude_none=True)[name]
        if isinstance(value, dict):
            tables += ["", f"[{name}]", *_pairs(value)]
        elif value and isinstance(value[0], dict):
            tables += [line for one in value for line in ("", f"[[{name}]]", *_pairs(one))]
        else:
            lines += _pairs({name: value})
    return "\n".join([*lines, *tables]) + "\n"


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        yield f"{name if name.isidentifier() and name.isascii() else _value(name)} = {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's strings are TOML's, but for the character that deletes.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
