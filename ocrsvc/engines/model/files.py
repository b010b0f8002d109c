"""Reads untrusted model files, TOML and manifests; refuses everything but regular files of limited size.

Reading a pipe would block for ever, and a device or a huge file would fill the worker's memory. The manifest holds the
SHA-256 digests of a version's files in the format of `sha256sum`. It must be written last: a version without a manifest
counts as not completely copied, and is ignored.
"""

import errno
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from ocrsvc.errors import BadModel

MANIFEST: Final = "SHA256SUMS"
MAX_MANIFEST_BYTES: Final = 1 << 20
# Maximum dots per line of TOML: parsing dotted keys takes quadratic time, 13 s for 64 KB, and all memory for 200 KB.
_MAX_DOTS: Final = 200
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


def open_file(path: Path) -> BufferedReader:
    """Open a regular file; links are followed. Raises OSError, also for a pipe, device or folder."""
    opened = os.open(path, _FLAGS)
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return os.fdopen(opened, "rb")
    os.close(opened)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a regular file, but not more than its size when it was opened. Raises OSError."""
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        return file.read(size_bytes if max_bytes is None else min(size_bytes, max_bytes))


def parse_toml(text: str) -> dict[str, Any]:
    """Parse untrusted TOML. Raises ValueError for any error in it."""
    if any(line.count(".") > _MAX_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {_MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_manifest(folder: Path) -> tuple[str, Mapping[str, str]]:
    """The manifest's own digest, and the digest of each file. Raises FileNotFoundError if it is missing, BadModel."""
    content = read_file(folder / MANIFEST, MAX_MANIFEST_BYTES + 1)
    lines = content.decode("utf-8", "replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    if len(content) > MAX_MANIFEST_BYTES or not lines or None in found:
        raise BadModel(f"{MANIFEST} is not in sha256sum's format.", "Run `ocrsvc models add`, or sha256sum, again.")
    digests = {match[2]: match[1] for match in found if match is not None}
    if outside := next((file for file in digests if file[0] == "/" or ".." in file.split("/") or "\0" in file), None):
        raise BadModel(f"{MANIFEST} names {outside[:100]!r}, outside the folder.", "Remove that line.")
    return hashlib.sha256(content).hexdigest(), digests


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files in the folder and below it, atomically."""
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
