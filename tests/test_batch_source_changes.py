"""A run whose sources have changed since it was planned is not gone on with, and says what has changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from batch_support import document, output, plan, png, use_fake_engine, write_tar

from ocrsvc.batch import run_file
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.request import SourceRequest
from ocrsvc.batch.sources.plan_files import check_unchanged, find_sources
from ocrsvc.cli.main import run
from ocrsvc.errors import RunChanged


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images, an archive, a document, and what is no image."""
    use_fake_engine(monkeypatch)
    (folder := tmp_path / "scans").mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(png(number))
    (folder / "d.pdf").write_bytes(document(2))
    (folder / "README.md").write_text("no image")
    write_tar(folder / "t.tar", {"a.png": png(7), "b.png": png(8)})
    return folder


def nothing(_folder: Path) -> None:
    """What changes nothing."""


def add(folder: Path) -> None:
    (folder / "0a.png").write_bytes(png(3))
    (folder / "other.txt").write_text("no image")


def remove(folder: Path) -> None:
    (folder / "1.png").unlink()


def change(folder: Path) -> None:
    (folder / "1.png").write_bytes(png(1) + b" ")
    write_tar(folder / "t.tar", {"a.png": png(7)})


@pytest.mark.parametrize(
    ("work", "options", "expected"),
    [
        (nothing, {}, ""),
        (add, {}, "1 new, such as"),
        (remove, {}, "1 missing"),
        (change, {}, "2 changed, such as"),
        (add, {"sample": "50%"}, ""),
        (nothing, {"include": ("*.png",)}, ""),
    ],
)
def test_new_changed_and_missing_files_are_counted_an_archive_once(
    folder: Path, work: Callable[[Path], None], options: dict[str, Any], expected: str
) -> None:
    # What could not be read has not changed.
    (folder / "gone.png").symlink_to(folder / "nothing")
    planned = plan(folder, **options)
    work(folder)
    with pytest.raises(RunChanged, match=f"planned: {expected}") if expected else nullcontext():
        check_unchanged(planned, SourceRequest((str(folder),), **options), "out")


def test_a_command_is_refused_and_goes_on_as_planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["batch", str(folder), "--out", str(folder.parent / "out"), "--limit", "2"]
    assert run(command) == 75
    assert "1 file: no image by name and content, left out (1 .md)" in capsys.readouterr().err
    shutil.copy(folder / "0.png", folder / "9.png")
    os.utime(folder / "2.png", (1, 1))
    assert run(command) == 65
    assert "1 new, 1 changed, such as" in capsys.readouterr().err
    assert run([*command, "--update"]) == 65
    assert run([*command, "--as-planned"]) == 75


def test_new_files_are_added_behind_the_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    out = folder.parent / "out"
    command = ["batch", str(folder), "--out", str(out), "--part-pages", "3", "--no-report"]
    # Two machines with a shard each.
    first, second = ([*command, "--shard", f"{shard}/2", "--work", f"{out}{shard}"] for shard in range(2))
    assert run(first) == run(second) == 0
    before = sources_in(out)
    shutil.copy(folder / "0.png", folder / "0a.png")
    find, codes = find_sources, list[int]()

    def find_while_another_updates(*arguments: Any) -> Iterator[SourceFile]:
        monkeypatch.setattr(run_file, "find_sources", find)
        files = list(find(*arguments))
        shutil.copy(folder / "0.png", folder / "0b.png")
        codes.append(run([*second, "--update"]))
        yield from files

    monkeypatch.setattr(run_file, "find_sources", find_while_another_updates)
    assert run([*first, "--update"]) == 65
    assert codes == [0]
    assert run(first) == run(["batch", "--verify", "--out", str(out)]) == 0
    assert sources_in(out) == [*before, f"{folder}/0a.png", f"{folder}/0b.png"]


def sources_in(out: Path) -> list[str]:
    """The sources of all lines of the output, in its order."""
    return [line["source"] for line in output(out)]
