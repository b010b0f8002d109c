"""`ocrsvc batch`: every page of the sources is in the output once, also after a run was cut off."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from ocrsvc.cli.main import run


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with seven images, which the fake engine reads."""
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(7):
        cv2.imwrite(str(folder / f"{number}.png"), np.full((20 + number, 40, 3), 255, np.uint8))
    return folder


def records(out: Path) -> list[dict[str, object]]:
    """All lines of the output, in the order of its files."""
    return [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_bytes().splitlines()]


def test_the_same_command_goes_on_and_repeats_nothing(pages: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    # A slash at the end of a folder is no other source.
    assert run(["batch", f"{pages}/", "--part-pages", "3", "--out", str(out), "--limit", "4"]) == 75
    assert (len(records(out)), len(records(out / "unfinished"))) == (3, 1)
    for folder in (out, whole):
        assert run(["batch", str(pages), "--part-pages", "3", "--out", str(folder)]) == 0
    assert not records(out / "unfinished")
    written = [[file.read_bytes() for file in sorted(folder.glob("*.jsonl"))] for folder in (out, whole)]
    assert written[0] == written[1]
    assert len(written[0]) == 3
    assert [record["source"] for record in records(out)] == [str(pages / f"{number}.png") for number in range(7)]
    assert all(record["error"] is None for record in records(out))


def test_it_says_at_the_end_what_all_commands_have_read(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pages / "0.png").write_text("no image")
    out = tmp_path / "out"
    command = ["batch", str(pages), "--out", str(out), "--no-report"]
    assert run([*command, "--limit", "3"]) == 75
    first = capsys.readouterr().err
    assert "2 pages read, 1 failed (unsupported_image 1), in " in first
    assert "3 of 7 pages, 2 read and 1 failed" in first
    assert f"there is more to be read into {out}" in first
    # Pages that an earlier command could not read count for the exit code, too.
    assert run(command) == 1
    last = capsys.readouterr().err
    assert "4 pages read, 0 failed, in " in last
    assert "7 of 7 pages, 6 read and 1 failed" in last
    assert f"all is in {out}" in last
    assert run([*command, "--exit-zero"]) == 0
    # A file that is no image costs itself alone.
    errors = [record["error"] for record in records(out)]
    assert [error and error["code"] for error in errors] == ["unsupported_image", *[None] * 6]  # type: ignore[index]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--mask", "foo"], "foo"),
        (["--model", "foo"], "model"),
        (["--on", "foo"], "foo"),
        (["--region", "1,2"], "1,2"),
        (["--sample", "0"], "--sample is '0': accepted are a number of pages from 1"),
        (["--sample", "0%"], "--sample is '0%': accepted"),
        (["--format", "text,pdf,text"], "--format is 'text,pdf,text', which has text twice."),
        (["--machines", "2"], "--machines and --price-per-hour are for --dry-run alone."),
        (["--actors", "2"], "--actors is for a Ray cluster, and --on is 'local'."),
        (["--verify", "--report"], "--verify and --report are asked for."),
    ],
)
def test_a_command_that_is_wrong_is_refused_and_leaves_nothing_that_the_right_one_meets(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], said: str
) -> None:
    command = ["batch", str(pages), "--out", str(tmp_path / "out")]
    assert run([*command, *wrong]) == 65
    assert said in capsys.readouterr().err
    assert run([*command[:1], "", *command[2:]]) == 65
    assert run(command) == 0
    assert run([*command, "--line"]) == 65
    assert "began with detect true; now it is detect false." in capsys.readouterr().err


def test_sources_and_shards_without_pages_are_said_to_have_none(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    assert run(["batch", str(tmp_path / "texts"), "--out", str(tmp_path / "none")]) == 0
    assert "there is no page to read\n" in capsys.readouterr().err
    command = ["batch", str(pages), "--part-pages", "4", "--out", str(tmp_path / "out"), "--shard"]
    assert run([*command, "2/3"]) == 0
    assert "the run has fewer parts than --shard 2/3 needs" in capsys.readouterr().err
    assert run([*command, "0/3", "--limit", "1"]) == 75
    assert "1 of 4 pages of this shard, 1 read and 0 failed" in capsys.readouterr().err


def test_help_is_in_groups_and_a_wrong_argument_is_not_hidden_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["batch", "--help"]) == 0
    shown = capsys.readouterr().out
    ungrouped = shown[shown.index("\nOptions:") : shown.index("\nSources:")]
    assert [line.split()[0] for line in ungrouped.splitlines() if line.startswith("  -")] == ["-h,"]
    assert run(["batch", "pages", "--limit", "0"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) < 6
    assert said[-1] == "Error: Invalid value for '--limit': '0' is not a whole number above 0."
