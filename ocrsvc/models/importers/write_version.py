"""Writes, encrypts and removes versions of a repository.

A version is written into a temporary folder, its manifest last, then renamed; nothing is overwritten. Removal deletes
the manifest first, without which a version is ignored.
"""

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
from ocrsvc.engines.model.version import BUILT_IN, DESCRIPTION_FILE, MAX_VERSION, ModelVersion
from ocrsvc.errors import BadModel, OperatorError
from ocrsvc.models.importers.source_files import MAX_MODEL_BYTES, NewModel, SourceFile
from ocrsvc.models.state import sync_folder

ADDING: Final = ".adding-"  # prefix of the folder of a version that is being written
REMOVING: Final = ".removing-"  # prefix of the folder of a version that is being removed
_CHUNK_BYTES: Final = 1 << 20
_TRIES: Final = 20
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


def write_version(model: NewModel, repository: Path, name: str, number: int | None = None) -> int:
    """Write a version of a model atomically; returns its number. Raises OperatorError, BadModel."""
    home = repository / name
    staging = home / f"{ADDING}{uuid.uuid4().hex}"
    try:
        staging.mkdir(parents=True)
        _fill(staging, model)
        return _place(staging, home, number)
    except OSError as error:
        raise OperatorError(
            f"{home} cannot be written to: {error.strerror}.", "Check its permissions and the free disk space."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        with suppress(OSError):
            # Succeeds only for a model without versions.
            home.rmdir()


def remove_version(folder: Path) -> None:
    """Remove a version's folder, and its model's folder if it was the last version. Raises OperatorError."""
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
    """Encrypt the files of a plain version, except `model.toml`; they must match the manifest. Raises BadModel."""
    if version.description.encryption is not None:
        raise BadModel(f"{version} is already encrypted.", "Name the plain version.")
    if paths := version.description.paths:
        raise BadModel(
            f"{version}: the engine {version.description.engine} opens files by path ({', '.join(paths)}), but "
            "encrypted files are decrypted in memory only.",
            "Do not encrypt models of this engine.",
        )
    encryption = Encryption(key=key.id, set=new_set_id())
    text = write_description(version.description) if version.is_built_in else version.read(DESCRIPTION_FILE).decode()
    text = f'{text.rstrip()}\n\n[encryption]\nkey = "{encryption.key}"\nset = "{encryption.set}"\n'
    names = [name for name in version.digests or version.description.files if name != DESCRIPTION_FILE]
    files = {name: encrypt(version.read(name), name, encryption.set, key) for name in names}
    return NewModel(parse_description(text), {DESCRIPTION_FILE: text.encode(), **files})


def _next_number(home: Path) -> int:
    """The next version number: one more than the highest in the model's folder, built-in versions included."""
    names = (entry.name for entry in home.iterdir())
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal()]
    built_in = BUILT_IN[1] if home.name == BUILT_IN[0] else 0
    return max(*(number for number in numbers if number < MAX_VERSION), built_in, 0) + 1


def _place(staging: Path, home: Path, number: int | None) -> int:
    """Rename the temporary folder to the version's number; if None, to the next free number. Returns the number."""
    for _ in range(_TRIES):
        wanted = _next_number(home) if number is None else number
        if _took(staging, home, wanted):
            sync_folder(home)
            return wanted
        if number is not None:
            raise OperatorError(f"{home.name}/{number} already exists.", "Choose another --version, or none.")
    raise OperatorError(f"Other processes keep adding versions to {home}.", "Try again.")


def _took(staging: Path, home: Path, number: int) -> bool:
    """Rename the temporary folder to a number; returns False if the number is taken."""
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
    files = dict(model.files)
    files.setdefault(DESCRIPTION_FILE, write_description(model.description).encode())
    for name, content in files.items():
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
                    if out.tell() + len(chunk) > MAX_MODEL_BYTES:
                        raise BadModel(f"{content.name} is larger than {MAX_MODEL_BYTES >> 20} MiB.", "Leave it out.")
                    out.write(chunk)
        out.flush()
        os.fsync(out.fileno())


def write_description(description: Description) -> str:
    """Write a description as `model.toml`; the standard library cannot write TOML."""
    lines, tables = list[str](), list[str]()
    for name, field in Description.model_fields.items():
        # Defaults are omitted, so that later changes of a default apply.
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
        # JSON strings are valid TOML, except for the character DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
