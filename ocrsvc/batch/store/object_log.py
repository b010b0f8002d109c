"""A log in an object store: every commit is an object, and small ones are merged now and then."""

from __future__ import annotations

import contextlib

from ocrsvc.batch.store.log_chunks import Chunk, MergePlan, small_runs
from ocrsvc.batch.store.object_logs import ObjectLogs


class ObjectLog:
    """A log that this process writes, for one thread.

    Args:
        logs: Where it is.
        name: Of the log.

    Raises:
        FileExistsError: There is one.
    """

    def __init__(self, logs: ObjectLogs, name: str) -> None:
        logs.begin(name)
        self._logs, self._name = logs, name
        self._pending: list[bytes] = []
        self._committed = self._end = 0
        self._plan = MergePlan()
        self._is_lost = False

    def append(self, data: bytes) -> int:
        """As AppendLog.append."""
        offset = self._end
        self._pending.append(data)
        self._end += len(data)
        return offset

    def flush(self) -> None:
        """As AppendLog.flush: nothing, as each object has its price."""

    def commit(self) -> None:
        """As AppendLog.commit: the object store has acknowledged all of it.

        After an OSError nothing more can be committed: the object may be there or appear later, and what its name says
        must stay true.
        """
        if self._is_lost:
            raise OSError(5, f"An earlier commit of {self._name} failed")
        if self._end == self._committed:
            return
        chunk = Chunk(self._committed, self._end)
        self._is_lost = True
        self._logs.put(self._name, chunk, b"".join(self._pending))
        self._is_lost = False
        self._pending, self._committed = [], self._end
        self._plan.add(chunk)
        self._merge()

    def close(self) -> None:
        """As AppendLog.close: what is small becomes one object."""
        if self._is_lost:
            return
        with contextlib.suppress(OSError):
            for run in small_runs(self._logs.chunks(self._name)):
                self._logs.merge(self._name, run)

    def _merge(self) -> None:
        # What is committed is safe without it; another commit tries again.
        with contextlib.suppress(OSError):
            while due := self._plan.due():
                self._logs.merge(self._name, due)
                self._plan.merged(due)
