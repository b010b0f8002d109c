"""A run's output: a local folder, or a path in an object store. Files appear complete or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from ocrsvc.batch.objects import Objects, open_objects, protocol_of, without_secrets
from ocrsvc.errors import BadOption

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# fsspec protocols that can create an object on condition that it does not exist yet.
DESTINATIONS: Final = ("s3", "s3a", "gs", "gcs", "az", "abfs", "memory")
# Temporary files older than this were left by processes that died, and are deleted.
_LEFT_S: Final = 3600.0


class WrittenFile(NamedTuple):
    """A finished file of the output: name, size in bytes, and SHA-256 in hexadecimal."""

    name: str
    size: int
    sha256: str


class HashedFile(io.FileIO):
    """A file that is hashed while it is written from start to end; `name` is its name in the output."""

    def __init__(self, path: Path, name: str, mode: str) -> None:
        super().__init__(path, mode)
        self._name, self._size, self._hash = name, 0, hashlib.sha256()

    def write(self, data: ReadableBuffer) -> int:
        """Write all of `data`. Raises OSError."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            at += super().write(view[at:])
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def written(self) -> WrittenFile:
        """The name, size and hash of the data written so far."""
        return WrittenFile(self._name, self._size, self._hash.hexdigest())


class Destination:
    """A local folder for output; file names are relative paths with slashes. Thread-safe. Methods raise OSError."""

    # Callers should wait at least this many seconds between two calls of `note`.
    note_s = 0.0

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, str(folder)

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Raises FileNotFoundError."""
        return (self.folder / name).open("rb")

    def read(self, name: str) -> bytes:
        """Read a whole file. Raises FileNotFoundError."""
        with self.open(name) as file:
            return file.read()

    @contextmanager
    def writing(self, name: str, *, replace: bool = True) -> Iterator[HashedFile]:
        """Yield a new file, stored if the block succeeds. Raises FileExistsError for a taken name, unless `replace`."""
        path, draft = self.folder / name, self._drafts / secrets.token_hex(8)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with HashedFile(draft, name, "x") as file:
                yield file
                os.fsync(file.fileno())
            # Unlike a rename, creating a hard link fails if the path exists.
            draft.replace(path) if replace else path.hardlink_to(draft)
        finally:
            draft.unlink(missing_ok=True)
        # Sync the folder too, so that the file's name survives a power failure.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; returns whether this call wrote it. If several callers try, one succeeds."""
        try:
            with self.writing(name, replace=False) as file:
                file.write(data)
        except FileExistsError:
            # With equal content, assume that this call wrote it: the response may be lost, or the library retried.
            return self.read(name) == data
        return True

    def note(self, name: str, data: bytes) -> None:
        """Overwrite a small file with a single write; it survives a crash of this process, but not a power failure."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with io.FileIO(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "w") as file:
            file.write(data.ljust(os.fstat(file.fileno()).st_size))

    def names(self, folder: str) -> list[str]:
        """Names of the files directly in a folder, sorted; empty if the folder does not exist."""
        with suppress(FileNotFoundError), os.scandir(self.folder / folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())
        return []

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        (self.folder / name).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and its contents if it exists."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder / folder)

    @cached_property
    def _drafts(self) -> Path:
        """The folder for temporary files; the first call deletes old files of processes that died."""
        folder = self.folder / "_ocrsvc/.tmp"
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            with suppress(FileNotFoundError):
                if file.stat().st_mtime < time.time() - _LEFT_S:
                    file.unlink()
        return folder


class ObjectDestination(Destination):
    """Writes output as objects below a URL; each file is first a local temporary file, uploaded when complete."""

    note_s = 5.0

    def __init__(self, objects: Objects, url: str) -> None:
        super().__init__(Path())
        self._objects, self.address = objects, url

    def open(self, name: str) -> BinaryIO:
        return self._objects.open(self._url(name))

    def read(self, name: str) -> bytes:
        return self._objects.read(self._url(name))

    @contextmanager
    def writing(self, name: str, *, replace: bool = True) -> Iterator[HashedFile]:
        with tempfile.NamedTemporaryFile(prefix="ocrsvc-") as draft:
            with HashedFile(Path(draft.name), name, "w") as file:
                yield file
            self._objects.put_file(self._url(name), Path(draft.name), replace=replace)

    def note(self, name: str, data: bytes) -> None:
        with self.writing(name) as file:
            file.write(data)

    def names(self, folder: str) -> list[str]:
        return [each.url.rpartition("/")[2] for each in self._objects.listing(self._url(folder)) if not each.is_folder]

    def delete(self, name: str) -> None:
        self._objects.delete(self._url(name))

    def delete_folder(self, folder: str) -> None:
        for found in self._objects.below(self._url(folder)):
            self._objects.delete(found.url)

    def _url(self, name: str) -> str:
        return f"{self.address}/{name}"


def open_destination(out: str) -> Destination:
    """The destination for --out: a folder, a file:// URL or an object store. Raises BadOption."""
    protocol, path = protocol_of(out), out.partition("://")[2].strip("/")
    if protocol in ("", "file"):
        return Destination(Path(out.removeprefix("file://")))
    if protocol not in DESTINATIONS:
        accepted = ", ".join(f"{name}://" for name in DESTINATIONS)
        raise BadOption(f"--out is {without_secrets(out)}: accepted are folders and {accepted}.")
    if not path:
        raise BadOption(f"--out is {without_secrets(out)}, which names no bucket.")
    return ObjectDestination(open_objects(out), f"{protocol}://{path}")
