"""Inputs that a batch run may plan to read: files, archive members and table rows; also counts of skipped files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final, Protocol

from ocrsvc.errors import BodyTooLarge, BrokenArchive
from ocrsvc.imaging.page_ranges import Ranges

MAX_MEMBERS: Final = 500_000
"""Largest number of members of an archive; zipfile takes about 650 bytes of memory per member."""
HEAD_BYTES: Final = 64
"""Number of first bytes of a file that show its format."""
DOCUMENTS: Final = frozenset({"pdf", "tif", "tiff"})
_MAX_KINDS: Final = 200
# Matches names that look as if `bytes_name` had escaped them.
_LOOKS_ESCAPED: Final = re.compile(r"\\x[89a-f][0-9a-f]")


@dataclass(slots=True)
class PlanningCounts:
    """Counts of files that were found but not planned; `unreadable` ones are planned as pages that fail."""

    skipped: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    first_unreadable: str = ""
    named_twice: int = 0
    without_pages: int = 0
    left_out: int = 0
    not_sampled: int = 0

    def to_sentences(self) -> list[str]:
        """Sentences for people about the counts that are not zero."""
        kinds = ", ".join(f"{kind}: {count}" for kind, count in self.skipped.most_common(8))
        kinds += ", and others" if len(self.skipped) > 8 else ""
        such_as = f", such as {self.first_unreadable}" if self.first_unreadable else ""
        skipped = self.skipped.total()
        what = "1 file that is not an image or PDF" if skipped == 1 else f"{skipped} files that are not images or PDFs"
        counted = (
            (self.unreadable, f"cannot be read, counted as a page that fails{such_as}"),
            (self.named_twice, "named twice, read once"),
            (self.without_pages, "without the pages asked for"),
            (self.left_out, "left out by --include or --exclude"),
        )
        sentences = [f"Skipped {what} ({kinds})."] if skipped else []
        sentences += [f"{count} {'files' if count > 1 else 'file'}: {what}" for count, what in counted if count]
        return sentences + ([f"{self.not_sampled} pages are not in the sample"] if self.not_sampled else [])

    def skip(self, kind: str, count: int = 1) -> None:
        """Count skipped files by kind; the number of kinds is limited, as they come from untrusted file names."""
        is_known = kind in self.skipped or len(self.skipped) < _MAX_KINDS
        self.skipped.update({kind if is_known else "other kinds": count} if count else {})


@dataclass(frozen=True, slots=True)
class Found:
    """A file, a member of an archive or a row of a table that may be planned; see SourceFile.

    `size` is 0 if unknown. `head` has the first bytes: None if not read yet, empty if the file type is found by name
    only. `is_named` files are planned whatever their type. `place` says where `Archive.load` finds a member. `path` is
    a path that a table's row contains; `ranges` are the pages that a list chooses.
    """

    name: str
    address: str
    size: int = 0
    version: str = ""
    head: bytes | None = None
    is_named: bool = False
    problem: str = ""
    kind: str = ""
    place: str = ""
    path: str = ""
    ranges: Ranges | None = None

    def member(self, name: str, place: str, size: int, head: bytes, problem: str, path: str = "") -> Found:
        """A member of this archive. `name` is appended to the archive's name; with `place`, `Archive.load` finds it."""
        own, is_row = self.name + name, name.startswith("#")
        problem = f"{own}: {problem}" if problem else ""
        return Found(own, self.address, size, self.version, head, is_row, problem, self.kind, place, path, self.ranges)


class Archive(Protocol):
    """An open archive or table; methods raise OSError and BrokenArchive."""

    def members(self, archive: Found) -> Iterator[Found]:
        """Yield the members in order; members before an error are valid. Not thread-safe."""

    def load(self, place: str, max_bytes: int) -> bytes:
        """Load the member with this `Found.place`; thread-safe. Raises BodyTooLarge."""

    def close(self) -> None:
        """Close the archive's file."""


class MemberNames:
    """Makes names for the members of one archive: valid text, unique, and without `..`."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}

    def name(self, path: bytes) -> str:
        """Make the name of the next member from its path; `..` becomes `__`. Raises BrokenArchive: too many members."""
        if len(self._times) >= MAX_MEMBERS:
            raise too_many_members(f"more than {MAX_MEMBERS:,}")
        parts = (part for part in bytes_name(path).split("/") if part not in {"", "."})
        name = unique = "/" + "/".join("__" if part == ".." else part for part in parts)
        times = self._times.get(hash(name), 0)
        while times and hash(unique) in self._times:
            times += 1
            unique = f"{name}#{times}"
        self._times[hash(name)] = max(times, 1)
        self._times.setdefault(hash(unique), 1)
        return unique


def path_name(path: str) -> str:
    """Convert a local path to a name; the path's bytes that are not UTF-8 are surrogates, as from `os.fsdecode`."""
    return path if path.isascii() and "\\" not in path else bytes_name(os.fsencode(path))


def bytes_name(name: bytes) -> str:
    r"""Decode a name from UTF-8; if that fails, invalid bytes become escapes like \xe4, and each \ is doubled."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return name.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    return text.replace("\\", "\\\\") if _LOOKS_ESCAPED.search(text) else text


def extension_of(name: str) -> str:
    """The part of a name after its last dot, in lower case; "" without one."""
    stem, dot, extension = name.rpartition("/")[2].rpartition(".")
    return extension.lower() if dot and stem else ""


def too_large(size: int, max_bytes: int) -> BodyTooLarge:
    """The error for a file or member that is too large."""
    what = f"It has {size} bytes; the limit is {max_bytes} (OCRSVC_MAX_BODY_BYTES)."
    return BodyTooLarge(what, "Raise the limit, or split it.")


def too_many_members(found: str) -> BrokenArchive:
    """The error for an archive with too many members."""
    return BrokenArchive(f"It has {found} members; at most {MAX_MEMBERS:,} are read: unpack it, and name its folder.")


def read_fully(file: BinaryIO, size: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file, even if one `read` returns less. Raises OSError."""
    pieces: list[bytes] = []
    while size and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
