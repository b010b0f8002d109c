"""`ocrsvc batch --dry-run`: what is counted, how the sample is taken, what is estimated; nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from ocrsvc.batch.dry_run import SAMPLE_PAGES, Pace, count_sources, measure_pace
from ocrsvc.batch.pages import PageGroup, PageReader, PageResult, SourceFile
from ocrsvc.cli.main import run


def source(name: str, pages: int = 1, size: int = 100) -> SourceFile:
    return SourceFile(name, name, "", size, pages, range(1, pages + 1))


def test_files_pages_and_bytes_are_counted_by_kind() -> None:
    counts = count_sources([source("a.PDF", 3), source("b/b.pdf", 2, 50), source("c.jpg"), source("no-end")])
    assert counts.kinds == {".pdf": (2, 5, 150), ".jpg": (1, 1, 100), "none": (1, 1, 100)}
    assert counts.total == (4, 7, 350)
    many = count_sources(source(f"a.{number}") for number in range(100))
    assert (len(many.kinds), many.kinds["other"][0]) == (31, 70)


def test_every_page_is_as_likely_to_be_in_the_sample() -> None:
    counts = count_sources([source("long.pdf", 1500), *(source(f"{number}.jpg") for number in range(500))])
    assert len(counts.sample) == SAMPLE_PAGES
    kinds = Counter(group.file.name.endswith(".pdf") for group in counts.sample)
    # Three of four are expected to be of the one long file; less than half has a chance of 1 in 500.
    assert kinds[True] > SAMPLE_PAGES / 2
    assert len({(group.file.name, group.pages) for group in counts.sample}) == SAMPLE_PAGES


def test_few_pages_are_all_in_the_sample() -> None:
    sample = count_sources([source("a.pdf", 3), source("b.jpg")]).sample
    assert [(group.file.name, *group.pages) for group in sample] == [*(("a.pdf", at) for at in (1, 2, 3)), ("b.jpg", 1)]


class TimedReader:
    """Reads a page in so many seconds of a clock of its own."""

    at_once = 1
    is_elsewhere = False

    def __init__(self, *seconds: float, error: str = "") -> None:
        self.now, self._seconds, self._error, self._read = 0.0, seconds, error, 0

    def clock(self) -> float:
        return self.now

    def start(self) -> dict[str, str]:
        return {}

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        seconds = self._seconds[self._read % len(self._seconds)]
        self._read += 1
        self.now += seconds
        yield PageResult(group.indexes[0], b"{}", self._error, False, seconds, 1.0, 1, "w")

    def close(self) -> None:
        pass


def paced(reader: TimedReader, pages: int) -> Pace | None:
    sample = count_sources([source("a.pdf", pages)]).sample
    protocol: PageReader = reader
    return measure_pace(protocol, sample, reader.clock)


def test_the_pace_is_that_of_the_sample_without_the_first_reading() -> None:
    pace = paced(TimedReader(50.0, 2.0, 1.0, 3.0, 2.0), 4)
    assert pace is not None
    assert (pace.pages, pace.failed, pace.pages_per_s) == (4, 0, 0.5)
    # The standard deviation of 2, 1, 3 and 2 is 0.816.
    assert pace.spread == pytest.approx(1.96 * 0.8165 / 2 / 2, rel=1e-3)
    assert (pace.seconds_for(1000), pace.seconds_for(1000, 10)) == (2000, 200)


@pytest.mark.parametrize(
    ("reader", "pages", "counts"),
    [
        # It ends after SAMPLE_S.
        (TimedReader(25.0), 20, (3, 0)),
        (TimedReader(1.0, error="broken_image"), 3, (3, 3)),
        (TimedReader(1.0), 0, None),
    ],
)
def test_a_sample_may_be_slow_or_fail_or_be_empty(
    reader: TimedReader, pages: int, counts: tuple[int, int] | None
) -> None:
    pace = paced(reader, pages)
    assert (pace and (pace.pages, pace.failed)) == counts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(3):
        cv2.imwrite(str(folder / f"{number}.png"), np.full((20, 40 + number, 3), 255, np.uint8))
    return folder


def test_the_command_estimates_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "out"
    command = ["batch", str(folder), "--dry-run", "--out", str(out), "--machines", "5", "--price-per-hour", "0.5"]
    assert run(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["kind", "files", "pages", "bytes"]
    assert lines[1].split()[:3] == [".png", "3", "3"]
    assert lines[2].split()[:3] == ["all", "3", "3"]
    assert lines[4].startswith("3 pages read: ")
    assert [line.split("  ")[0] for line in lines[5:]] == ["this machine", "5 such machines", "price"]
    assert not out.exists()


def test_an_empty_source_has_no_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["batch", str(tmp_path), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["all", "0", "0", "0", "B"]


@pytest.mark.parametrize(
    ("more", "said"),
    [([], "No source is named"), (["pages"], "--out is missing")],
)
def test_what_is_missing_is_named(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["batch", *more]) == 65
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("--attempts", "0", "is not a whole number above 0"),
        ("--machines", "x", "is not a whole number from 1 to 1000000"),
        ("--machines", "0", "is not a whole number from 1 to 1000000"),
        ("--at-once", "1001", "is not a whole number from 1 to 1000"),
        ("--machines", "9" * 5000, "is not a whole number from 1 to 1000000"),
        ("--actors", "1.5", "is not a whole number"),
        ("--patience", "-3", "is not a number from 0"),
        ("--cpus-per-actor", "nan", "is not a number from 0"),
        *(("--price-per-hour", price, "is not a number from 0") for price in ("1e10", "-1", "nan", "x")),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    argument: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["batch", "pages", "--dry-run", argument, value]) == 2
    assert said in capsys.readouterr().err
