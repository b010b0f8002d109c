"""The pages of a job, as they are read: lines of JSON, and an index by which any of them is found without the others.

One process at a time appends, and any may read meanwhile. A line is written before its entry in the index, so that
what the index counts is there. What a process left that was killed between the two, or within a line, is put right by
`repair` before the next one appends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, Final

import orjson

LINES: Final = "pages.jsonl"
INDEX: Final = "pages.index"

# Twice the place where the line ends, and 1 more for a page that could not be read.
_ENTRY: Final = Struct("<Q")


@dataclass(frozen=True, slots=True)
class PageLog:
    """The pages of the job in this folder; any method may raise OSError."""

    folder: Path

    def count(self) -> int:
        """How many pages are there; reads none."""
        with suppress(FileNotFoundError):
            return (self.folder / INDEX).stat().st_size // _ENTRY.size
        return 0

    def size_bytes(self) -> int:
        """Of all lines; reads none."""
        with suppress(FileNotFoundError):
            return (self.folder / LINES).stat().st_size
        return 0

    def failed(self) -> list[int]:
        """The places, from 0, of the pages that could not be read."""
        return [place for place, entry in enumerate(self._entries(0)) if entry & 1]

    def read(self, after: int = 0, most: int | None = None) -> Iterator[Any]:
        """The pages, in order and one at a time, from the one on that has `after` before it.

        Args:
            after: How many are left out.
            most: How many are read at most; None is all that are there now.
        """
        begins = self._entries(after - 1)[0] >> 1 if after else 0
        try:
            lines = (self.folder / LINES).open("rb")
        except FileNotFoundError:
            return
        with lines:
            lines.seek(begins)
            there = max(0, self.count() - after)
            for line in islice(lines, there if most is None else min(there, most)):
                if not _is_whole(line):
                    return
                yield orjson.loads(line)

    def append(self, page: Mapping[str, object]) -> None:
        """Add a page; only for who has claimed the job. One that holds "error" counts as failed."""
        with (self.folder / LINES).open("ab") as lines:
            lines.write(orjson.dumps(page) + b"\n")
            lines.flush()
            ends = lines.tell()
        with (self.folder / INDEX).open("ab") as index:
            index.write(_ENTRY.pack(ends << 1 | ("error" in page)))

    def repair(self) -> None:
        """Cut off what is no whole line, and count anew; only for who has claimed the job."""
        try:
            lines = (self.folder / LINES).open("r+b")
        except FileNotFoundError:
            return
        entries, ends = [], 0
        with lines:
            for line in lines:
                page = _page_in(line)
                if page is None:
                    break
                ends += len(line)
                entries.append(_ENTRY.pack(ends << 1 | ("error" in page)))
            lines.truncate(ends)
        found = b"".join(entries)
        if found != self._index():
            (self.folder / f"{INDEX}.new").write_bytes(found)
            (self.folder / f"{INDEX}.new").rename(self.folder / INDEX)

    def sync(self) -> None:
        """Have what was appended survive a loss of power."""
        for name in (LINES, INDEX):
            with suppress(FileNotFoundError), (self.folder / name).open("rb") as file:
                os.fsync(file.fileno())

    def _index(self) -> bytes:
        with suppress(FileNotFoundError):
            return (self.folder / INDEX).read_bytes()
        return b""

    def _entries(self, after: int) -> list[int]:
        """The entries from this one on; a torn one at the end does not count. [0] where there is none."""
        with suppress(FileNotFoundError), (self.folder / INDEX).open("rb") as index:
            index.seek(max(0, after) * _ENTRY.size)
            data = index.read()
            whole = data[: len(data) // _ENTRY.size * _ENTRY.size]
            return [entry for (entry,) in _ENTRY.iter_unpack(whole)] or [0]
        return [0]


def _page_in(line: bytes) -> Any:
    """The page, and None for what is none."""
    with suppress(ValueError):
        return orjson.loads(line) if _is_whole(line) else None
    return None


def _is_whole(line: bytes) -> bool:
    """Whether it is a page, and nothing that a disk without power left in place of one."""
    return line.startswith(b"{") and line.endswith(b"}\n") and b"\0" not in line
