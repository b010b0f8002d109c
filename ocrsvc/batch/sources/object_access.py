"""Finds and opens the objects of object stores and web servers: one, those below a folder, or of a pattern."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import BinaryIO, Final, cast

from ocrsvc.batch.objects.contract import StoredObject
from ocrsvc.batch.objects.object_file import ObjectFile
from ocrsvc.batch.objects.opening import open_objects, path_of
from ocrsvc.batch.objects.url import protocol_of
from ocrsvc.batch.sources.file_access import FoundFile
from ocrsvc.batch.sources.path_patterns import PathPattern, is_pattern
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.errors import SourceGone

_MOST_SEEN: Final = 256
_LEDGER: Final = "_ocrsvc"


class ObjectAccess:
    """As FileAccess, for URLs. What `look_at` saw last of an object is what `open` reads, with no request between."""

    is_local = False

    def __init__(self) -> None:
        self._seen: OrderedDict[str, StoredObject] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, source: str, counts: PlanningCounts) -> Iterator[FoundFile]:
        """As FileAccess.find: one request for each 1,000 objects of S3."""
        try:
            if is_pattern(path_of(source)) and protocol_of(source) not in ("http", "https"):
                pattern = PathPattern(source)
                return self._below(pattern.folder, counts, pattern)
            return self._named_or_below(source, counts)
        except OSError as error:
            raise _gone(source, error) from error

    def address_of(self, source: str) -> str:
        """As FileAccess.address_of."""
        return source

    def look_at(self, address: str, version: str = "") -> FoundFile:
        """As FileAccess.look_at, with one request, or none where reading fails if it has another version."""
        objects, path = open_objects(address), path_of(address)
        size = version.partition("-")[0]
        if objects.checks_versions and size.isdecimal():
            seen = StoredObject(path, int(size), version)
        else:
            seen = objects.look_at(path)
        with self._lock:
            self._seen[address] = seen
            self._seen.move_to_end(address)
            if len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)
        return _found(address, seen)

    def open(self, address: str) -> BinaryIO:
        """As FileAccess.open; nothing is asked for until it is read."""
        with self._lock:
            seen = self._seen.get(address)
        return cast("BinaryIO", ObjectFile(open_objects(address), path_of(address), seen))

    def _named_or_below(self, source: str, counts: PlanningCounts) -> Iterator[FoundFile]:
        objects, is_folder = open_objects(source), source.endswith("/") or "/" not in path_of(source)
        if not is_folder:
            try:
                return iter([_found(source, objects.look_at(path_of(source)), is_named=True)])
            except FileNotFoundError:
                if protocol_of(source) in ("http", "https"):
                    raise
        return self._below(source.rstrip("/"), counts, None)

    def _below(self, folder: str, counts: PlanningCounts, pattern: PathPattern | None) -> Iterator[FoundFile]:
        is_empty = True
        try:
            for found in open_objects(folder).below(path_of(folder)):
                is_empty = False
                url = f"{protocol_of(folder)}://{found.path}"
                names = url[len(folder) + 1 :].split("/")
                if _LEDGER in names:
                    counts.skip("a run's ledger")
                elif any(name.startswith(".") for name in names):
                    counts.skip("hidden")
                elif pattern is None or pattern.matches(url):
                    yield _found(url, found)
        except OSError as error:
            raise _gone(folder, error) from error
        if is_empty:
            raise SourceGone(f"{folder}/ has no objects.", "Check its name.")


def _found(url: str, found: StoredObject, *, is_named: bool = False) -> FoundFile:
    return FoundFile(url, url, found.size, found.version, is_named)


def _gone(source: str, error: OSError) -> SourceGone:
    return SourceGone(f"{source} cannot be read: {error.strerror or error}.", "Check its name and the credentials.")
