"""Reads what lies in a repository, where others may write: plain files alone, bounded, and TOML that cannot take long.

A pipe would be waited for without end, and a device, or a file of many gigabytes, would fill the memory of a worker.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

MOST_DOTS: Final = 200
"""In a line of TOML. Keys with dots cost the square of their parts: one of 64 KB took 13 s, of 200 KB all memory."""

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_file(path: Path) -> BufferedReader:
    """A plain file, open for reading, or what a link to one leads to. Raises OSError, for anything else as well."""
    opened = os.open(path, _FLAGS)
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return os.fdopen(opened, "rb")
    os.close(opened)
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def read_file(path: Path, most_bytes: int | None = None) -> bytes:
    """As much of a plain file as it had when it was opened, and no more than that. Raises OSError."""
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        return file.read(size_bytes if most_bytes is None else min(size_bytes, most_bytes))


def parse_toml(text: str) -> dict[str, Any]:
    """What a file says that others have written. Raises ValueError, whatever is wrong with it."""
    if any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
