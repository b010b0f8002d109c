"""The manifest of a model's version: the SHA-256 digests of its files, as `sha256sum` writes and checks them.

It is written last. A version without one is still being copied, and does not exist.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ocrsvc.errors import BadModel

FILE: Final = "SHA256SUMS"
MOST_BYTES: Final = 1 << 20
"""Of a manifest, and of a `model.toml`."""

_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


def read_manifest(folder: Path) -> Mapping[str, str]:
    """The digests by file, relative to the folder. Raises FileNotFoundError without one, BadModel for a bad one."""
    with (folder / FILE).open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    lines = content.decode("utf-8", "replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    if len(content) > MOST_BYTES or not lines or None in found:
        raise BadModel(f"{FILE} is not what sha256sum writes.", "Run `ocrsvc models add`, or sha256sum, once more.")
    return {match[2]: match[1] for match in found if match is not None}


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
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
