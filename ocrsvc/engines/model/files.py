"""Reads a model's files, where others may write: plain files alone, bounded; TOML; and the manifest.

A pipe would be waited for without end, and a device, or a file of many gigabytes, would fill the memory of a worker.
The manifest holds the SHA-256 digests of a version's files, as `sha256sum` writes and checks them. It is written last:
a version without one is still being copied, and does not exist.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ocrsvc.errors import BadModel

MANIFEST: Final = "SHA256SUMS"
MOST_MANIFEST_BYTES: Final = 1 << 20

# In a line of TOML. Keys with dots cost the square of their parts: one of 64 KB took 13 s, of 200 KB all memory.
_MOST_DOTS: Final = 200
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


def open_file(path: Path) -> BufferedReader:
    """A plain file, or what a link to one leads to. Raises OSError, for anything else as well."""
    opened = os.open(path, _FLAGS)
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return os.fdopen(opened, "rb")
    os.close(opened)
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def read_file(path: Path, most_bytes: int | None = None) -> bytes:
    """A plain file's content, no more than its size when it was opened. Raises OSError."""
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        return file.read(size_bytes if most_bytes is None else min(size_bytes, most_bytes))


def parse_toml(text: str) -> dict[str, Any]:
    """TOML that others have written. Raises ValueError, whatever is wrong with it."""
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_manifest(folder: Path) -> tuple[str, Mapping[str, str]]:
    """The manifest's own digest, and the digests of the files. Raises FileNotFoundError without one, BadModel."""
    content = read_file(folder / MANIFEST, MOST_MANIFEST_BYTES + 1)
    lines = content.decode("utf-8", "replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    if len(content) > MOST_MANIFEST_BYTES or not lines or None in found:
        raise BadModel(f"{MANIFEST} is not what sha256sum writes.", "Run `ocrsvc models add`, or sha256sum, once more.")
    digests = {match[2]: match[1] for match in found if match is not None}
    if outside := next((file for file in digests if not _is_below(file)), None):
        raise BadModel(f"{MANIFEST} names {outside[:100]!r}, which is not below the folder.", "Leave it out.")
    return hashlib.sha256(content).hexdigest(), digests


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files below the folder, whole or not at all."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST)
    lines = [f"{digest_of(file)}  {file.relative_to(folder).as_posix()}\n" for file in files]
    temporary = folder / f".{MANIFEST}.tmp"
    with temporary.open("w", encoding="utf-8") as out:
        out.writelines(lines)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(folder / MANIFEST)


def digest_of(file: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal digits."""
    with open_file(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_below(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in file
