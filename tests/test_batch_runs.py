"""Runs: what is read again and what is not, shards, files with the same content, and what --verify finds."""

from __future__ import annotations

import shutil
import socket
import sqlite3
from pathlib import Path

import pytest
from batch_support import (
    DoubleReader,
    execute,
    files_of,
    is_each_page_once,
    opened,
    output,
)

from ocrsvc.batch.destination import Destination
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.sources.load_files import SourceLoader
from ocrsvc.batch.start import ShardInUse
from ocrsvc.batch.verify import Verification, verify
from ocrsvc.errors import DamagedLedger, RunChanged, SourceGone

FILES = files_of(23)


def verified(folder: Path) -> Verification:
    return verify(Destination(folder))


@pytest.mark.parametrize("outputs", [("jsonl",), ("text",)])
@pytest.mark.parametrize("is_work_lost", [False, True])
def test_pages_that_failed_are_tried_again_also_of_parts_that_are_in_the_output(
    tmp_path: Path, outputs: tuple[str, ...], *, is_work_lost: bool
) -> None:
    again = DoubleReader("two")
    first = execute(tmp_path, FILES, DoubleReader("one", failing={"0002"}, refused={"0011"}), outputs=outputs)
    assert first.failed.total() == 2
    assert execute(tmp_path, FILES, again, outputs=outputs).done == 0
    if is_work_lost:
        shutil.rmtree(tmp_path / "_ocrsvc/work")
    outcome = execute(tmp_path, FILES, again, outputs=outputs, retry_failed=True)
    assert (outcome.done, outcome.all_done, outcome.all_failed) == (2, 23, 0)
    assert list(again.reads) == [("0002", 1), ("0011", 1)]
    found = verified(tmp_path)
    assert (found.problems, found.done, found.failed) == ([], 23, 0)
    assert not list((tmp_path / "_ocrsvc/kept").iterdir())
    if outputs == ("jsonl",):
        assert is_each_page_once(tmp_path, FILES)
        assert [line["source"] for line in output(tmp_path) if line["error"]] == []


def test_a_run_that_is_drained_ends_with_what_is_being_read(tmp_path: Path) -> None:
    files, reader = files_of(100), DoubleReader()
    with opened(tmp_path, files, reader) as run:
        reader.before = lambda name: run.drain() if name == "0031" else None
        assert not run.execute().is_complete
    assert 32 <= reader.reads.total() <= 31 + 2 * 2 * reader.at_once
    reader.before = lambda _name: None
    assert execute(tmp_path, files, reader).is_complete
    assert set(reader.reads.values()) == {1}
    assert is_each_page_once(tmp_path, files)


def test_shards_are_worked_on_apart_and_their_number_stays(tmp_path: Path) -> None:
    files = FILES[:20]
    assert execute(tmp_path, files, DoubleReader(), shard=0, shards=2).is_complete
    assert [int(str(line["source"])) // 5 for line in output(tmp_path)] == [0] * 5 + [2] * 5
    with pytest.raises(RunChanged, match="shards 2; now it is shards 3"):
        execute(tmp_path, files, DoubleReader(), shard=1, shards=3)
    assert execute(tmp_path, files, DoubleReader(), shard=1, shards=2).done == 10
    assert is_each_page_once(tmp_path, files)


def test_a_second_command_on_a_shard_is_refused_while_the_first_works(tmp_path: Path) -> None:
    with opened(tmp_path, FILES, DoubleReader()) as run:
        # Also with a work folder of its own.
        with pytest.raises(ShardInUse, match="on this machine") as refused:
            execute(tmp_path, FILES, DoubleReader(), work=tmp_path / "other")
        assert refused.value.exit_code == 75
        assert run.execute().is_complete
    assert is_each_page_once(tmp_path, FILES)


def test_a_command_on_another_machine_is_refused_until_it_takes_over(tmp_path: Path) -> None:
    owner = tmp_path / "_ocrsvc/owners/0-of-1"
    execute(tmp_path, FILES, DoubleReader(), limit=8)
    # Killed on this machine.
    owner.write_text(socket.gethostname())
    execute(tmp_path, FILES, DoubleReader(), limit=8)
    assert not owner.exists()
    owner.write_text("host2")
    with pytest.raises(ShardInUse, match=r"on host2.*--shard I/N.*--take-over"):
        execute(tmp_path, FILES, DoubleReader())
    assert execute(tmp_path, FILES, DoubleReader(), take_over=True).is_complete


def test_a_lost_work_folder_costs_the_parts_in_work_alone(tmp_path: Path) -> None:
    reader = DoubleReader()
    execute(tmp_path, FILES, reader, limit=8)
    shutil.rmtree(tmp_path / "_ocrsvc/work")
    assert execute(tmp_path, FILES, reader).is_complete
    assert sorted(name for (name, _), times in reader.reads.items() if times > 1) == ["0005", "0006", "0007"]
    assert is_each_page_once(tmp_path, FILES)


@pytest.mark.parametrize("damage", ["torn", "row"])
def test_results_that_are_damaged_before_their_part_was_written_are_read_again(tmp_path: Path, damage: str) -> None:
    execute(tmp_path, FILES, DoubleReader(), limit=3)
    [path] = (tmp_path / "_ocrsvc/work").glob("*.sqlite")
    if damage == "torn":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        with sqlite3.connect(path) as db:
            db.execute("UPDATE page SET record = CAST(replace(record, 'one', 'two') AS BLOB) WHERE n = 1")
        db.close()
    reader = DoubleReader()
    assert execute(tmp_path, FILES, reader).is_complete
    assert reader.reads.total() == (23 if damage == "torn" else 21)
    assert is_each_page_once(tmp_path, FILES)
    assert not verified(tmp_path).problems


def test_a_damaged_plan_and_a_run_of_another_version_are_refused(tmp_path: Path) -> None:
    execute(tmp_path, FILES, DoubleReader(), limit=3)
    [plan] = (tmp_path / "_ocrsvc").glob("plan-*")
    plan.write_bytes(plan.read_bytes()[:-100])
    with pytest.raises(DamagedLedger, match="plan"):
        execute(tmp_path, FILES, DoubleReader())
    (tmp_path / "_ocrsvc/run.json").write_text('{"format": 3}')
    with pytest.raises(DamagedLedger, match=r"another version of ocrsvc.*choose another destination"):
        execute(tmp_path, FILES, DoubleReader())


@pytest.mark.parametrize(("pages", "part_pages"), [(1, 3), (20, 3), (20, 100)])
def test_files_of_the_same_content_are_read_once_and_written_as_if_each_were_read(
    tmp_path: Path, pages: int, part_pages: int
) -> None:
    files, reader = files_of(40, pages, contents=7), DoubleReader()
    execute(tmp_path / "plain", files, DoubleReader(), part_pages=part_pages)
    outcome = execute(tmp_path / "out", files, reader, dedupe=True, part_pages=part_pages)
    assert (reader.reads.total(), outcome.copied, outcome.done) == (7 * pages, 33 * pages, 40 * pages)
    assert [file.read_bytes() for file in sorted((tmp_path / "out").glob("pages-*"))] == [
        file.read_bytes() for file in sorted((tmp_path / "plain").glob("pages-*"))
    ]


def test_what_earlier_commands_read_is_copied_too_and_what_failed_is_read_itself(tmp_path: Path) -> None:
    files, reader = files_of(40, contents=7), DoubleReader(refused={"0003"})
    execute(tmp_path, files, reader, dedupe=True, limit=9)
    outcome = execute(tmp_path, files, reader, dedupe=True)
    # Of 33 files 5 have the content of the one that failed, and 2 were copied before.
    assert (reader.reads.total(), outcome.copied, outcome.all_failed) == (12, 26, 1)
    assert [line["source"] for line in output(tmp_path) if line["error"]] == ["0003"]
    assert is_each_page_once(tmp_path, files)


def test_a_file_of_many_pages_is_loaded_once_for_all_that_read_it_and_again_when_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: list[str] = []

    def load(_loader: SourceLoader, file: SourceFile) -> bytes:
        loads.append(file.name)
        if len(loads) == 1:
            raise SourceGone("It is not there yet.")
        return file.name.encode()

    monkeypatch.setattr(SourceLoader, "load", load)
    files, loader = files_of(3, pages=2), SourceLoader(kept_bytes=20)
    with pytest.raises(SourceGone):
        loader(files[0])
    asked = (files[0], files[0], files[1], files[2], files[0])
    assert [loader(file) for file in asked] == [b"0000", b"0000", b"0001", b"0002", b"0000"]
    # Two of nine bytes each are kept.
    assert loads == ["0000", "0000", "0001", "0002", "0000"]


CHANGES = {
    "a line is missing": lambda data: data[data.index(b"\n") + 1 :],
    "a line is there twice": lambda data: data[: data.index(b"\n") + 1] + data,
    "a letter is another": lambda data: data.replace(b"one", b"two", 1),
    "nothing is there": lambda _data: b"",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_output_that_is_not_what_was_written_is_a_problem(tmp_path: Path, change: object) -> None:
    execute(tmp_path, FILES, DoubleReader())
    part = tmp_path / "pages-00002.jsonl"
    part.write_bytes(change(part.read_bytes()))  # type: ignore[operator]
    [problem] = verified(tmp_path).problems
    assert problem.startswith(f"{part.name} is not what was written")
    part.unlink()
    assert verified(tmp_path).problems == [f"{part.name} is not there."]


def test_files_of_parts_that_the_run_does_not_have_are_a_problem_and_missing_parts_are_none(tmp_path: Path) -> None:
    execute(tmp_path, FILES, DoubleReader(), limit=12)
    shutil.copy(tmp_path / "pages-00000.jsonl", tmp_path / "pages-00005.jsonl")
    (tmp_path / "pages-of-mine.jsonl").touch()
    found = verified(tmp_path)
    assert found.problems == ["pages-00005.jsonl is of no part of this run."]
    assert (found.is_complete, found.done, found.finished) == (False, 10, 2)
