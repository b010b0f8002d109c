"""Names of files of the output that belong to one source each: a tree like that of the sources, inside the destination.

Two sources never get the same name, on any file system that keeps apart names that differ by case alone; nothing leads
out of the destination, and each source's own name can be told from it, unless it had to be shortened.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

ENDINGS: Final = (".txt", ".tsv", ".hocr", ".alto.xml", ".pdf")
"""Of the files that belong to one source each, by which they differ from its name."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)(?:\+[A-Za-z0-9.+-]*)?://")
_ROOT: Final = "@root"
_UP: Final = "@up"
# What Windows or a shell trips over, and "%" itself; "/" divides names.
_UNSAFE: Final = re.compile(r'[\x00-\x1f\x7f"%*:<>?\\|\ud800-\udfff]')
# And the names of what the destination has beside them: `_ocrsvc`, `_files` and `unfinished`.
_UNSAFE_ENDS: Final = re.compile(
    r"\A(?:[@. ]|_(?=(?i:ocrsvc|files)\Z)|[uU](?=(?i:nfinished)\Z))|[. ]\Z|~(?=[0-9a-f]{16}\Z)"
)
# A folder must not have the name that a file beside it gets.
_FILE_ENDINGS: Final = re.compile(
    rf"\.(?=(?:{'|'.join(re.escape(ending[1:]) for ending in ENDINGS)}|html|jsonl|jsonl\.gz|parquet)\Z)", re.IGNORECASE
)
_LONGEST_PART_BYTES: Final = 200
_LONGEST_BYTES: Final = 800
_DIGITS: Final = 16


def source_path(name: str, ending: str) -> str:
    """The name in the destination of the file of a source, as results call it, with one of ENDINGS."""
    first, rest = [], name
    if found := _SCHEME.match(name):
        first, rest = [f"@{_escaped(name[: found.end() - 3])}"], name[found.end() :]
    elif name.startswith("/"):
        first, rest = [_ROOT], name[1:]
    *folders, last = rest.split("/")
    parts = [*first, *(_FILE_ENDINGS.sub("%2E", _safe(folder)) for folder in folders)]
    parts = [_shortened(part, part) for part in parts]
    path = "/".join([*parts, _shortened(_safe(last), name) + ending])
    if len(path.encode()) <= _LONGEST_BYTES:
        return path
    return f"@long/{_shortened(_safe(last), name, always=True)}{ending}"


def _safe(part: str) -> str:
    """One part of a name, with percent signs for what must not stand in it."""
    if part in {"", "."}:
        return "@" * (1 + len(part))
    if part == "..":
        return _UP
    return _UNSAFE_ENDS.sub(lambda found: _quoted(found[0]), _escaped(part))


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda found: _quoted(found[0]), text)


def _quoted(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _shortened(part: str, whole: str, *, always: bool = False) -> str:
    """A part that file systems take, with a digest of the whole where it had to be cut."""
    data = part.encode()
    if len(data) <= _LONGEST_PART_BYTES and not always:
        return part
    kept = data[: _LONGEST_PART_BYTES - 1 - _DIGITS].decode(errors="ignore")
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{kept}~{digest}"
