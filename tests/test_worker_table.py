"""The worker table in memory shared between processes."""

from typing import Any

import pytest

from ocrsvc.telemetry.worker_table import State, WorkerEntry, WorkerTable


class _DrainingEntry:
    """An entry whose worker starts to drain after `reads` reads of its fields."""

    def __init__(self, entry: WorkerEntry, reads: int) -> None:
        self._entry, self._reads = entry, reads

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._entry, name)
        self._reads -= 1
        if not self._reads:
            self._entry.drained_s, self._entry.state = 9.0, State.DRAINING
        return value


@pytest.mark.parametrize("reads", range(1, 20))
def test_snapshot_during_the_start_of_a_drain_is_consistent(reads: int) -> None:
    worker_table = WorkerTable()
    entry = worker_table.entry(worker_table.allocate(1.0))
    entry.state = State.READY
    worker_table._entries = [_DrainingEntry(entry, reads)]  # type: ignore[assignment]
    [worker] = worker_table.live()
    assert worker.state is State.READY or worker.drained_s == 9.0
