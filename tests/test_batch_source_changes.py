"""A run whose sources have changed since it was planned is not gone on with, and says what has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_sources_support import document, plan, png, write_tar

from ocrsvc.batch import start
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.sources.plan_files import SourceChanges, find_changes, find_new
from ocrsvc.batch.sources.source_files import SourceRequest
from ocrsvc.cli.main import run
from ocrsvc.errors import RunChanged


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with images, an archive, a document, and what is no image."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(png(number))
    (folder / "d.pdf").write_bytes(document(2))
    (folder / "README.md").write_text("no image")
    write_tar(folder / "t.tar", {"a.png": png(7), "b.png": png(8)})
    return folder


def changes(folder: Path, work: object = None, **options: Any) -> tuple[int, int, int]:
    """New, changed and missing files, after something was done to the folder."""
    planned = plan(folder, counts=None, **options)
    if callable(work):
        work()
    found = find_changes(planned, SourceRequest((str(folder),), **options))
    return found.new, found.changed, found.missing


def test_nothing_has_changed(folder: Path) -> None:
    assert changes(folder) == (0, 0, 0)


def test_what_is_new_is_counted_if_it_would_be_planned(folder: Path) -> None:
    def work() -> None:
        (folder / "3.png").write_bytes(png(3))
        (folder / "other.txt").write_text("no image")

    assert changes(folder, work) == (1, 0, 0)


def test_what_is_missing_is_counted(folder: Path) -> None:
    assert changes(folder, (folder / "1.png").unlink) == (0, 0, 1)


def test_what_has_changed_is_counted_an_archive_once(folder: Path) -> None:
    def work() -> None:
        (folder / "1.png").write_bytes(png(1) + b" ")
        write_tar(folder / "t.tar", {"a.png": png(7)})

    assert changes(folder, work) == (0, 2, 0)


def test_what_could_not_be_read_has_not_changed(folder: Path) -> None:
    (folder / "gone.png").symlink_to(folder / "nothing")
    assert changes(folder) == (0, 0, 0)


def test_a_sample_is_not_asked_for_new_files(folder: Path) -> None:
    def work() -> None:
        (folder / "0a.png").write_bytes(png(3))

    assert changes(folder, work, sample="50%") == (0, 0, 0)


def test_files_that_are_left_out_are_not_new(folder: Path) -> None:
    assert changes(folder, include=("*.png",)) == (0, 0, 0)


def test_the_error_says_how_many_and_names_some() -> None:
    with pytest.raises(RunChanged, match=r"2 new, 1 changed, such as a\.png"):
        SourceChanges(2, 0, 1, ["a.png"]).check_none("there")


def test_a_command_is_refused_and_goes_on_as_planned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    command = ["batch", str(folder), "--out", str(folder.parent / "out"), "--limit", "2"]
    assert run(command) == 75
    assert "1 file: no image by name and content, left out (1 .md)" in capsys.readouterr().err
    shutil.copy(folder / "0.png", folder / "9.png")
    os.utime(folder / "2.png", (1, 1))
    assert run(command) == 65
    assert "1 new, 1 changed, such as" in capsys.readouterr().err
    assert run([*command, "--as-planned"]) == 75


def test_new_files_are_added_behind_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    out = folder.parent / "out"
    command = ["batch", str(folder), "--out", str(out), "--part-pages", "3"]
    assert run(command) == 0
    before = sources_in(out)
    for name in ("0a.png", "t2.tar"):
        shutil.copy(folder / name.replace("0a", "0").replace("t2", "t"), folder / name)
    assert run(command) == 65
    assert "--update" in capsys.readouterr().err
    assert run([*command, "--update"]) == 0
    added = [f"{folder}/{name}" for name in ("0a.png", "t2.tar/a.png", "t2.tar/b.png")]
    assert sources_in(out) == before + added
    assert run(command) == run([*command, "--update"]) == run(["batch", "--verify", "--out", str(out)]) == 0
    assert sources_in(out) == before + added


def test_of_two_updates_at_once_one_counts_and_the_run_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    out = folder.parent / "out"
    command = ["batch", str(folder), "--out", str(out), "--part-pages", "3", "--no-report"]
    # Two machines with a shard each.
    first, second = ([*command, "--shard", f"{shard}/2", "--work", f"{out}{shard}"] for shard in range(2))
    assert run(first) == run(second) == 0
    before = sources_in(out)
    shutil.copy(folder / "0.png", folder / "0a.png")
    find, codes = find_new, list[int]()

    def find_while_another_updates(*arguments: Any) -> Iterator[SourceFile]:
        monkeypatch.setattr(start, "find_new", find)
        files = list(find(*arguments))
        shutil.copy(folder / "0.png", folder / "0b.png")
        codes.append(run([*second, "--update"]))
        yield from files

    monkeypatch.setattr(start, "find_new", find_while_another_updates)
    assert run([*first, "--update"]) == 65
    assert codes == [0]
    assert run(first) == run(["batch", "--verify", "--out", str(out)]) == 0
    assert sources_in(out) == [*before, f"{folder}/0a.png", f"{folder}/0b.png"]


def test_a_changed_file_is_refused_with_update_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    command = ["batch", str(folder), "--out", str(folder.parent / "out")]
    assert run(command) == 0
    os.utime(folder / "2.png", (1, 1))
    assert run([*command, "--update"]) == 65


def sources_in(out: Path) -> list[str]:
    """The sources of all lines of the output, in its order."""
    lines = [line for file in sorted(out.glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    return [json.loads(line)["source"] for line in lines]
