"""A run that dies, or whose disk is full, at any moment: the next command goes on, and each page is there once."""

from __future__ import annotations

import contextlib
import threading
from contextlib import suppress
from typing import Literal

import pytest
from batch_support import Died, DoubleReader, MemoryStore, execute, files_of, is_each_page_once, output
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrsvc.batch.run_context import RunSettings
from ocrsvc.batch.verification import verify
from ocrsvc.errors import EngineUnavailable

FILES = files_of(23)
PAGES = files_of(4, pages=9)


@settings(max_examples=60, deadline=None)
@given(
    faults=st.lists(
        st.tuples(st.integers(0, 120), st.sampled_from(["die", "full"]), st.floats(0, 1), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    has_many_pages=st.booleans(),
)
def test_each_page_is_in_the_output_once_whatever_change_of_the_store_was_the_last(
    faults: list[tuple[int, Literal["die", "full"], float, bool]], has_many_pages: bool
) -> None:
    files, store = PAGES if has_many_pages else FILES, MemoryStore()
    for number, (at, fault, share, of_host) in enumerate(faults):
        store = store.after(share, of_host=of_host)
        store._fault_at, store._fault = at, fault
        try:
            execute(store, files, DoubleReader(str(number)))
        except (Died, OSError):
            continue
    store = store.after()
    assert execute(store, files, DoubleReader("last")).is_complete
    assert is_each_page_once(store, files)
    found = verify(store)
    assert (found.problems, found.is_complete, found.done) == ([], True, sum(len(file.pages) for file in files))


@settings(max_examples=40, deadline=None)
@given(
    limit=st.integers(1, 22),
    damages=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=4, max_size=4),
)
def test_each_page_is_in_the_output_once_when_bytes_of_the_logs_are_cut_off_or_changed(
    limit: int, damages: list[tuple[float, int]]
) -> None:
    store = MemoryStore()
    execute(store, FILES, DoubleReader(), RunSettings(limit=limit))
    store = store.after()
    for log, (share, change) in zip(store.logs.values(), damages, strict=False):
        at = int(share * len(log.data))
        if change:
            log.data[at] ^= change
        else:
            del log.data[at:]
        log.flushed = log.committed = len(log.data)
    assert execute(store, FILES, DoubleReader("last")).is_complete
    assert is_each_page_once(store, FILES)
    assert not verify(store).problems


def test_a_page_that_kills_the_process_again_and_again_fails_and_the_others_are_read() -> None:
    killer = threading.Event()

    def die(name: str) -> None:
        if name == "0007" or killer.is_set():
            killer.set()
            raise Died

    store, deaths = MemoryStore(), 0
    while True:
        killer.clear()
        try:
            outcome = execute(store, FILES, DoubleReader(before=die))
            break
        except Died:
            store, deaths = store.after(), deaths + 1
            assert deaths < 10
    # Among others, among fewer, then alone as often as a page is tried.
    assert deaths <= 5
    assert outcome.is_complete
    failed = [(line["source"], line["error"]["code"]) for line in output(store) if line["error"]]  # type: ignore[index]
    assert failed == [("0007", "image_crashes_engine")]
    assert is_each_page_once(store, FILES)


def test_a_page_that_failed_as_it_killed_processes_is_tried_again_when_that_is_asked() -> None:
    store, files = MemoryStore(), files_of(1)

    def die(_name: str) -> None:
        raise Died

    for _ in range(5):
        with contextlib.suppress(Died):
            execute(store, files, DoubleReader(before=die))
        store = store.after()
    assert [line["error"] is None for line in output(store)] == [False]
    # It kills once more: that counts from its failure on.
    with contextlib.suppress(Died):
        execute(store, files, DoubleReader(before=die), retry_failed=True)
    store = store.after()
    assert execute(store, files, DoubleReader(), retry_failed=True).is_complete
    assert [line["error"] for line in output(store)] == [None]
    assert not verify(store).problems


def test_a_reader_that_is_broken_ends_the_run_and_fails_no_page() -> None:
    store, files = MemoryStore(), files_of(150)
    names = {file.name for file in files}
    with pytest.raises(EngineUnavailable, match="100 tries in a row"):
        execute(store, files, DoubleReader(failing=names), part_pages=200)
    assert execute(store, files, DoubleReader(), part_pages=200).failed == {}
    assert is_each_page_once(store, files)


def test_a_broken_reader_fails_pages_where_the_run_is_to_keep_going() -> None:
    store, files = MemoryStore(), files_of(50)
    reader = DoubleReader(failing={file.name for file in files})
    assert execute(store, files, reader, RunSettings(keeps_going=True)).failed == {"engine_failed": 50}
    assert is_each_page_once(store, files)


def test_pages_of_a_process_that_was_killed_from_outside_are_read_without_a_failure() -> None:
    store = MemoryStore()
    for number in range(12):
        store = store.after()
        store._fault_at = 25 + number
        with suppress(Died):
            execute(store, PAGES, DoubleReader(str(number)), RunSettings(attempts=1))
    outcome = execute(store.after(), PAGES, DoubleReader("last"))
    assert not outcome.failed


def test_a_page_that_the_engine_fails_on_is_tried_as_often_as_asked() -> None:
    store, reader = MemoryStore(), DoubleReader(failing={"0003"}, refused={"0004"})
    outcome = execute(store, FILES, reader, RunSettings(attempts=4))
    assert (reader.reads["0003", 1], reader.reads["0004", 1]) == (4, 1)
    assert outcome.failed == {"engine_failed": 1, "unsupported_image": 1}
    assert is_each_page_once(store, FILES)


def test_results_that_are_gone_before_their_part_was_written_are_read_again() -> None:
    store = MemoryStore()
    execute(store, FILES, DoubleReader(), RunSettings(limit=3))
    store = store.after()
    for name in store.log_names("_ocrsvc/results/"):
        store.delete_log(name)
    reader = DoubleReader()
    assert execute(store, FILES, reader).is_complete
    assert sum(reader.reads.values()) == len(FILES)
    assert is_each_page_once(store, FILES)
