"""Finds and opens files of this machine: a file, a folder, or a pattern."""

# A Path for each of ten million files costs more than all else here.
# ruff: noqa: PTH109, PTH112, PTH116, PTH118

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, Final

from ocrsvc.batch.sources.file_access import FoundFile
from ocrsvc.batch.sources.names import path_name
from ocrsvc.batch.sources.path_patterns import PathPattern, is_pattern
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.batch.sources.record_sort import sort_records
from ocrsvc.errors import SourceGone

_FOLDER: Final = b"\0/"
_LEDGER: Final = "_ocrsvc"


class LocalAccess:
    """Files by their paths; a folder's in the order of their names' bytes, without those behind links to folders."""

    is_local = True

    def find(self, source: str, counts: PlanningCounts) -> Iterator[FoundFile]:
        """As FileAccess.find."""
        if os.path.isdir(source):
            return _walk(source, counts, None)
        if is_pattern(source) and not os.path.lexists(source):
            return _matching(source, counts)
        return iter([_named(source)])

    def address_of(self, source: str) -> str:
        """As FileAccess.address_of; links and .. stay in it, which may not mean what they seem to."""
        return _absolute(source)

    def look_at(self, address: str, version: str = "") -> FoundFile:  # noqa: ARG002  it is always looked at
        """As FileAccess.look_at."""
        status = os.stat(address)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "It is no file")
        return _found(address, status)

    def open(self, address: str) -> BinaryIO:
        """As FileAccess.open."""
        # Something that is no file any more, such as a pipe, must not make its reader wait.
        descriptor = os.open(address, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        return os.fdopen(descriptor, "rb", buffering=0)


def _named(source: str) -> FoundFile:
    try:
        status = os.stat(source)
    except OSError as error:
        raise SourceGone(
            f"{path_name(source)} cannot be read: {error.strerror}.", "Check its name and permissions."
        ) from error
    return _found(source, status, is_named=True)


def _matching(source: str, counts: PlanningCounts) -> Iterator[FoundFile]:
    pattern = PathPattern(source)
    found = None
    for found in _walk(pattern.folder, counts, pattern):
        yield found
    if found is None:
        raise SourceGone(f"No file matches {path_name(source)}.", "Check the pattern; put it in quotes.")


def _walk(top: str, counts: PlanningCounts, pattern: PathPattern | None) -> Iterator[FoundFile]:
    """The files below a folder, depth first; one folder's sorted entries for each level are open at a time."""
    deepest = None if pattern is None else pattern.levels
    levels = [(top, _entries(top, counts))]
    while levels:
        folder, entries = levels[-1]
        try:
            record = next(entries, None)
        except OSError as error:
            problem = f"The folder {path_name(folder)} cannot be listed: {error.strerror}."
            yield FoundFile(_absolute(folder), path_name(folder), 0, "", problem=problem)
            record = None
        if record is None:
            levels.pop()
            continue
        path = os.path.join(folder, os.fsdecode(record.removesuffix(_FOLDER)))
        if record.endswith(_FOLDER):
            if os.path.lexists(os.path.join(path, _LEDGER)):
                counts.skip("folders of a run's output")
            elif deepest is None or len(levels) < deepest:
                levels.append((path, _entries(path, counts)))
        elif pattern is None or pattern.matches(path):
            yield from _look_at(path, counts)


def _entries(folder: str, counts: PlanningCounts) -> Iterator[bytes]:
    """The names in a folder, without hidden ones, sorted; those of folders end in `_FOLDER`. Raises OSError."""
    return sort_records(_unsorted_entries(folder, counts))


def _unsorted_entries(folder: str, counts: PlanningCounts) -> Iterator[bytes]:
    with os.scandir(os.fsencode(folder) or b".") as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                counts.skip("hidden")
            elif entry.name == _LEDGER.encode():
                counts.skip("folders of a run's ledger")
            elif entry.is_dir(follow_symlinks=False):
                yield entry.name + _FOLDER
            else:
                yield entry.name


def _look_at(path: str, counts: PlanningCounts) -> Iterator[FoundFile]:
    try:
        status = os.stat(path)
    except OSError:
        # Loading it will say why.
        yield FoundFile(_absolute(path), path_name(path), 0, "")
        return
    if stat.S_ISREG(status.st_mode):
        yield _found(path, status)
    else:
        counts.skip("links to folders" if stat.S_ISDIR(status.st_mode) else "devices and pipes")


def _found(path: str, status: os.stat_result, *, is_named: bool = False) -> FoundFile:
    version = f"{status.st_size}-{status.st_mtime_ns}"
    return FoundFile(_absolute(path), path_name(path), status.st_size, version, is_named)


def _absolute(path: str) -> str:
    return path if path.startswith("/") else os.path.join(os.getcwd(), path)
