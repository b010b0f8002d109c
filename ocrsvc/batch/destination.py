"""Where a run's output goes: a folder, or a path in an object store. Files appear whole or not at all."""

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
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from ocrsvc.batch.objects import Objects, open_objects, protocol_of, without_secrets
from ocrsvc.errors import BadOption

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DESTINATIONS: Final = ("s3", "s3a", "gs", "gcs", "az", "abfs", "memory")
"""The protocols that can write an object only if there is none."""
_DRAFTS: Final = "_ocrsvc/.tmp"
_LEFT_S: Final = 3600.0
"""A draft that was not written to for so long belongs to a process that died."""


class WrittenFile(NamedTuple):
    """A file of the output: its name, bytes and SHA-256 in hexadecimal."""

    name: str
    size: int
    sha256: str


class HashedFile(io.RawIOBase):
    """A file that is written from its beginning to its end, and hashed meanwhile."""

    def __init__(self, name: str, output: BinaryIO) -> None:
        super().__init__()
        self._name, self._output = name, output
        self._size, self._hash = 0, hashlib.sha256()

    def writable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size

    def write(self, data: ReadableBuffer) -> int:
        """All of it. Raises OSError."""
        view = memoryview(data).cast("B")
        self._output.write(view)
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def written(self) -> WrittenFile:
        """What was written so far."""
        return WrittenFile(self._name, self._size, self._hash.hexdigest())


class FolderDestination:
    """The files of a folder by their names, with slashes; for any thread. Methods raise OSError.

    The folder is made when the first is written. `note_s` is how often a note may be written.
    """

    note_s = 0.0

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, str(folder)
        self._is_tidied = False

    def read(self, name: str) -> bytes:
        """A file's bytes. Raises FileNotFoundError."""
        return (self.folder / name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        """A file to be read. Raises FileNotFoundError."""
        return (self.folder / name).open("rb")

    @contextmanager
    def writing(self, name: str, *, replace: bool = True) -> Iterator[HashedFile]:
        """A file that appears, durably, when the block ends without an error.

        Without `replace` an object store raises FileExistsError where there is one.
        """
        del replace
        path, draft = self.folder / name, self._draft()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("xb") as file:
                yield HashedFile(name, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless there is one; returns whether it was written. Of several callers one writes it."""
        path, draft = self.folder / name, self._draft()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link fails where there is a file already.
            path.hardlink_to(draft)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(path.parent)
        return True

    def note(self, name: str, data: bytes) -> None:
        """Write a small file in a hurry, over what was there, by one call.

        It outlives this process, and in a folder not the machine. In an object store it is a request.
        """
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.pwrite(descriptor, data.ljust(os.fstat(descriptor).st_size), 0)
        finally:
            os.close(descriptor)

    def names(self, folder: str) -> list[str]:
        """The files directly in a folder, sorted."""
        with suppress(FileNotFoundError), os.scandir(self.folder / folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())
        return []

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder / folder)

    def local_copy(self, name: str, folder: Path) -> Path:
        """The path of a file on this machine; copied into `folder` where it is elsewhere."""
        del folder
        return self.folder / name

    def _draft(self) -> Path:
        """A file of its own that is renamed when it is whole."""
        folder = self.folder / _DRAFTS
        folder.mkdir(parents=True, exist_ok=True)
        if not self._is_tidied:
            self._is_tidied = True
            for file in folder.iterdir():
                with suppress(FileNotFoundError):
                    if file.stat().st_mtime < time.time() - _LEFT_S:
                        file.unlink()
        return folder / secrets.token_hex(8)


class ObjectDestination:
    """The objects below a URL; see FolderDestination."""

    note_s = 5.0

    def __init__(self, objects: Objects, url: str) -> None:
        self._objects, self._url = objects, url
        self.address = url

    def read(self, name: str) -> bytes:
        """As FolderDestination.read."""
        return self._objects.read(self._path(name))

    def open(self, name: str) -> BinaryIO:
        """As FolderDestination.open."""
        return self._objects.open(self._path(name))

    @contextmanager
    def writing(self, name: str, *, replace: bool = True) -> Iterator[HashedFile]:
        """As FolderDestination.writing: a temporary file of this machine, sent when it is whole."""
        with tempfile.NamedTemporaryFile(prefix="ocrsvc-") as file:
            yield HashedFile(name, file)  # type: ignore[arg-type]
            file.flush()
            self._objects.put_file(self._path(name), Path(file.name), replace=replace)

    def create(self, name: str, data: bytes) -> bool:
        """As FolderDestination.create, by a conditional write."""
        try:
            self._objects.put(self._path(name), data, replace=False)
        except FileExistsError:
            # A try whose answer was lost may have written it, and libraries send some requests again by themselves.
            return self.read(name) == data
        return True

    def note(self, name: str, data: bytes) -> None:
        """As FolderDestination.note: one request."""
        self._objects.put(self._path(name), data)

    def names(self, folder: str) -> list[str]:
        """As FolderDestination.names: one request for each 1,000 on S3."""
        found = self._objects.listing(self._path(folder))
        return sorted(entry.url.rpartition("/")[2] for entry in found if not entry.is_folder)

    def delete(self, name: str) -> None:
        """As FolderDestination.delete."""
        self._objects.delete(self._path(name))

    def delete_folder(self, folder: str) -> None:
        """As FolderDestination.delete_folder."""
        for found in self._objects.below(self._path(folder)):
            self._objects.delete(found.url)

    def local_copy(self, name: str, folder: Path) -> Path:
        """As FolderDestination.local_copy."""
        path = folder / name.rpartition("/")[2]
        if not path.exists():
            draft = path.with_suffix(".draft")
            with self.open(name) as source, draft.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            draft.replace(path)
        return path

    def _path(self, name: str) -> str:
        return f"{self._url}/{name}"


Destination = FolderDestination | ObjectDestination


def open_destination(out: str) -> Destination:
    """The destination that --out names: a folder, file:// or an object store. Raises BadOption."""
    protocol = protocol_of(out)
    if protocol in ("", "file"):
        return FolderDestination(Path(out.removeprefix("file://")))
    shown = without_secrets(out)
    if protocol not in DESTINATIONS:
        accepted = ", ".join(f"{name}://" for name in DESTINATIONS)
        raise BadOption(f"--out is {shown}: accepted are folders and {accepted}.")
    objects, path = open_objects(out), out.partition("://")[2].strip("/")
    if not path:
        raise BadOption(f"--out is {shown}, which names no bucket.")
    return ObjectDestination(objects, f"{protocol}://{path}")


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder outlive the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
