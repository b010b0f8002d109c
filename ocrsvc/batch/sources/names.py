"""Names of files as valid text: bytes that are no UTF-8 are escaped, and no two names become the same."""

from __future__ import annotations

import os
import re
from typing import Final

# What looks as if it had been escaped here.
_LOOKS_ESCAPED: Final = re.compile(r"\\x[89a-f][0-9a-f]")


def path_name(path: str) -> str:
    """The name of a path of this machine, whose invalid bytes are surrogates as `os.fsdecode` makes them."""
    if "\\" not in path and path.isascii():
        return path
    return bytes_name(os.fsencode(path))


def bytes_name(name: bytes) -> str:
    """The name that these bytes are in UTF-8.

    Where bytes are escaped, or a valid name looks so, its backslashes are doubled.
    """
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return name.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    return text.replace("\\", "\\\\") if _LOOKS_ESCAPED.search(text) else text
