"""The manifest of a model's version: the SHA-256 digests of its files, as `sha256sum` writes and checks them.

It is written last. A version without one is still being copied, and does not exist.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from ocrsvc.errors import BadModel
from ocrsvc.model_repository.repository_files import open_file, read_file

FILE: Final = "SHA256SUMS"
MOST_BYTES: Final = 1 << 20
"""Of a manifest, and of a `model.toml`."""

_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest.

    Attributes:
        digest: Its own.
        digests: Those of the files, by their paths below the folder.
    """

    digest: str
    digests: Mapping[str, str]


def read_manifest(folder: Path) -> Manifest:
    """The manifest in a folder, read once. Raises FileNotFoundError without one, BadModel for a bad one."""
    content = read_file(folder / FILE, MOST_BYTES + 1)
    lines = content.decode("utf-8", "replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    if len(content) > MOST_BYTES or not lines or None in found:
        raise BadModel(f"{FILE} is not what sha256sum writes.", "Run `ocrsvc models add`, or sha256sum, once more.")
    digests = {match[2]: match[1] for match in found if match is not None}
    if outside := next((file for file in digests if not _is_below(file)), None):
        raise BadModel(f"{FILE} names {outside[:100]!r}, which is not below the folder.", "Leave it out.")
    return Manifest(hashlib.sha256(content).hexdigest(), digests)


def _is_below(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in file


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files below the folder, whole or not at all."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != FILE)
    lines = [f"{digest_of(file)}  {file.relative_to(folder).as_posix()}\n" for file in files]
    temporary = folder / f".{FILE}.tmp"
    with temporary.open("w", encoding="utf-8") as out:
        out.writelines(lines)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(folder / FILE)


def digest_of(file: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal digits."""
    with open_file(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
