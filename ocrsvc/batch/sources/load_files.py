"""Loads what was planned: a whole file, or a member of an archive, if it is still what it was."""

import threading
import weakref
from contextlib import closing
from functools import partial
from typing import Final

from ocrsvc.batch.objects import look_at, open_file
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.request import MOST_FILE_BYTES
from ocrsvc.batch.sources.archives import TarArchive, ZipArchive
from ocrsvc.batch.sources.source_files import DOCUMENTS, Archive, Found, extension_of, read_fully, too_large
from ocrsvc.batch.sources.tables import TableArchive, Tables
from ocrsvc.errors import BrokenArchive, CallerError, SourceGone
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import may_have_pages, open_document

FAILURE: Final = "failure"
"""The kind of what cannot be read: its place is the reason."""
LINKED: Final = "linked"
"""The kind of a whole file that a table names: its place is the table's address."""
# Archives that stay open while nothing is read from them.
MOST_OPEN: Final = 8
# Of files that are kept; a larger one is kept alone.
KEPT_BYTES: Final = 64 * 1024 * 1024
_LOCKS: Final = 64


class SourceLoader:
    """Loads files, for any thread and, pickled, any process; keeps the last documents, with `keeps_all` other files."""

    def __init__(self, most_bytes: int = MOST_FILE_BYTES, *, keeps_all: bool = False) -> None:
        self._most_bytes, self._keeps_all = most_bytes, keeps_all
        # By kind, address and version; the one that was used last is last.
        self._open: dict[tuple[str, str, str], Archive] = {}
        # By address and place, in the same order.
        self._kept: dict[tuple[str, str], bytes] = {}
        self._lock = threading.Lock()
        # A thread waits for another one that loads the same file, and seldom for others.
        self._loading = [threading.Lock() for _ in range(_LOCKS)]
        self._tables = Tables()

    def __reduce__(self) -> tuple[object, ...]:
        return partial(SourceLoader, self._most_bytes, keeps_all=self._keeps_all), ()

    def __call__(self, file: SourceFile) -> bytes:
        """The bytes of a file. Raises SourceGone, also where it has changed, CallerError and ResourcesExhausted."""
        if file.total == 1 and not self._keeps_all:
            return self._load_planned(file)
        key = file.address, file.place
        with self._loading[hash(key) % _LOCKS]:
            with self._lock:
                data = self._kept.pop(key, None)
            data = self._load_planned(file) if data is None else data
            with self._lock:
                self._kept[key] = data
                while len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES:
                    del self._kept[next(iter(self._kept))]
        return data

    def _load_planned(self, file: SourceFile) -> bytes:
        if file.kind == FAILURE:
            kind = BrokenArchive if file.version else SourceGone
            raise kind(file.place, "Repair it, and choose another destination for it.")
        data = self.load(file)
        # Where the name alone was known at planning, or counting failed, no page of a document may be lost.
        is_counted = file.total > 1 or (file.total == 1 and extension_of(file.name) in DOCUMENTS)
        if not is_counted and (pages := count_pages(data)) != 1:
            what = f"{file.name} is a document of {pages} pages, of which 1 is planned."
            raise SourceGone(what, "Let its name end in .pdf or .tif, and choose another destination for it.")
        return data

    def load(self, file: SourceFile | Found) -> bytes:
        """The bytes at a file's place; `version` "" is not compared. Raises as a call does."""
        try:
            now = look_at(file.address)
            if file.version and now.version != file.version:
                raise SourceGone("It has changed since the run was planned.", "Choose another destination for it.")
            if file.kind not in {"", LINKED}:
                archive = self._archive((file.kind, file.address, now.version))
                return archive.load(file.place, self._most_bytes)
            if now.size > self._most_bytes:
                raise too_large(now.size, self._most_bytes)
            with open_file(file.address) as opened:
                return read_fully(opened, now.size)
        except OSError as error:
            what = f"{file.name} cannot be read: {error.strerror or error}."
            raise SourceGone(what, "Check it and its permissions.") from error
        except (SourceGone, CallerError) as error:
            raise type(error)(f"{file.name}: {error.detail}", error.remedy) from error

    def open(self, kind: str, address: str, column: str | None = None) -> Archive:
        """The archive at an address, to be closed. Raises OSError, SourceGone and BrokenArchive."""
        if kind in {"tar", "packed_tar"}:
            return TarArchive(address, is_packed=kind == "packed_tar")
        return ZipArchive(address) if kind == "zip" else TableArchive(address, column, self._tables)

    def close(self) -> None:
        """Close the archives that no thread reads any more; the others close after that."""
        self._open.clear()
        self._tables.close()

    def _archive(self, key: tuple[str, str, str]) -> Archive:
        """An archive that stays open; those that were used longest ago close when no thread has them any more."""
        with self._lock:
            archive = self._open.pop(key, None)
            if archive is None:
                archive = self.open(*key[:2])
                weakref.finalize(archive, archive.close)
            self._open[key] = archive
            while len(self._open) > MOST_OPEN:
                del self._open[next(iter(self._open))]
        return archive


def count_pages(data: bytes) -> int:
    """The pages of a file, those of a PDF found in a child process. Raises CallerError and ResourcesExhausted."""
    if not may_have_pages(data):
        return 1
    with closing(open_document(data, PixelLimits(1 << 40), 100, lambda: None, lambda _bytes: None)) as document:
        return document.count
