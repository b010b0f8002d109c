"""Batch runs: resuming, retries, shards, duplicate files, and --verify."""

import os
import shutil
import socket
import sqlite3
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from batch_support import Died, DoubleReader, FaultyFolder, execute, files_of, is_each_page_once, opened, output
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrsvc.batch.destination import Destination
from ocrsvc.batch.progress import RunCounts
from ocrsvc.batch.start import ShardInUse
from ocrsvc.batch.verify import Verification, verify
from ocrsvc.batch.work_file import is_local_disk
from ocrsvc.errors import DamagedRun, EngineUnavailable, RunChanged

FILES = files_of(23)


def verified(folder: Path) -> Verification:
    return verify(Destination(folder))


@pytest.mark.parametrize(("kind", "is_local"), [("ext4", True), ("nfs4", False), ("fuse.sshfs", False)])
def test_only_a_local_disk_gets_a_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_local: bool
) -> None:
    device = tmp_path.stat().st_dev
    mount = f"1 0 {os.major(device)}:{os.minor(device)} / / rw - {kind} source rw"
    monkeypatch.setattr(Path, "read_text", lambda *_: mount)
    assert is_local_disk(tmp_path) is is_local


@pytest.mark.parametrize("outputs", [("jsonl",), ("text",)])
@pytest.mark.parametrize("is_work_lost", [False, True])
def test_failed_pages_are_retried_also_in_finished_parts(
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


def test_shards_are_independent_and_their_number_is_fixed(tmp_path: Path) -> None:
    files = FILES[:20]
    assert execute(tmp_path, files, DoubleReader(), shard=0, shards=2).is_complete
    assert [int(str(line["source"])) // 5 for line in output(tmp_path)] == [0] * 5 + [2] * 5
    with pytest.raises(RunChanged, match="shards 2; now it is shards 3"):
        execute(tmp_path, files, DoubleReader(), shard=1, shards=3)
    assert execute(tmp_path, files, DoubleReader(), shard=1, shards=2).done == 10
    assert is_each_page_once(tmp_path, files)


def test_a_second_command_on_a_shard_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with opened(tmp_path, FILES, DoubleReader()) as run:
        # A different work folder makes no difference.
        with pytest.raises(ShardInUse, match="on this machine") as refused:
            execute(tmp_path, FILES, DoubleReader(), work=tmp_path / "other")
        assert refused.value.exit_code == 75
        assert run.execute().is_complete
    assert is_each_page_once(tmp_path, FILES)


def test_a_command_on_another_machine_is_refused_until_it_takes_over(tmp_path: Path) -> None:
    owner = tmp_path / "_ocrsvc/owners/0-of-1"
    execute(tmp_path, FILES, DoubleReader(), limit=8)
    # As if a command on this machine was killed.
    owner.write_text(socket.gethostname())
    execute(tmp_path, FILES, DoubleReader(), limit=8)
    assert not owner.exists()
    owner.write_text("host2")
    with pytest.raises(ShardInUse, match=r"on host2.*--shard I/N.*--take-over"):
        execute(tmp_path, FILES, DoubleReader())
    assert execute(tmp_path, FILES, DoubleReader(), take_over=True).is_complete


@pytest.mark.parametrize("damage", ["lost", "torn", "row"])
def test_damaged_results_of_unfinished_parts_are_read_again(tmp_path: Path, damage: str) -> None:
    execute(tmp_path, FILES, DoubleReader(), limit=8)
    [path] = (tmp_path / "_ocrsvc/work").glob("*.sqlite")
    if damage == "lost":
        shutil.rmtree(path.parent)
    elif damage == "torn":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        with sqlite3.connect(path) as db:
            db.execute("UPDATE page SET record = CAST(replace(record, 'one', 'two') AS BLOB) WHERE n = 6")
        db.close()
    reader = DoubleReader()
    assert execute(tmp_path, FILES, reader).is_complete
    assert reader.reads.total() == (16 if damage == "row" else 18)
    assert is_each_page_once(tmp_path, FILES)
    assert not verified(tmp_path).problems


def test_a_damaged_plan_and_a_run_of_another_version_are_refused(tmp_path: Path) -> None:
    execute(tmp_path, FILES, DoubleReader(), limit=3)
    [plan] = (tmp_path / "_ocrsvc").glob("plan-*")
    plan.write_bytes(plan.read_bytes()[:-100])
    with pytest.raises(DamagedRun, match="plan"):
        execute(tmp_path, FILES, DoubleReader())
    (tmp_path / "_ocrsvc/run.json").write_text('{"format": 3}')
    with pytest.raises(DamagedRun, match=r"another version of ocrsvc.*choose another destination"):
        execute(tmp_path, FILES, DoubleReader())


@pytest.mark.parametrize(("pages", "part_pages"), [(1, 3), (20, 3), (20, 100)])
def test_duplicate_files_are_read_once_and_give_the_same_output(tmp_path: Path, pages: int, part_pages: int) -> None:
    files, reader = files_of(40, pages, contents=7), DoubleReader()
    execute(tmp_path / "plain", files, DoubleReader(), part_pages=part_pages)
    outcome = execute(tmp_path / "out", files, reader, dedupe=True, part_pages=part_pages)
    assert (reader.reads.total(), outcome.copied, outcome.done) == (7 * pages, 33 * pages, 40 * pages)
    assert [file.read_bytes() for file in sorted((tmp_path / "out").glob("pages-*"))] == [
        file.read_bytes() for file in sorted((tmp_path / "plain").glob("pages-*"))
    ]


def test_duplicates_are_copied_across_commands_but_failures_are_not(tmp_path: Path) -> None:
    files, reader = files_of(40, contents=7), DoubleReader(refused={"0003"})
    execute(tmp_path, files, reader, dedupe=True, limit=9)
    outcome = execute(tmp_path, files, reader, dedupe=True)
    # 33 files are duplicates: 5 of the failed file, and 2 copied by the first command.
    assert (reader.reads.total(), outcome.copied, outcome.all_failed) == (12, 26, 1)
    assert [line["source"] for line in output(tmp_path) if line["error"]] == ["0003"]
    assert is_each_page_once(tmp_path, files)


def test_verify_reports_changed_and_missing_output(tmp_path: Path) -> None:
    execute(tmp_path, FILES, DoubleReader())
    part = tmp_path / "pages-00002.jsonl"
    data = part.read_bytes()
    for changed in (data[data.index(b"\n") + 1 :], data.replace(b"one", b"two", 1), b""):
        part.write_bytes(changed)
        [problem] = verified(tmp_path).problems
        assert problem.startswith(f"{part.name} is not what was written")
    part.unlink()
    assert verified(tmp_path).problems == [f"{part.name} is not there."]


def test_verify_reports_files_of_unknown_parts_but_not_missing_parts(tmp_path: Path) -> None:
    execute(tmp_path, FILES, DoubleReader(), limit=12)
    shutil.copy(tmp_path / "pages-00000.jsonl", tmp_path / "pages-00005.jsonl")
    (tmp_path / "pages-of-mine.jsonl").touch()
    found = verified(tmp_path)
    assert found.problems == ["pages-00005.jsonl is of no part of this run."]
    assert (found.is_complete, found.done, found.finished) == (False, 10, 2)


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
def test_each_page_is_written_once_after_crashes_or_a_full_disk_at_any_write(
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


def test_a_page_that_repeatedly_kills_the_process_fails_alone(tmp_path: Path) -> None:
    def command(*, retry_failed: bool = False) -> RunCounts:
        destination, killer = FaultyFolder(tmp_path), threading.Event()

        def die(name: str) -> None:
            if name == "0007" or killer.is_set():
                killer.set()
                destination._fault_at = 0
                raise Died

        return execute(destination, FILES, DoubleReader(before=die), retry_failed=retry_failed)

    # Suspected pages are retried in ever smaller groups, then alone up to the usual number of attempts.
    for _ in range(6):
        with suppress(Died):
            assert command().is_complete
            break
    failed = [(line["source"], line["error"]["code"]) for line in output(tmp_path) if line["error"]]
    assert failed == [("0007", "image_crashes_engine")]
    assert is_each_page_once(tmp_path, FILES)
    # A retry may kill the process again.
    with suppress(Died):
        command(retry_failed=True)
    assert execute(tmp_path, FILES, DoubleReader(), retry_failed=True).all_failed == 0
    assert not verified(tmp_path).problems


def test_a_clean_exit_suspects_no_page(tmp_path: Path) -> None:
    for _ in range(4):
        execute(tmp_path, FILES, DoubleReader(), attempts=1, limit=2)
    assert not execute(tmp_path, FILES, DoubleReader(), attempts=1).failed


def test_pages_of_killed_processes_do_not_count_as_failed(tmp_path: Path) -> None:
    for number in range(12):
        with suppress(Died):
            execute(FaultyFolder(tmp_path, 12 + number), PAGES, DoubleReader(str(number)), attempts=1)
    assert not execute(tmp_path, PAGES, DoubleReader("last")).failed


def test_a_broken_reader_ends_the_run_and_fails_no_page(tmp_path: Path) -> None:
    files = files_of(150)
    with pytest.raises(EngineUnavailable, match="100 tries in a row"):
        execute(tmp_path, files, DoubleReader(failing={file.name for file in files}), part_pages=200)
    broken = DoubleReader(failing={file.name for file in files})
    assert execute(tmp_path / "going", files, broken, keeps_going=True).failed == {"engine_failed": 150}
    assert execute(tmp_path, files, DoubleReader(), part_pages=200).failed == {}
    assert is_each_page_once(tmp_path, files)


def test_a_failing_page_is_tried_the_requested_number_of_times(tmp_path: Path) -> None:
    reader = DoubleReader(failing={"0003"}, refused={"0004"})
    outcome = execute(tmp_path, FILES, reader, attempts=4)
    assert (reader.reads["0003", 1], reader.reads["0004", 1]) == (4, 1)
    assert outcome.failed == {"engine_failed": 1, "unsupported_image": 1}
    assert is_each_page_once(tmp_path, FILES)
