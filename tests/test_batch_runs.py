"""What a run does beside reading: tries again, copies, stops at a limit, drains, removes results, checks itself."""

from __future__ import annotations

import os
import random

import pytest
from batch_support import (
    AS_USUAL,
    DoubleReader,
    MemoryStore,
    begin,
    execute,
    files_of,
    is_each_page_once,
    opened,
    output,
)
from hypothesis import given
from hypothesis import strategies as st

from ocrsvc.batch.deduplication import COPIED
from ocrsvc.batch.file_cache import FileCache
from ocrsvc.batch.ledger.content_index import ContentIndex
from ocrsvc.batch.ledger.frames import read_frames, to_frame
from ocrsvc.batch.run_context import RunSettings
from ocrsvc.batch.tasks import SourceFile
from ocrsvc.batch.verification import verify
from ocrsvc.errors import SourceGone

FILES = files_of(23)
DEDUPE = RunSettings(dedupe=True)


def test_pages_that_failed_are_tried_again_also_of_parts_that_are_in_the_output() -> None:
    store, again = MemoryStore(), DoubleReader("two")
    assert execute(store, FILES, DoubleReader("one", failing={"0002"}, refused={"0011"})).failed.total() == 2
    assert [line["source"] for line in output(store) if line["error"]] == ["0002", "0011"]
    assert execute(store, FILES, again).done == 0
    assert execute(store, FILES, again, retry_failed=True).done == 2
    assert list(again.reads) == [("0002", 1), ("0011", 1)]
    assert [line["source"] for line in output(store) if line["error"]] == []
    assert is_each_page_once(store, FILES)
    assert not verify(store).problems


def test_results_are_kept_until_their_parts_are_in_the_output_without_failures() -> None:
    store, files = MemoryStore(), files_of(200)
    execute(store, files, DoubleReader(refused={"0003"}))
    [kept] = store.log_names("_ocrsvc/results/")
    assert kept.endswith("-00001")
    execute(store, files, DoubleReader(), retry_failed=True)
    assert store.log_names("_ocrsvc/results/") == []


def test_a_limit_shows_what_was_read_beside_the_output() -> None:
    store = MemoryStore()
    assert not execute(store, FILES, DoubleReader(), RunSettings(limit=8)).is_complete
    assert [len(output(store, folder)) for folder in ("pages-", "unfinished/")] == [5, 3]


def test_a_run_that_is_drained_ends_with_what_is_being_read() -> None:
    store, files = MemoryStore(), files_of(100)
    with opened(store, begin(store, files, 5), reader := DoubleReader()) as run:
        reader.before = lambda name: run.drain() if name == "0031" else None
        outcome = run.execute()
    assert not outcome.is_complete
    assert 32 <= reader.reads.total() <= 31 + 2 * 2 * reader.at_once
    reader.before = lambda _name: None
    assert execute(store, files, reader).is_complete
    assert set(reader.reads.values()) == {1}
    assert is_each_page_once(store, files)


def test_a_run_of_many_owners_may_have_no_pages_at_all() -> None:
    assert execute(MemoryStore(), [], DoubleReader()).is_complete


@pytest.mark.parametrize(("pages", "part_pages"), [(1, 3), (20, 3), (20, 100)])
def test_files_of_the_same_content_are_read_once_and_written_as_if_each_were_read(pages: int, part_pages: int) -> None:
    files = files_of(40, pages, contents=7)
    plain, store = MemoryStore(), MemoryStore()
    execute(plain, files, DoubleReader(), AS_USUAL, part_pages=part_pages)
    reader = DoubleReader()
    outcome = execute(store, files, reader, DEDUPE, part_pages=part_pages)
    assert (reader.reads.total(), outcome.copied, outcome.done) == (7 * pages, 33 * pages, 40 * pages)
    assert output(store) == output(plain)
    assert [store.read(file.name) for file in store.files("pages-")] == [
        plain.read(file.name) for file in plain.files("pages-")
    ]


def test_what_earlier_owners_read_is_copied_too() -> None:
    store, files, reader = MemoryStore(), files_of(40, contents=7), DoubleReader()
    execute(store, files, reader, RunSettings(dedupe=True, limit=9))
    outcome = execute(store, files, reader, DEDUPE)
    assert (reader.reads.total(), outcome.copied) == (7, 31)
    assert is_each_page_once(store, files)
    assert store.log_names("_ocrsvc/results/") == []


def test_a_file_whose_first_copy_failed_is_read_itself() -> None:
    store, files = MemoryStore(), files_of(10, contents=5)
    reader = DoubleReader(refused={"0003"})
    outcome = execute(store, files, reader, DEDUPE)
    assert (reader.reads.total(), outcome.copied, outcome.failed.total()) == (6, 4, 1)
    assert [line["source"] for line in output(store) if line["error"]] == ["0003"]
    assert is_each_page_once(store, files)


def test_the_worker_of_a_copy_says_so() -> None:
    store = MemoryStore()
    execute(store, files_of(4, contents=2), DoubleReader(), DEDUPE)
    assert any(COPIED.encode() in bytes(log.data) for log in store.logs.values())


@given(st.lists(st.binary(min_size=1, max_size=2), max_size=60), st.integers(0, 9))
def test_contents_are_found_by_their_digests(contents: list[bytes], seed: int) -> None:
    index, first = ContentIndex(), dict[bytes, int]()
    random.Random(seed).shuffle(contents)
    for page, content in enumerate(contents):
        digest = content.ljust(16, b"\0")
        assert index.add(digest, page) == first.setdefault(digest, page)
    assert len(index) == len(first)


def test_thousands_of_contents_are_found() -> None:
    index, digests = ContentIndex(), [os.urandom(16) for _ in range(5000)]
    for page, digest in enumerate(digests):
        index.add(digest, page)
    assert [index.add(digest, 0) for digest in digests] == list(range(5000))


def test_a_file_of_many_pages_is_loaded_once_for_all_that_read_it_and_again_when_it_failed() -> None:
    loads: list[str] = []

    def load(file: SourceFile) -> bytes:
        loads.append(file.name)
        if len(loads) == 1:
            raise SourceGone("It is not there yet.")
        return file.name.encode()

    files, cache = files_of(3, pages=2), FileCache(load, kept_bytes=20)
    with pytest.raises(SourceGone):
        cache.load(files[0])
    assert [cache.load(file) for file in (files[0], files[0], files[1], files[2], files[0])] == [
        b"0000",
        b"0000",
        b"0001",
        b"0002",
        b"0000",
    ]
    # Two of nine bytes each are kept.
    assert loads == ["0000", "0000", "0001", "0002", "0000"]


CHANGES = {
    "a line is missing": lambda data: data[data.index(b"\n") + 1 :],
    "a line is there twice": lambda data: data[: data.index(b"\n") + 1] + data,
    "a letter is another": lambda data: data.replace(b"one", b"two", 1),
    "nothing is there": lambda _data: b"",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_output_that_is_not_what_the_ledger_says_is_a_problem(change: object) -> None:
    store = MemoryStore()
    execute(store, FILES, DoubleReader())
    name = "pages-00002.jsonl"
    store.contents[name] = change(store.contents[name])  # type: ignore[operator]
    [problem] = verify(store).problems
    assert problem.startswith(f"{name} is not what was written")
    del store.contents[name]
    assert verify(store).problems == [f"{name} is not there."]


def test_files_of_parts_that_the_run_does_not_have_are_a_problem() -> None:
    store = MemoryStore()
    execute(store, FILES, DoubleReader())
    parts = len(list(store.files("pages-")))
    store.contents[f"pages-{parts:05d}.jsonl"] = store.contents["pages-00000.jsonl"]
    store.contents["pages-of-mine.jsonl"] = b""
    assert verify(store).problems == [f"pages-{parts:05d}.jsonl is of no part of this run."]


def test_a_run_that_has_more_to_read_is_no_problem() -> None:
    store = MemoryStore()
    execute(store, FILES, DoubleReader(), RunSettings(limit=12))
    found = verify(store)
    assert (found.problems, found.is_complete, found.done, found.finished) == ([], False, 12, 2)


@given(st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=30)), max_size=5), st.integers(0, 200), st.binary())
def test_whole_frames_are_read_and_what_is_torn_or_foreign_behind_them_is_not(
    frames: list[tuple[int, bytes]], cut: int, tail: bytes
) -> None:
    data = b"".join(to_frame(kind, payload) for kind, payload in frames)
    found = [(kind, payload) for kind, payload, _ in read_frames(data[:cut] + bytes(20))]
    assert found == frames[: len(found)]
    assert [(kind, payload) for kind, payload, _ in read_frames(data + bytes(20))] == frames
    assert len(list(read_frames(data + tail[:8]))) == len(frames)


def test_zeros_are_no_frame() -> None:
    assert list(read_frames(bytes(100))) == []
