"""Progress of a batch run on a terminal, as lines and as metrics, and the report at its end."""

import html
import io
import json
import re
import shutil
import sqlite3
import threading
import urllib.request
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from batch_support import use_fake_engine
from browser_support import opening
from playwright.sync_api import Browser
from rich.console import Console
from support import Clock

from ocrsvc.batch.human_readable import bytes_of, duration_of, failures_of, rate_of, share_of
from ocrsvc.batch.pages import PageGroup, PageResult, SourceFile
from ocrsvc.batch.progress import RunCounts, address_of, drawn, line_of, showing, writing_lines
from ocrsvc.batch.report import fill_table, plots_of, worked_seconds
from ocrsvc.batch.work_file import PageFacts
from ocrsvc.cli.main import run
from ocrsvc.errors import BadOption

FILE = SourceFile("a.pdf", "a.pdf", "1", 4000, 4, range(1, 5))
READ = PageResult(0, b"{}", "", False, 0.5, 0.9, 3, "thread 1")
FAILED = PageResult(1, b"{....}", "broken_image", False, 0.1, 0.0, 0, "thread 2")


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def counts(clock: Clock) -> RunCounts:
    """Ten planned pages: two read before, one read now, one failed, one in progress."""
    counts = RunCounts(clock, planned=10, done_before=2)
    # Planning time does not count towards the rate.
    clock.now_s += 1000
    counts.begin()
    counts.begun(PageGroup(FILE, (1, 2, 3), (0, 1, 2)))
    clock.now_s += 4
    counts.page(READ)
    counts.page(FAILED)
    return counts


def test_rates_and_remaining_time_cover_the_last_minute(counts: RunCounts, clock: Clock) -> None:
    assert counts.rates() == pytest.approx((2 / 4, 3 / 4))
    assert line_of(counts).endswith(", 12 s left")
    for _ in range(60):
        clock.now_s += 1
        counts.commit(0.0)
    assert counts.rates() == (0, 0)
    assert "left" not in line_of(counts)


def test_numbers_are_formatted_for_people() -> None:
    assert [duration_of(each) for each in (42.4, 185, 3600, 187_000)] == ["42 s", "3 min 5 s", "1 h", "2 d 3 h"]
    assert [rate_of(each) for each in (0.126, 12.34, 1234.5)] == ["0.13", "12.3", "1,234"]
    assert (share_of(999_999, 1_000_000), share_of(0, 0)) == ("99 %", "100 %")
    assert [bytes_of(each) for each in (999, 12_340_000, 5e15)] == ["999 B", "12.3 MB", "5,000.0 TB"]
    assert failures_of({}) == "0 failed"
    assert failures_of({"a": 1, "b": 5, "c": 2, "d": 1}) == "9 failed (b 5, c 2, a 1, …)"


def test_a_line_is_written_every_ten_seconds_until_the_end(counts: RunCounts) -> None:
    waits = []

    def wait(closed: threading.Event, seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) > 2 or closed.is_set()

    output = io.StringIO()
    with writing_lines(counts, output, wait):
        pass
    assert set(waits) == {10.0}
    line = "4 of 10 pages (40 %), 0.50 pages/s, 0.75 lines/s, 1 failed (broken_image 1), 12 s left"
    assert set(output.getvalue().splitlines()) <= {f"ocrsvc: {line}"}
    assert line_of(counts) == line


def test_a_terminal_shows_bar_rates_failures_and_workers(counts: RunCounts) -> None:
    counts.page(replace(READ, worker="[red]x[/red]"))
    counts.page(replace(READ, worker="http://me:secret@host:80/?token=secret"))
    console = Console(file=io.StringIO(), width=90, record=True)
    console.print(drawn(counts))
    shown = console.export_text()
    assert line_of(counts) in " ".join(shown.split())
    assert "secret" not in shown
    # Worker names are not interpreted as markup.
    assert ["[red]x[/red]", "1", "0.50"] in [line.split() for line in shown.splitlines()]


SAMPLES = """
pages_total{outcome="done"}_1.0 pages_total{outcome="broken_image"}_1.0 lines_total_3.0 source_bytes_total_4000.0
result_bytes_total_8.0 attempts_total_2.0 parts_total_0.0 planned_pages_10.0 left_pages_8.0 in_flight_pages_4.0
worker_pages_total{worker="1"}_1.0 worker_pages_total{worker="2"}_1.0 worker_seconds_total{worker="1"}_0.5
worker_seconds_total{worker="2"}_0.1 last_commit_timestamp_seconds_77.0
"""


@pytest.mark.parametrize("quiet", [False, True])
def test_the_progress_bar_shows_the_cursor_again_unless_quiet(monkeypatch: pytest.MonkeyPatch, *, quiet: bool) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    with showing(quiet=quiet, output=terminal) as counts:
        begun = terminal.getvalue()
        counts.planned = 3
        counts.page(READ)
    shown = terminal.getvalue()
    assert ("1 of 3 pages" in shown) is not quiet
    # The cursor is shown again, even if a second Ctrl-C ends the process.
    for text in () if quiet else (begun, shown):
        assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0


def test_metrics_are_served_on_loopback() -> None:
    output = io.StringIO()
    with showing(quiet=True, metrics="0", output=output) as counts:
        counts.planned = 10
        counts.begun(PageGroup(FILE, (1, 2, 3, 4), (0, 1, 2, 3)))
        counts.page(READ)
        counts.page(FAILED)
        counts.commit(77.0)
        address = output.getvalue().split()[-1]
        port = address.rpartition(":")[2].partition("/")[0]
        with pytest.raises(BadOption, match="cannot be opened"), showing(quiet=True, metrics=port, output=output):
            pass
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
    samples = {line.replace(" ", "_").replace("thread_", "") for line in text.splitlines() if not line.startswith("#")}
    assert samples == {f"ocrsvc_batch_{sample}" for sample in SAMPLES.split()}
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
        ("node-7.example:80", ("node-7.example", 80)),
        *((text, None) for text in ("", "x", "65536", "host:", ":9100", "a b:9100")),
    ],
)
def test_a_metrics_port_may_name_a_host(text: str, address: tuple[str, int] | None) -> None:
    with nullcontext() if address else pytest.raises(BadOption, match="--metrics-port"):
        assert address_of(text) == address


ODD = "<script>alert(1)<script>&amp; 'x\".png"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of thirty images and a text file named like an image, read by the fake engine."""
    use_fake_engine(monkeypatch)
    folder = tmp_path / "pages"
    folder.mkdir()
    noise = np.random.default_rng(1).integers(0, 256, (300, 400, 3), np.uint8)
    for number in range(30):
        cv2.imwrite(str(folder / f"{number:02}.png"), noise[: 100 + number])
    (folder / ODD).write_text("no image")
    return folder


def text_of(out: Path) -> str:
    """Return the text of a report without HTML tags."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", (out / "report.html").read_text("utf-8"))).split())


def batch(folder: Path, out: Path, *more: str) -> int:
    return run(["batch", str(folder), "--out", str(out), "--quiet", *more])


def test_a_run_ends_with_a_report(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert batch(folder, out) == 1
    assert f"report in {out}/report.html" in capsys.readouterr().err
    text, source = text_of(out), (out / "report.html").read_text("utf-8")
    for part in (
        "Finished; 1 page could not be read.",
        "Pages read 30 of 31 in 31 files",
        "unsupported_image 1 page, 100 % of those that failed",
        f"{folder}/{ODD}",
        "engine fake, version 1 model none",
        "400x1",
    ):
        assert part in text
    assert "fake_" not in text
    assert len(re.findall('<svg [^>]*aria-label="[^"]', source)) == 3
    # The report runs no code and loads no resource.
    assert re.findall(r"<script|<[^>]* on\w+=", source) == []
    assert "default-src 'none'; style-src 'unsafe-inline'" in source


def test_the_report_is_rebuilt_from_the_destination_without_passwords(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    batch(folder, out, "--no-report")
    assert not (out / "report.html").exists()
    shutil.rmtree(folder)
    described = out / "_ocrsvc" / "run.json"
    run_values = json.loads(described.read_bytes())
    run_values["asked"]["sources"] = ["s3://me:secret@bucket/x", *map(str, range(30))]
    described.write_text(json.dumps(run_values))
    assert run(["batch", "--report", "--out", str(out)]) == 0
    text = text_of(out)
    assert [part for part in ("Pages read 30 of 31", "s3://***@bucket/x", "and 11 more") if part not in text] == []
    assert "secret" not in text


def test_unfinished_empty_and_missing_runs_are_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, empty = tmp_path / "out", tmp_path / "empty"
    assert batch(folder, out, "--limit", "4", "--part-pages", "10") == 75
    assert "Not finished: 31 pages of 31 are not in the output yet." in text_of(out)
    empty.mkdir()
    assert batch(empty, tmp_path / "nothing") == 0
    assert "Pages read 0 of 0 in 0 files" in text_of(tmp_path / "nothing")
    assert run(["batch", "--report", "--out", str(empty)]) == 65
    assert "There is no batch run in" in capsys.readouterr().err


def test_plots_count_every_page_once_and_exclude_pauses() -> None:
    pages = [
        *(_facts(1010.0, lines=2), _facts(1020.0, "broken_image")),
        *(_facts(5000.0, seconds=8000.0, lines=1), _facts(5030.0, seconds=0.0001)),
    ]
    with closing(sqlite3.connect(":memory:")) as db:
        table = fill_table(db, enumerate(pages))
        assert worked_seconds(table) == pytest.approx(1.0 + 10.0 + 30.0)
        plots = list(plots_of(table))
    counts = [[(read, failed) for _, read, failed in plot.columns] for plot in plots]
    assert [tuple(map(sum, zip(*columns, strict=True))) for columns in counts] == [(3, 1), (3, 0), (2, 0)]


def _facts(at: float, error: str = "", seconds: float = 1.0, lines: int = 0) -> PageFacts:
    return PageFacts(error, 1, at, seconds, 0.5, lines, "one")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
def test_the_report_fits_the_screen(width: int, scheme: str, folder: Path, tmp_path: Path, browser: Browser) -> None:
    out = tmp_path / "out"
    batch(folder, out)
    with opening(browser, (out / "report.html").as_uri()) as open_page:
        page = open_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", ground))) < 60) == (scheme == "dark")
        bars = page.locator("svg").first.locator("rect.bar, rect.more")
        assert bars.count() > 0
        assert all(bar.bounding_box()["height"] >= 1 for bar in bars.all())  # type: ignore[index]
        page.get_by_text("Figures").first.click()
        assert page.get_by_role("rowheader").first.is_visible()
        assert page.get_by_role("img", name=re.compile("^Pages over time: ")).is_visible()
