"""A run that dies, or whose disk is full, at any moment: the next command continues, and each page is there once."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from batch_support import Died, DoubleReader, FaultyFolder, execute, files_of, is_each_page_once, output
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrsvc.batch.destination import Destination
from ocrsvc.batch.verify import verify
from ocrsvc.errors import EngineUnavailable

FILES = files_of(23)
PAGES = files_of(4, pages=9)


@settings(max_examples=60, deadline=None)
@given(
    faults=st.lists(
        st.tuples(st.integers(0, 70), st.sampled_from(["die", "full"]), st.booleans()), min_size=1, max_size=4
    ),
    has_many_pages=st.booleans(),
    outputs=st.sampled_from([("jsonl",), ("jsonl", "text")]),
    refused=st.sampled_from([set(), {"0002"}]),
)
def test_each_page_is_in_the_output_once_whatever_change_was_the_last(
    faults: list[tuple[int, Literal["die", "full"], bool]],
    has_many_pages: bool,
    outputs: tuple[str, ...],
    refused: set[str],
) -> None:
    files = PAGES if has_many_pages else FILES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, (at, fault, retry) in enumerate(faults):
            reader = DoubleReader(str(number), refused=refused)
            with suppress(Died, OSError):
                execute(FaultyFolder(folder, at, fault), files, reader, outputs=outputs, retry_failed=retry)
        assert execute(folder, files, DoubleReader("last"), outputs=outputs, retry_failed=True).is_complete
        assert is_each_page_once(folder / "jsonl" if len(outputs) > 1 else folder, files)
        found = verify(Destination(folder))
        assert (found.problems, found.is_complete, found.done) == ([], True, sum(len(file.pages) for file in files))


def test_a_page_that_kills_the_process_again_and_again_fails_and_the_others_are_read(tmp_path: Path) -> None:
    killer = threading.Event()
    deaths = 0
    while True:
        killer.clear()
        destination = FaultyFolder(tmp_path)

        def die(name: str, destination: FaultyFolder = destination) -> None:
            if name == "0007" or killer.is_set():
                killer.set()
                destination._fault_at = 0
                raise Died

        try:
            outcome = execute(destination, FILES, DoubleReader(before=die))
            break
        except Died:
            deaths += 1
            assert deaths < 10
    # Among others, among fewer, then alone as often as a page is tried.
    assert deaths <= 5
    assert outcome.is_complete
    failed = [(line["source"], line["error"]["code"]) for line in output(tmp_path) if line["error"]]  # type: ignore[index]
    assert failed == [("0007", "image_crashes_engine")]
    assert is_each_page_once(tmp_path, FILES)


def test_a_page_that_failed_as_it_killed_processes_is_tried_again_when_that_is_asked(tmp_path: Path) -> None:
    files = files_of(1)

    def killed(*, retry_failed: bool = False) -> None:
        destination = FaultyFolder(tmp_path)

        def die(_name: str) -> None:
            destination._fault_at = 0
            raise Died

        with contextlib.suppress(Died):
            execute(destination, files, DoubleReader(before=die), retry_failed=retry_failed)

    for _ in range(5):
        killed()
    assert [line["error"] is None for line in output(tmp_path)] == [False]
    # It kills once more: that counts from its failure on.
    killed(retry_failed=True)
    assert execute(tmp_path, files, DoubleReader(), retry_failed=True).is_complete
    assert [line["error"] for line in output(tmp_path)] == [None]
    assert not verify(Destination(tmp_path)).problems


def test_a_process_that_ends_in_order_suspects_no_page(tmp_path: Path) -> None:
    for _ in range(4):
        execute(tmp_path, FILES, DoubleReader(), attempts=1, limit=2)
        assert not list((tmp_path / "_ocrsvc/begun").iterdir())
    assert not execute(tmp_path, FILES, DoubleReader(), attempts=1).failed


def test_no_page_is_suspected_of_killing_this_process_where_others_read(tmp_path: Path) -> None:
    reader = DoubleReader()
    reader.is_elsewhere = True
    destination = FaultyFolder(tmp_path)
    noted: list[str] = []
    destination.note = lambda name, data: noted.append(name)  # type: ignore[method-assign]  # noqa: ARG005  the contract's
    assert execute(destination, FILES, reader).is_complete
    assert noted == []


def test_pages_of_a_process_that_was_killed_from_outside_are_read_without_a_failure(tmp_path: Path) -> None:
    for number in range(12):
        with suppress(Died):
            execute(FaultyFolder(tmp_path, 12 + number), PAGES, DoubleReader(str(number)), attempts=1)
    assert not execute(tmp_path, PAGES, DoubleReader("last")).failed


def test_a_reader_that_is_broken_ends_the_run_and_fails_no_page(tmp_path: Path) -> None:
    files = files_of(150)
    with pytest.raises(EngineUnavailable, match="100 tries in a row"):
        execute(tmp_path, files, DoubleReader(failing={file.name for file in files}), part_pages=200)
    assert execute(tmp_path, files, DoubleReader(), part_pages=200).failed == {}
    assert is_each_page_once(tmp_path, files)


def test_a_broken_reader_fails_pages_where_the_run_is_to_keep_going(tmp_path: Path) -> None:
    files = files_of(50)
    reader = DoubleReader(failing={file.name for file in files})
    assert execute(tmp_path, files, reader, keeps_going=True).failed == {"engine_failed": 50}
    assert is_each_page_once(tmp_path, files)


def test_a_page_that_the_engine_fails_on_is_tried_as_often_as_asked(tmp_path: Path) -> None:
    reader = DoubleReader(failing={"0003"}, refused={"0004"})
    outcome = execute(tmp_path, FILES, reader, attempts=4)
    assert (reader.reads["0003", 1], reader.reads["0004", 1]) == (4, 1)
    assert outcome.failed == {"engine_failed": 1, "unsupported_image": 1}
    assert is_each_page_once(tmp_path, FILES)
