"""Rows of a table that are read in batches, for callers that ask for them nearly in order; memory is bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

_WINDOW_BYTES: Final = 16 * 1024 * 1024
_MOST_CURSORS: Final = 3

Batches = Iterator[Any]
"""Arrays of pyarrow, one after another, of one column."""


class _Cursor:
    """One pass over the rows from `begin`; the batches that were read last are kept."""

    def __init__(self, batches: Batches, first: int) -> None:
        self._batches = batches
        self._kept: deque[Any] = deque()
        self._kept_bytes = 0
        self.begin = self.end = first

    def row(self, row: int) -> Any:
        """The value of a row, which is not before `begin`. Raises IndexError where the table ends before it."""
        while self.end <= row:
            batch = next(self._batches, None)
            if batch is None:
                raise IndexError(row)
            self._kept.append(batch)
            self._kept_bytes += batch.nbytes
            self.end += len(batch)
            while len(self._kept) > 1 and self._kept_bytes > _WINDOW_BYTES:
                self._kept_bytes -= self._kept[0].nbytes
                self.begin += len(self._kept.popleft())
        at = self.begin
        for batch in self._kept:
            if row < at + len(batch):
                return batch[row - at].as_py()
            at += len(batch)
        raise IndexError(row)


class RowCursors:
    """A few passes over a table's column, so that a caller who is far behind does not send the others back.

    For any thread.

    Args:
        start_of: The row from which one must read to come to a row.
        read_from: Reads from such a row on.
    """

    def __init__(self, start_of: Callable[[int], int], read_from: Callable[[int], Batches]) -> None:
        self._start_of, self._read_from = start_of, read_from
        self._cursors: list[_Cursor] = []
        self._lock = threading.Lock()

    def row(self, row: int) -> Any:
        """The value of a row. Raises IndexError for one that is not there, and what `read_from` raises."""
        with self._lock:
            cursor = self._cursor_for(row)
            try:
                value = cursor.row(row)
            except BaseException:
                self._cursors.remove(cursor)
                raise
            return value

    def _cursor_for(self, row: int) -> _Cursor:
        start = self._start_of(row)
        able = [cursor for cursor in self._cursors if cursor.begin <= row and cursor.end >= start]
        if able:
            cursor = max(able, key=lambda cursor: cursor.end)
            self._cursors.remove(cursor)
        else:
            cursor = _Cursor(self._read_from(start), start)
            if len(self._cursors) == _MOST_CURSORS:
                self._cursors.pop(0)
        self._cursors.append(cursor)
        return cursor

    def close(self) -> None:
        """Forget all passes."""
        with self._lock:
            self._cursors.clear()
