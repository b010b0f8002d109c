"""Versions are swapped in a worker that has room for one of them: what reads drains first, and nothing fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from one_version_worker import PAGE, Worker, first_version_worker
from support import repeating, wait_until

from ocrsvc.pipeline.read import Reader
from ocrsvc.records import ReadOptions


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """One that reads with the first version."""
    with first_version_worker(tmp_path) as found:
        yield found


@contextmanager
def asking(reader: Reader) -> Iterator[Counter[str]]:
    """Six clients; the version of each answer, which must be that of its text."""
    seen: Counter[str] = Counter()

    def ask() -> None:
        try:
            reading = reader.read(PAGE, ReadOptions(), 20.0)
            text = reading.page.lines[-1].text
            seen["wrong" if text != f"fake/{reading.engine.version}" else text] += 1
        except Exception as error:  # noqa: BLE001  whatever fails is a failed request
            seen[repr(error)] += 1

    with repeating(ask, 6):
        yield seen


def test_the_old_version_leaves_before_the_new_one_is_loaded(worker: Worker) -> None:
    with asking(worker.reader) as seen:
        for number in (2, 3, 4):
            worker.accept(number)
            worker.look()
            wait_until(lambda: seen[f"fake/{number}"], f"an answer of fake/{number}")  # noqa: B023  called at once
    assert worker.most_open == 1
    assert set(seen) <= {"fake/1", "fake/2", "fake/3", "fake/4"}
    assert worker.open_now == ["fake/4"]
    assert worker.reader.read(PAGE, ReadOptions(), 5.0).engine.version == "4"


def test_requests_are_read_by_the_old_version_when_the_new_one_does_not_open(worker: Worker) -> None:
    worker.broken = {"fake/2"}
    with asking(worker.reader) as seen:
        worker.accept(2)
        for _ in range(2):
            worker.look()
            before = seen.total()
            wait_until(lambda: seen.total() > before + 6, "more answers")  # noqa: B023  called at once
    assert worker.most_open == 1
    assert set(seen) == {"fake/1"}
    assert worker.open_now == ["fake/1"]
