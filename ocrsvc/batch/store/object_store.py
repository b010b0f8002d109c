"""A store in an object store: S3, Google Cloud Storage, Azure, or memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from ocrsvc.batch.objects.contract import Objects
from ocrsvc.batch.objects.opening import open_objects, path_of
from ocrsvc.batch.objects.url import protocol_of, without_secrets
from ocrsvc.batch.store.contract import StoredFile
from ocrsvc.batch.store.object_log import ObjectLog
from ocrsvc.batch.store.object_logs import ObjectLogs
from ocrsvc.errors import BadOption

DESTINATIONS: Final = ("s3", "s3a", "gs", "gcs", "az", "abfs", "memory")
"""The protocols that write an object only if there is none."""

_READ_BYTES: Final = 16 * 1024 * 1024


class ObjectStore:
    """The objects below a path.

    Args:
        objects: The object store.
        root: Bucket and path in it.
        address: For people.
    """

    commit_s = 8.0

    def __init__(self, objects: Objects, root: str, address: str) -> None:
        self._objects, self._root = objects, root
        self._logs = ObjectLogs(objects, root)
        self.address = address

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """As Store.read."""
        path = self._path(name)
        if size is not None:
            return self._objects.get(path, offset, offset + size)
        pieces = [self._objects.get(path, offset, offset + _READ_BYTES)]
        while len(pieces[-1]) == _READ_BYTES:
            offset += _READ_BYTES
            pieces.append(self._objects.get(path, offset, offset + _READ_BYTES))
        return b"".join(pieces)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """As Store.writing: a temporary file of this machine, which is sent when it is whole."""
        with tempfile.NamedTemporaryFile(prefix="ocrsvc-") as file:
            yield cast("BinaryIO", file)
            file.flush()
            self._objects.put_file(self._path(name), Path(file.name))

    def create(self, name: str, data: bytes) -> bool:
        """As Store.create."""
        return self._objects.put_new(self._path(name), data)

    def files(self, prefix: str) -> Iterator[StoredFile]:
        """As Store.files."""
        for some in self._objects.listing(self._path(prefix)):
            for found in some:
                yield StoredFile(found.path.removeprefix(f"{self._root}/"), found.size)

    def delete(self, name: str) -> None:
        """As Store.delete."""
        self._objects.delete([self._path(name)])

    def open_log(self, name: str) -> ObjectLog:
        """As Store.open_log."""
        return ObjectLog(self._logs, name)

    def log_names(self, prefix: str) -> list[str]:
        """As Store.log_names."""
        return self._logs.names(prefix)

    def log_size(self, name: str) -> int:
        """As Store.log_size."""
        return self._logs.size(name)

    def read_log(self, name: str, offset: int, size: int) -> bytes:
        """As Store.read_log."""
        return self._logs.read(name, offset, size)

    def delete_log(self, name: str) -> None:
        """As Store.delete_log."""
        self._logs.delete(name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def open_object_store(url: str) -> ObjectStore:
    """The store at a URL. Raises BadOption if nothing can be written there."""
    shown, protocol = without_secrets(url), protocol_of(url)
    if protocol not in DESTINATIONS:
        accepted = ", ".join(f"{name}://" for name in DESTINATIONS)
        raise BadOption(f"--out is {shown}: accepted are folders and {accepted}.")
    objects, root = open_objects(url), path_of(url).strip("/")
    if not root:
        raise BadOption(f"--out is {shown}, which names no bucket.")
    return ObjectStore(objects, root, f"{protocol}://{root}")
