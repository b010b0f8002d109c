"""Which access the files of an address have: those of this machine, or another's.

Everything of `batch.sources` opens files through `open_file`, so that archives are read wherever they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from ocrsvc.batch.objects.url import is_url
from ocrsvc.batch.sources.file_access import FileAccess, FoundFile
from ocrsvc.batch.sources.local_access import LocalAccess
from ocrsvc.batch.sources.object_access import ObjectAccess
from ocrsvc.batch.sources.planning_counts import PlanningCounts

_FILE: Final = "file://"
_LOCAL: Final = LocalAccess()
_OBJECTS: Final = ObjectAccess()


class _FileUrls(LocalAccess):
    """Paths that are written as URLs; what is found below them are paths."""

    def find(self, source: str, counts: PlanningCounts) -> Iterator[FoundFile]:
        """As FileAccess.find."""
        return super().find(source.removeprefix(_FILE), counts)

    def address_of(self, source: str) -> str:
        """As FileAccess.address_of."""
        return super().address_of(source.removeprefix(_FILE))

    def look_at(self, address: str, version: str = "") -> FoundFile:
        """As FileAccess.look_at."""
        return super().look_at(address.removeprefix(_FILE), version)

    def open(self, address: str) -> BinaryIO:
        """As FileAccess.open."""
        return super().open(address.removeprefix(_FILE))


_FILE_URLS: Final = _FileUrls()


def access_of(address: str) -> FileAccess:
    """What finds and opens the files of a source or an address: a path, or a URL."""
    if address.startswith(_FILE):
        return _FILE_URLS
    return _OBJECTS if is_url(address) else _LOCAL


def open_file(address: str) -> BinaryIO:
    """A file for reading at any place, unbuffered; to be closed. Raises OSError."""
    return access_of(address).open(address)
