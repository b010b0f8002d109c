"""A store in a folder of a file system, local or shared."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ocrsvc.batch.store.contract import StoredFile

_TEMPORARY: Final = "_ocrsvc/.tmp/"
_LEFT_S: Final = 3600.0
"""A temporary file that nobody has written to for so long is what a process left that died."""


class LocalStore:
    """The files of a folder, which is made when the first is written."""

    commit_s = 1.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = str(folder)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """As Store.read."""
        with (self._folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if size is None else size)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """As Store.writing."""
        path, temporary = self._folder / name, self._temporary()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def create(self, name: str, data: bytes) -> bool:
        """As Store.create."""
        path, temporary = self._folder / name, self._temporary()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link fails where there is a file already.
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
        return True

    def files(self, prefix: str) -> Iterator[StoredFile]:
        """As Store.files."""
        folder = self._folder / prefix.rpartition("/")[0]
        found = []
        for root, _, names in os.walk(folder):
            for name in names:
                path = Path(root, name)
                relative = path.relative_to(self._folder).as_posix()
                if relative.startswith(prefix) and not relative.startswith(_TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(StoredFile(relative, path.stat().st_size))
        yield from sorted(found, key=lambda file: file.name)

    def delete(self, name: str) -> None:
        """As Store.delete."""
        (self._folder / name).unlink(missing_ok=True)

    def open_log(self, name: str) -> _AppendFile:
        """As Store.open_log."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        log = _AppendFile(path)
        _sync_folder(path.parent)
        return log

    def log_names(self, prefix: str) -> list[str]:
        """As Store.log_names."""
        return [file.name for file in self.files(prefix)]

    def log_size(self, name: str) -> int:
        """As Store.log_size."""
        try:
            return (self._folder / name).stat().st_size
        except FileNotFoundError:
            return 0

    def read_log(self, name: str, offset: int, size: int) -> bytes:
        """As Store.read_log."""
        return self.read(name, offset, size)

    def delete_log(self, name: str) -> None:
        """As Store.delete_log."""
        self.delete(name)

    def _temporary(self) -> Path:
        """A file that is renamed when it is whole; those that dead processes left are removed."""
        folder = self._folder / _TEMPORARY
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_mtime < time.time() - _LEFT_S:
                    file.unlink()
        return folder / secrets.token_hex(8)


class _AppendFile:
    """A log that is one file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._size = 0

    def append(self, data: bytes) -> int:
        """As AppendLog.append."""
        offset = self._size
        self._file.write(data)
        self._size += len(data)
        return offset

    def flush(self) -> None:
        """As AppendLog.flush: the system has it, which outlives the process."""
        self._file.flush()

    def commit(self) -> None:
        """As AppendLog.commit."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """As AppendLog.close."""
        # What could not be written, as on a full disk, was reported by `commit` already.
        with contextlib.suppress(OSError):
            self._file.close()


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder outlive the host."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
