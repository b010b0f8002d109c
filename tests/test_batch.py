"""`ocrsvc batch` writes every page of the sources exactly once, also after an interrupted run."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batch_support import draw_images, output, use_fake_engine
from documents import GRAY, pdf
from support import ROOT, Clock, read_data, wait_until

from ocrsvc.batch.dry_run import SAMPLE_PAGES, count_sources, measure_pace
from ocrsvc.batch.pages import PageGroup, PageResult, SourceFile
from ocrsvc.cli.main import run


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with seven images; selects the fake engine."""
    use_fake_engine(monkeypatch)
    draw_images(tmp_path / "pages", 7)
    return tmp_path / "pages"


def test_the_same_command_resumes_a_run_without_repeating_pages(pages: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    # A folder with a trailing slash is the same source.
    assert run(["batch", f"{pages}/", "--part-pages", "3", "--out", str(out), "--limit", "4"]) == 75
    assert (len(output(out)), len(output(out, "unfinished"))) == (3, 1)
    for folder in (out, whole):
        assert run(["batch", str(pages), "--part-pages", "3", "--out", str(folder)]) == 0
    assert not output(out, "unfinished")
    written = [[file.read_bytes() for file in sorted(folder.glob("*.jsonl"))] for folder in (out, whole)]
    assert written[0] == written[1]
    assert len(written[0]) == 3
    assert [record["source"] for record in output(out)] == [str(pages / f"{number:03}.png") for number in range(7)]
    assert all(record["error"] is None for record in output(out))


def test_the_summary_counts_the_pages_of_all_commands(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pages / "000.png").write_text("no image")
    out = tmp_path / "out"
    command = ["batch", str(pages), "--out", str(out), "--no-report"]
    assert run([*command, "--limit", "3"]) == 75
    first = capsys.readouterr().err
    for part in ("2 pages read, 1 failed (unsupported_image 1), in ", "3 of 7 pages, 2 read", f"incomplete: {out}"):
        assert part in first
    # The exit code also reports pages that failed in an earlier command.
    assert run(command) == 1
    last = capsys.readouterr().err
    for part in ("4 pages read, 0 failed, in ", "7 of 7 pages, 6 read and 1 failed", f"output complete: {out}"):
        assert part in last
    assert run([*command, "--exit-zero"]) == 0
    # Only the file that is not an image failed.
    errors = [record["error"] for record in output(out)]
    assert [error and error["code"] for error in errors] == ["unsupported_image", *[None] * 6]


@pytest.mark.parametrize(
    ("wrong", "said"), read_data("batch.json")["an invalid command is refused and leaves no files"]
)
def test_an_invalid_command_is_refused_and_leaves_no_files(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], said: str
) -> None:
    command = ["batch", str(pages), "--out", str(tmp_path / "out")]
    assert run([*command, *wrong]) == 65
    assert said in capsys.readouterr().err
    assert run([*command[:1], "", *command[2:]]) == 65
    assert run(command) == 0
    assert run([*command, "--line", "--format", "text,pdf"]) == 65
    assert "began with format jsonl, detect true; now it is format text,pdf, detect false." in capsys.readouterr().err


def test_empty_sources_and_empty_shards_are_reported(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    assert run(["batch", str(tmp_path / "texts"), "--out", str(tmp_path / "none")]) == 0
    assert "no pages to read: no images or PDFs were found\n" in capsys.readouterr().err
    command = ["batch", str(pages), "--part-pages", "4", "--out", str(tmp_path / "out"), "--shard"]
    assert run([*command, "2/3"]) == 0
    assert "the run has fewer parts than --shard 2/3 needs" in capsys.readouterr().err
    assert run([*command, "0/3", "--limit", "1"]) == 75
    assert "1 of 4 pages of this shard, 1 read and 0 failed" in capsys.readouterr().err


WAIT_S = 60.0


@contextmanager
def started(pages: Path, out: Path, *more: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Run `ocrsvc batch` with the fake engine in a new process group, which is killed at the end."""
    environment = os.environ | {"OCRSVC_ENGINE": "fake"} | {f"OCRSVC_{key}": value for key, value in settings.items()}
    command = [sys.executable, "-m", "ocrsvc", "batch", str(pages), "--out", str(out), "--part-pages", "20", *more]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def known_pages(out: Path) -> int:
    """Number of pages with a result, in finished parts and in work files."""
    known = 20 * len(list(out.glob("_ocrsvc/parts/*.json")))
    for work in out.glob("_ocrsvc/work/*.sqlite"):
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{work}?mode=ro", uri=True)) as db:
            known += db.execute("SELECT count(*) FROM page").fetchone()[0]
    return known


def wait_for_growth(out: Path, by_pages: int) -> None:
    """Wait until the run has results for `by_pages` more pages."""
    before = known_pages(out)
    wait_until(lambda: known_pages(out) >= before + by_pages, "more pages", WAIT_S)


def test_a_run_resumes_after_kill_9_and_after_sigint(tmp_path: Path) -> None:
    pages, out = tmp_path / "pages", tmp_path / "out"
    draw_images(pages, 120)
    with started(pages, out, FAKE_LATENCY_S="0.05"):
        wait_for_growth(out, 25)
    with started(pages, out, FAKE_LATENCY_S="0.05") as interrupted:
        wait_for_growth(out, 25)
        interrupted.send_signal(signal.SIGINT)
        _, messages = interrupted.communicate(timeout=WAIT_S)
    assert interrupted.returncode == 75
    assert "run the same command again" in messages
    with started(pages, out) as last:
        _, messages = last.communicate(timeout=WAIT_S)
    assert last.returncode == 0, messages
    assert [record["source"] for record in output(out)] == sorted(map(str, pages.iterdir()))
    assert run(["batch", "--verify", "--out", str(out)]) == 0


def test_a_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    pages, out = tmp_path / "pages", tmp_path / "out"
    draw_images(pages, 9)
    with started(pages, out, FAKE_FAULT="hang") as hanging:
        wait_until(lambda: list(out.glob("_ocrsvc/begun/*")), "a page that is being read", WAIT_S)
        hanging.send_signal(signal.SIGINT)
        assert hanging.stderr is not None
        assert "SIGINT: finishing" in hanging.stderr.readline() + hanging.stderr.readline()
        hanging.send_signal(signal.SIGINT)
        assert hanging.wait(WAIT_S) == -signal.SIGINT


@pytest.mark.parametrize(("fault", "code"), [("crash", "image_crashes_engine"), ("hang", "deadline_exceeded")])
def test_a_page_that_crashes_or_hangs_the_engine_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, code: str
) -> None:
    text = draw_images(tmp_path / "pages", 12)[5]
    use_fake_engine(monkeypatch, ISOLATION="process", FAKE_FAULT=fault, FAKE_FAULT_ON=text, DEADLINE_S="5")
    out = tmp_path / "out"
    assert run(["batch", str(tmp_path / "pages"), "--out", str(out), "--attempts", "1"]) == 1
    failed = [(record["source"], record["error"]["code"]) for record in output(out) if record["error"]]
    assert (len(output(out)), failed) == (12, [(str(tmp_path / "pages" / "005.png"), code)])


def test_a_run_does_not_resume_with_settings_that_change_results(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["batch", str(pages), "--out", str(tmp_path / "out")]
    assert run([*command, "--limit", "1"]) == 75
    monkeypatch.setenv("OCRSVC_FAKE_TEXT", "more")
    assert run(command) == 65
    assert "fake_text=more" in capsys.readouterr().err
    monkeypatch.delenv("OCRSVC_FAKE_TEXT")
    monkeypatch.setenv("OCRSVC_LOG_LEVEL", "error")
    assert run(command) == 0


def source(name: str, pages: int = 1, size: int = 100) -> SourceFile:
    return SourceFile(name, name, "", size, pages, range(1, pages + 1))


def test_every_page_has_the_same_chance_to_be_sampled() -> None:
    counts = count_sources([source("long.pdf", 1500), *(source(f"{number}.jpg") for number in range(500))])
    assert len(counts.sample) == SAMPLE_PAGES
    kinds = Counter(group.file.name.endswith(".pdf") for group in counts.sample)
    # 75 % of the sample are expected from the long file; below 50 % has a probability of 1 in 500.
    assert kinds[True] > SAMPLE_PAGES / 2
    assert len({(group.file.name, group.pages) for group in counts.sample}) == SAMPLE_PAGES


def test_the_estimated_pace_excludes_the_first_page() -> None:
    clock, seconds = Clock(0.0), iter((50.0, 2.0, 1.0, 3.0, 2.0))

    def read(group: PageGroup) -> Iterator[PageResult]:
        clock.now_s += (took_s := next(seconds))
        yield PageResult(group.indexes[0], b"{}", "", False, took_s, 1.0, 1, "w")

    reader: Any = SimpleNamespace(at_once=1, read=read)
    pace = measure_pace(reader, count_sources([source("a.pdf", 4)]).sample, clock)
    assert pace is not None
    assert (pace.pages, pace.failed, pace.pages_per_s) == (4, 0, 0.5)
    # The sample standard deviation of 2, 1, 3 and 2 is 0.816.
    assert pace.spread == pytest.approx(1.96 * 0.8165 / 2 / 2, rel=1e-3)
    assert (pace.seconds_for(1000), pace.seconds_for(1000, 10)) == (2000, 200)


def test_a_dry_run_estimates_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fake_engine(monkeypatch)
    draw_images(tmp_path / "pages", 3)
    (tmp_path / "pages" / "a.PDF").write_bytes(pdf(GRAY, GRAY))
    command = ["batch", str(tmp_path / "pages"), "--dry-run", "--out", str(tmp_path / "out")]
    assert run([*command, "--machines", "5", "--price-per-hour", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = [("kind", "files", "pages"), (".png", "3", "3"), (".pdf", "1", "2"), ("all", "4", "5")]
    assert [tuple(line.split()[:3]) for line in lines[:4]] == counts
    assert lines[5].startswith("5 pages read: ")
    assert [line.split("  ")[0] for line in lines[6:]] == ["this machine", "5 such machines", "price"]
    # Without pages there is no estimate.
    (tmp_path / "none").mkdir()
    assert run(["batch", str(tmp_path / "none"), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["all", "0", "0", "0", "B"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("more", "code", "said"), read_data("batch.json")["missing and invalid arguments are refused"])
def test_missing_and_invalid_arguments_are_refused(
    more: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["batch", *more]) == code
    assert said in capsys.readouterr().err
