"""Loads what was planned: a whole file, or a member of an archive, if it is still what it was."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
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
MOST_OPEN: Final = 8
"""Archives that stay open while nothing is read from them."""
KEPT_BYTES: Final = 64 * 1024 * 1024
"""What is kept of files, besides the one that was loaded last."""
_LIMITS: Final = PixelLimits(1 << 40)
_DPI: Final = 100


class SourceLoader:
    """Loads files, for any thread and, as it can be pickled, any process; `close` it.

    It keeps documents that were loaded last, and with `keeps_all` other files, too, which deduplication loads twice.
    """

    def __init__(
        self, most_bytes: int = MOST_FILE_BYTES, *, keeps_all: bool = False, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._most_bytes, self._keeps_all, self._kept_bytes = most_bytes, keeps_all, kept_bytes
        # By kind, address and version, with how many threads use it; what was used last is last.
        self._open: OrderedDict[tuple[str, str, str], tuple[Archive, int]] = OrderedDict()
        self._kept: OrderedDict[tuple[str, str], tuple[Future[bytes], int]] = OrderedDict()
        self._lock = threading.Lock()
        self._tables = Tables()

    def __reduce__(self) -> tuple[object, ...]:
        return partial(SourceLoader, self._most_bytes, keeps_all=self._keeps_all, kept_bytes=self._kept_bytes), ()

    def __call__(self, file: SourceFile) -> bytes:
        """The bytes of a file; threads wait for one that loads it.

        Raises SourceGone where it has changed, BrokenArchive, CallerError for what is too large or cannot be opened,
        and ResourcesExhausted.
        """
        if file.total == 1 and not self._keeps_all:
            return self._load_planned(file)
        key = file.address, file.place
        with self._lock:
            future, _ = found = self._kept.pop(key, None) or (Future[bytes](), file.size)
            is_first = not (future.running() or future.done())
            if is_first:
                future.set_running_or_notify_cancel()
            self._kept[key] = found
            while len(self._kept) > 1 and sum(size for _, size in self._kept.values()) > self._kept_bytes:
                self._kept.popitem(last=False)
        if is_first:
            try:
                future.set_result(self._load_planned(file))
            except BaseException as error:  # noqa: BLE001  the waiting threads raise it
                with self._lock:
                    self._kept.pop(key, None)
                future.set_exception(error)
        return future.result()

    def _load_planned(self, file: SourceFile) -> bytes:
        if file.kind == FAILURE:
            kind = BrokenArchive if file.version else SourceGone
            raise kind(file.place, "Repair it, and choose another destination for it.")
        data = self.load(file)
        # Where the name alone was known at planning, or counting failed, no page of a document may be lost.
        is_counted = file.total > 1 or (file.total == 1 and extension_of(file.name) in DOCUMENTS)
        if not is_counted and (pages := count_pages(data)) != 1:
            raise SourceGone(
                f"{file.name} is a document of {pages} pages, of which 1 is planned.",
                "Let its name end in .pdf or .tif, and choose another destination for it.",
            )
        return data

    def load(self, file: SourceFile | Found) -> bytes:
        """The bytes at a file's place; `version` "" is not compared. Raises as a call does."""
        try:
            now = look_at(file.address)
            if file.version and now.version != file.version:
                raise SourceGone("It has changed since the run was planned.", "Choose another destination for it.")
            if file.kind not in {"", LINKED}:
                with self._using((file.kind, file.address, now.version)) as archive:
                    return archive.load(file.place, self._most_bytes)
            if now.size > self._most_bytes:
                raise too_large(now.size, self._most_bytes)
            with open_file(file.address) as opened:
                return read_fully(opened, now.size)
        except OSError as error:
            raise SourceGone(
                f"{file.name} cannot be read: {error.strerror or error}.", "Check it and its permissions."
            ) from error
        except (SourceGone, CallerError) as error:
            raise type(error)(f"{file.name}: {error.detail}", error.remedy) from error

    def open(self, kind: str, address: str, column: str | None = None) -> Archive:
        """The archive at an address, to be closed. Raises OSError, SourceGone and BrokenArchive."""
        if kind in {"tar", "packed_tar"}:
            return TarArchive(address, is_packed=kind == "packed_tar")
        return ZipArchive(address) if kind == "zip" else TableArchive(kind, address, column, self._tables)

    def close(self) -> None:
        """Close what is open and not in use."""
        with self._lock:
            self._close_idle(0)
        self._tables.close()

    @contextmanager
    def _using(self, key: tuple[str, str, str]) -> Iterator[Archive]:
        """An archive that stays open meanwhile; those that were used longest ago are closed first."""
        with self._lock:
            archive, users = self._open.get(key) or (self.open(*key[:2]), 0)
            self._open[key] = archive, users + 1
            self._open.move_to_end(key)
        try:
            yield archive
        finally:
            with self._lock:
                self._open[key] = archive, self._open[key][1] - 1
                self._close_idle(MOST_OPEN)

    def _close_idle(self, most: int) -> None:
        idle = [key for key, (_, users) in self._open.items() if not users]
        for key in idle[: max(0, len(self._open) - most)]:
            self._open.pop(key)[0].close()


def count_pages(data: bytes) -> int:
    """The pages of a file, those of a PDF found in a child process. Raises CallerError and ResourcesExhausted."""
    if not may_have_pages(data):
        return 1
    document = open_document(data, _LIMITS, _DPI, lambda: None, lambda _bytes: None)
    try:
        return document.count
    finally:
        document.close()
