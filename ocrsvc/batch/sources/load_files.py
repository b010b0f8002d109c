"""Loads planned files, or members of archives, unless they have changed since the planning."""

import threading
import weakref
from contextlib import closing
from functools import partial
from typing import Final

from ocrsvc.batch.objects import look_at, open_file
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.request import MAX_FILE_BYTES
from ocrsvc.batch.sources.archives import TarArchive, ZipArchive
from ocrsvc.batch.sources.source_files import DOCUMENTS, Archive, Found, extension_of, read_fully, too_large
from ocrsvc.batch.sources.tables import TableArchive, Tables
from ocrsvc.errors import BrokenArchive, CallerError, SourceGone
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import may_have_pages, open_document

FAILURE: Final = "failure"
"""SourceFile.kind of a file that could not be planned; SourceFile.place is the reason."""
LINKED: Final = "linked"
"""SourceFile.kind of a file whose path or URL is in a table's column; SourceFile.place is the table's path or URL."""
# Number of archives that stay open for later reads.
MAX_OPEN: Final = 8
# Largest total size of the files that stay in memory; a single file above it stays until the next one is loaded.
KEPT_BYTES: Final = 64 * 1024 * 1024
_LOCKS: Final = 64


class SourceLoader:
    """Loads files; thread-safe, can be pickled. Caches documents of several pages, with `keeps_all` other files too."""

    def __init__(self, max_bytes: int = MAX_FILE_BYTES, *, keeps_all: bool = False) -> None:
        self._max_bytes, self._keeps_all = max_bytes, keeps_all
        # Open archives by kind, address and version, least recently used first.
        self._open: dict[tuple[str, str, str], Archive] = {}
        # Contents of files by address and `place` (the position in an archive), least recently used first.
        self._kept: dict[tuple[str, str], bytes] = {}
        self._lock = threading.Lock()
        # Each file uses one of these locks, so that threads do not load the same file twice.
        self._loading = [threading.Lock() for _ in range(_LOCKS)]
        self._tables = Tables()

    def __reduce__(self) -> tuple[object, ...]:
        return partial(SourceLoader, self._max_bytes, keeps_all=self._keeps_all), ()

    def __call__(self, file: SourceFile) -> bytes:
        """Load a planned file. Raises SourceGone (also if it has changed), CallerError and ResourcesExhausted."""
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
        # If planning knew only the name, or could not count pages, check that no page of a document was missed.
        is_counted = file.total > 1 or (file.total == 1 and extension_of(file.name) in DOCUMENTS)
        if not is_counted and (pages := count_pages(data)) != 1:
            what = f"{file.name} is a document of {pages} pages, of which 1 is planned."
            raise SourceGone(what, "Let its name end in .pdf or .tif, and choose another destination for it.")
        return data

    def load(self, file: SourceFile | Found) -> bytes:
        """Load a file or archive member; its version must still be `file.version`, if known. Raises as `__call__`."""
        try:
            now = look_at(file.address)
            if file.version and now.version != file.version:
                raise SourceGone("It has changed since the run was planned.", "Choose another destination for it.")
            if file.kind not in {"", LINKED}:
                archive = self._archive((file.kind, file.address, now.version))
                return archive.load(file.place, self._max_bytes)
            if now.size > self._max_bytes:
                raise too_large(now.size, self._max_bytes)
            with open_file(file.address) as opened:
                return read_fully(opened, now.size)
        except OSError as error:
            what = f"{file.name} cannot be read: {error.strerror or error}."
            raise SourceGone(what, "Check it and its permissions.") from error
        except (SourceGone, CallerError) as error:
            raise type(error)(f"{file.name}: {error.detail}", error.remedy) from error

    def open(self, kind: str, address: str, column: str | None = None) -> Archive:
        """Open an archive or table, which the caller must close. Raises OSError, SourceGone and BrokenArchive."""
        if kind in {"tar", "packed_tar"}:
            return TarArchive(address, is_packed=kind == "packed_tar")
        return ZipArchive(address) if kind == "zip" else TableArchive(address, column, self._tables)

    def close(self) -> None:
        """Release the archives; each is closed when no thread uses it any more."""
        self._open.clear()
        self._tables.close()

    def _archive(self, key: tuple[str, str, str]) -> Archive:
        """An archive that stays open for later calls; the least recently used one closes when no thread uses it."""
        with self._lock:
            archive = self._open.pop(key, None)
            if archive is None:
                archive = self.open(*key[:2])
                weakref.finalize(archive, archive.close)
            self._open[key] = archive
            while len(self._open) > MAX_OPEN:
                del self._open[next(iter(self._open))]
        return archive


def count_pages(data: bytes) -> int:
    """Count a file's pages, those of a PDF in a child process. Raises CallerError and ResourcesExhausted."""
    if not may_have_pages(data):
        return 1
    with closing(open_document(data, PixelLimits(1 << 40), 100, lambda: None, lambda _bytes: None)) as document:
        return document.count
