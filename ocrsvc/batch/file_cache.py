"""Loads files of sources once for several groups of their pages."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from ocrsvc.batch.tasks import SourceFile

KEPT_BYTES: Final = 64 * 1024 * 1024
"""What is kept of files, besides the one that was loaded last."""


class FileCache:
    """Keeps the files that were loaded last; for any thread. In another process it begins empty.

    Args:
        load: Gives the bytes of a file; raises OcrsvcError.
        keeps_all: Keep files of one page too, which nobody but the deduplication loads twice.
        kept_bytes: What is kept, besides the file that was loaded last.
    """

    def __init__(
        self, load: Callable[[SourceFile], bytes], *, keeps_all: bool = False, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._load, self._keeps_all, self._kept_bytes = load, keeps_all, kept_bytes
        self._lock = threading.Lock()
        self._files: OrderedDict[str, tuple[Future[bytes], int]] = OrderedDict()

    def __reduce__(self) -> tuple[object, ...]:
        return _open_cache, (self._load, self._keeps_all, self._kept_bytes)

    def load(self, file: SourceFile) -> bytes:
        """The bytes of a file; who asks while another thread loads it waits for that. Raises OcrsvcError."""
        if file.total == 1 and not self._keeps_all:
            return self._load(file)
        with self._lock:
            found = self._files.get(file.locator)
            if found is None:
                future: Future[bytes] = Future()
                self._files[file.locator] = future, file.size
                self._drop_oldest()
            else:
                self._files.move_to_end(file.locator)
                future = found[0]
        if found is None:
            self._fill(file, future)
        return future.result()

    def _fill(self, file: SourceFile, future: Future[bytes]) -> None:
        try:
            future.set_result(self._load(file))
        except BaseException as error:  # noqa: BLE001  whoever waits for it raises it
            with self._lock:
                self._files.pop(file.locator, None)
            future.set_exception(error)

    def _drop_oldest(self) -> None:
        """Let go of the files that were used longest ago; whoever reads one still has it."""
        while len(self._files) > 1 and sum(size for _, size in self._files.values()) > self._kept_bytes:
            self._files.popitem(last=False)


def _open_cache(load: Callable[[SourceFile], bytes], keeps_all: bool, kept_bytes: int) -> FileCache:  # noqa: FBT001
    return FileCache(load, keeps_all=keeps_all, kept_bytes=kept_bytes)
