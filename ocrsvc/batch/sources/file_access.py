"""The contract of what finds and opens the files of sources, wherever they are: on this machine, or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from ocrsvc.batch.sources.planning_counts import PlanningCounts


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as its folder lists it; nothing of it was read.

    Attributes:
        address: Path or URL.
        name: As results call it: valid text.
        size: Bytes.
        version: Text that changes with its content: size and time of the last change, or an object store's ETag; "" of
            what cannot be looked at.
        is_named: Whether the source names it itself, so that it is planned whatever it is.
        problem: Of a folder that cannot be listed: why; "" of files.
    """

    address: str
    name: str
    size: int
    version: str
    is_named: bool = False
    problem: str = ""


class FileAccess(Protocol):
    """The files of one kind of address; for any thread.

    Attributes:
        is_local: Whether a million files may be listed again, and their beginnings read, within seconds.
    """

    is_local: bool

    def find(self, source: str, counts: PlanningCounts) -> Iterator[FoundFile]:
        """The files of a source: a file, those below a folder, or of a pattern, in a stable order.

        Memory is bounded whatever a folder holds. Raises SourceGone if there is no such source.
        """

    def address_of(self, source: str) -> str:
        """The address of a file, by which every process finds it."""

    def look_at(self, address: str, version: str = "") -> FoundFile:
        """A file as it is now. Raises OSError.

        Args:
            address: Of the file.
            version: That it should have. Where `open` gives a file that fails if it has another, nobody need look.
        """

    def open(self, address: str) -> BinaryIO:
        """A file for reading, with `seek`. Raises OSError."""
