"""Objects of any protocol that fsspec knows; S3 has requests of its own (s3_objects.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from ocrsvc.batch.objects.contract import StoredObject
from ocrsvc.batch.objects.retry import Retries, attempt_s

PUT_BYTES: Final = 16 * 1024 * 1024
"""What is written at once; more goes in pieces."""

_VERSION_KEYS: Final = (
    ("generation",),
    ("ETag", "etag"),
    ("md5Hash", "content_md5", "blob_id"),
    ("updated", "LastModified", "last_modified", "Last-Modified", "mtime", "created"),
)


class FsspecObjects:
    """The objects of an fsspec file system.

    Args:
        protocol: For messages.
        system: The file system, without a cache of listings.
        retries: Sends requests again.
    """

    checks_versions = False

    def __init__(self, protocol: str, system: Any, retries: Retries) -> None:
        self._protocol, self._system, self._retries = protocol, system, retries

    def get(self, path: str, begin: int = 0, end: int | None = None, version: str = "") -> bytes:  # noqa: ARG002  the contract's
        """As Objects.get; the version is not compared."""
        if end is not None and end <= begin:
            return b""
        try:
            data: bytes = self._send("GET", path, "cat_file", self._path(path), start=begin or None, end=end)
        except OSError:
            # Each library says in its own way that a read begins where the object has ended.
            if begin and self.look_at(path).size <= begin:
                return b""
            raise
        return data

    def put(self, path: str, data: bytes) -> None:
        """As Objects.put."""
        self._send("PUT", path, "pipe_file", self._path(path), data)

    def put_new(self, path: str, data: bytes) -> bool:
        """As Objects.put_new.

        A try whose answer was lost may have written the object, and libraries send some requests again by themselves:
        an object with this content counts as written here.
        """
        try:
            self._send("PUT", path, "pipe_file", self._path(path), data, mode="create")
        except FileExistsError:
            return self._protocol != "memory" and self.get(path) == data
        return True

    def put_file(self, path: str, file: Path) -> None:
        """As Objects.put_file."""
        if file.stat().st_size <= PUT_BYTES:
            self.put(path, file.read_bytes())
            return
        # Without the deadline of one request: the library sends many.
        upload = partial(self._system.put_file, str(file), self._path(path))
        self._retries.send(f"PUT {self._protocol}://{path}", upload)

    def look_at(self, path: str) -> StoredObject:
        """As Objects.look_at."""
        info = self._send("HEAD", path, "info", self._path(path))
        if info.get("type") == "directory":
            raise FileNotFoundError(2, f"{self._protocol}://{path} is no object")
        return object_of(info, path)

    def listing(self, prefix: str) -> Iterator[Sequence[StoredObject]]:
        """As Objects.listing: the listing of the last folder of the prefix is held in memory."""
        folder = prefix.rpartition("/")[0]
        try:
            found = self._send("LIST", folder, "find", self._path(folder), detail=True)
        except FileNotFoundError:
            return
        objects = [object_of(info, self._plain(name)) for name, info in found.items()]
        yield sorted((found for found in objects if found.path.startswith(prefix)), key=lambda found: found.path)

    def below(self, folder: str) -> Iterator[StoredObject]:
        """As Objects.below: a folder's objects in the order of their names, each folder's in its place among them."""
        entries = self._send("LIST", folder, "ls", self._path(folder), detail=True)
        for entry in sorted(entries, key=lambda entry: str(entry["name"])):
            path = self._plain(entry["name"])
            # Some stores list a folder as an object in itself.
            if path.rstrip("/") == folder.rstrip("/"):
                continue
            if entry.get("type") == "directory":
                yield from self.below(path.rstrip("/"))
            else:
                yield object_of(entry, path)

    def delete(self, paths: Sequence[str]) -> None:
        """As Objects.delete."""
        for path in paths:
            try:
                self._send("DELETE", path, "rm_file", self._path(path))
            except FileNotFoundError:
                continue

    def _send(self, verb: str, path: str, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._retries.send(f"{verb} {self._protocol}://{path}", partial(self._call, method, *args, **kwargs))

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """One try, with a deadline where the file system's calls are asynchronous inside."""
        if not self._system.async_impl:
            return getattr(self._system, method)(*args, **kwargs)
        from fsspec.asyn import sync

        size = max((len(given) for given in args if isinstance(given, bytes)), default=None)
        return sync(self._system.loop, getattr(self._system, f"_{method}"), *args, timeout=attempt_s(size), **kwargs)

    def _path(self, path: str) -> str:
        """As the file system names it."""
        return str(self._system._strip_protocol(f"{self._protocol}://{path}"))  # noqa: SLF001  fsspec's own convention

    def _plain(self, name: str) -> str:
        return str(name).removeprefix(f"{self._protocol}://").lstrip("/")


def object_of(info: dict[str, Any], path: str) -> StoredObject:
    """What a file system says of an object: its version is the first of these that it knows."""
    size = int(info.get("size") or 0)
    for keys in _VERSION_KEYS:
        for key in keys:
            if info.get(key):
                return StoredObject(path, size, f"{size}-{str(info[key]).strip(chr(34))}")
    return StoredObject(path, size, str(size))
