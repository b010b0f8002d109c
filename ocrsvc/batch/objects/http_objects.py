"""Objects of web servers, which are read and not listed."""

from __future__ import annotations

import errno
import functools
from typing import Any, Final

from ocrsvc.batch.objects.contract import StoredObject
from ocrsvc.batch.objects.fsspec_objects import FsspecObjects, object_of

_MOST_KNOWN: Final = 1024


class HttpObjects(FsspecObjects):
    """As FsspecObjects; servers need not say sizes, nor give parts."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._gives_parts = functools.lru_cache(_MOST_KNOWN)(self._ask_for_parts)

    def get(self, path: str, begin: int = 0, end: int | None = None, version: str = "") -> bytes:
        """As Objects.get. Raises OSError for a part from a server that gives none."""
        if begin and not self._gives_parts(path):
            raise OSError(
                errno.ENOTSUP,
                f"GET {self._protocol}://{path}: the server gives whole files alone; download the archive",
            )
        data = super().get(path, begin, end, version)
        # A server that gives no parts sends all of it.
        return data if end is None else data[: end - begin]

    def look_at(self, path: str) -> StoredObject:
        """As Objects.look_at."""
        info = self._send("HEAD", path, "info", self._path(path))
        if info.get("size") is None:
            raise OSError(errno.ENOTSUP, f"HEAD {self._protocol}://{path}: the server does not say how large it is")
        return object_of(info, path)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """As FsspecObjects._call; fsspec says of each HEAD that failed, for whatever reason, that there is no file."""
        try:
            return super()._call(method, *args, **kwargs)
        except FileNotFoundError as error:
            if isinstance(error.__cause__, Exception) and not isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise

    def _ask_for_parts(self, path: str) -> bool:
        return bool(self._send("HEAD", path, "info", self._path(path)).get("partial"))
