"""Loads what was planned: a whole file, or a member of an archive, if it is still what it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from ocrsvc.batch.sources.address_access import access_of
from ocrsvc.batch.sources.archive import too_large
from ocrsvc.batch.sources.file_access import FileAccess, FoundFile
from ocrsvc.batch.sources.locator import Locator
from ocrsvc.batch.sources.open_archives import OpenArchives
from ocrsvc.batch.sources.page_count import DOCUMENTS, count_pages, extension_of
from ocrsvc.batch.sources.source_request import MOST_FILE_BYTES
from ocrsvc.batch.tasks import SourceFile
from ocrsvc.errors import BrokenArchive, CallerError, SourceGone
from ocrsvc.imaging.document import may_have_pages

FAILURE: Final = "failure"
"""The kind of locator of an archive, a member or a folder that cannot be read: its place is the reason."""
LINKED: Final = "linked"
"""The kind of locator of a whole file that a table names: its place is the table's address."""


class SourceLoader:
    """Loads files, for any thread; can be pickled, and works in any process. `close` it.

    Args:
        most_bytes: What a file or a member may hold; a larger one is not read.
    """

    def __init__(self, most_bytes: int = MOST_FILE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._archives = OpenArchives()

    def __reduce__(self) -> tuple[type[SourceLoader], tuple[int]]:
        return SourceLoader, (self._most_bytes,)

    def __call__(self, file: SourceFile) -> bytes:
        """The bytes of a file.

        Raises:
            SourceGone: It cannot be read, or is no longer what was planned.
            BrokenArchive: The archive that has it is damaged.
            BodyTooLarge: It holds too much.
            BrokenImage, EncryptedDocument, TooManyPages, ResourcesExhausted: It is a document that cannot be opened.
        """
        locator = Locator.of(file.locator)
        if locator.kind == FAILURE:
            kind = BrokenArchive if file.version else SourceGone
            raise kind(locator.place, "Mend it, and take another destination for it.")
        data = self.load(locator, file.name, file.version)
        # Where the name alone was known at planning, or counting failed, no page of a document may be lost.
        is_counted = file.total > 1 or (file.total == 1 and extension_of(file.name) in DOCUMENTS)
        if not is_counted and may_have_pages(data) and (pages := count_pages(data)) != 1:
            raise SourceGone(
                f"{file.name} is a document of {pages} pages, of which 1 is planned.",
                "Let its name end in .pdf or .tif, and take another destination for it.",
            )
        return data

    def load(self, locator: Locator, name: str, version: str) -> bytes:
        """The bytes at a place; `version` "" is not compared. Raises as a call does."""
        with _failures_named(name):
            access = access_of(locator.address)
            now = access.look_at(locator.address, version)
            if version and now.version != version:
                raise SourceGone("It has changed since the run was planned.", "Take another destination for it.")
            if locator.kind in {"", LINKED}:
                return self._read_whole(access, now)
            with self._archives.using(locator.kind, locator.address, now.version) as archive:
                return archive.load(locator.place, self._most_bytes)

    def close(self) -> None:
        """Close the archives that are open."""
        self._archives.close()

    def _read_whole(self, access: FileAccess, now: FoundFile) -> bytes:
        if now.size > self._most_bytes:
            raise too_large(now.size, self._most_bytes)
        with access.open(now.address) as file:
            return _read_up_to(file, now.size)


def _read_up_to(file: BinaryIO, size: int) -> bytes:
    """At most so many bytes of an unbuffered file: one that grows meanwhile is not read without end."""
    pieces: list[bytes] = []
    while size and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextmanager
def _failures_named(name: str) -> Iterator[None]:
    """Failures say which file they are of."""
    try:
        yield
    except OSError as error:
        raise SourceGone(
            f"{name} cannot be read: {error.strerror or error}.", "Check it and its permissions."
        ) from error
    except (SourceGone, CallerError) as error:
        raise type(error)(f"{name}: {error.detail}", error.remedy) from error
