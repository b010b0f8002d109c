"""The report of a batch run: what it says, that it can be made again, that it is bounded, and how browsers show it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest
from batch_support import use_fake_engine
from browser_support import opening
from image_support import png
from playwright.sync_api import Browser

from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.report import MOST_BYTES, MOST_PAGES, SIDE_PX, make_pictures, page_table, plots_of, worked_seconds
from ocrsvc.batch.work_file import PageFacts
from ocrsvc.cli.main import run

ODD = "<script>alert(1)<script>&amp; 'x\".png"
LARGE_PNG = png(8100, 5000, 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty images, and one with an odd name that is none; the fake engine reads them."""
    use_fake_engine(monkeypatch)
    folder = tmp_path / "pages"
    folder.mkdir()
    noise = np.random.default_rng(1).integers(0, 256, (300, 400, 3), np.uint8)
    for number in range(30):
        cv2.imwrite(str(folder / f"{number:02}.png"), noise[: 100 + number])
    (folder / ODD).write_text("no image")
    return folder


class Page(HTMLParser):
    """The text, the tags and the attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags = "", []
        self.feed(html)

    tags: list[tuple[str, dict[str, str | None]]]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data + " "

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every such element."""
        return [attributes for name, attributes in self.tags if name == tag]


def report_of(out: Path) -> Page:
    page = Page((out / "report.html").read_text("utf-8"))
    page.text = " ".join(page.text.split())
    return page


def batch(folder: Path, out: Path, *more: str) -> int:
    return run(["batch", str(folder), "--out", str(out), "--quiet", *more])


def test_a_run_ends_with_a_report(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert batch(folder, out) == 1
    assert f"report in {out}/report.html" in capsys.readouterr().err
    page = report_of(out)
    assert "Finished; 1 page could not be read." in page.text
    assert "Pages read 30 of 31 in 31 files" in page.text
    assert "unsupported_image 1 page, 100 % of those that failed" in page.text
    assert f"{folder}/{ODD}" in page.text
    assert "reader's engine fake" in page.text
    assert [bool(svg["aria-label"]) for svg in page.all("svg")] == [True] * 3
    assert "400x1" in page.text
    # Nothing is run or asked for.
    assert page.all("script") == []
    assert [tag for tag, attributes in page.tags if any(name.startswith("on") for name in attributes)] == []
    [policy] = [tag["content"] for tag in page.all("meta") if tag.get("http-equiv")]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    # Pictures are few and small.
    pictures = page.all("img")
    assert len(pictures) == 2 * MOST_PAGES
    for picture in pictures:
        data = base64.b64decode(str(picture["src"]).partition(",")[2])
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None
        assert (len(data) <= MOST_BYTES, max(pixels.shape) <= SIDE_PX, bool(picture["alt"])) == (True, True, True)


def test_it_is_made_again_from_the_destination_alone_without_passwords(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    batch(folder, out, "--no-report")
    assert not (out / "report.html").exists()
    shutil.rmtree(folder)
    described = out / "_ocrsvc" / "run.json"
    said = json.loads(described.read_bytes())
    said["asked"]["sources"] = ["s3://me:secret@bucket/x", *map(str, range(30))]
    described.write_text(json.dumps(said))
    assert run(["batch", "--report", "--out", str(out)]) == 0
    page = report_of(out)
    assert "No picture: source_gone" in page.text
    assert "Pages read 30 of 31" in page.text
    assert "s3://***@bucket/x" in page.text
    assert "secret" not in page.text
    assert "and 11 more" in page.text


def test_a_run_may_be_unfinished_or_empty_or_none(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, empty = tmp_path / "out", tmp_path / "empty"
    assert batch(folder, out, "--limit", "4", "--part-pages", "10") == 75
    assert "Not finished: 31 pages of 31 are not in the output yet." in report_of(out).text
    empty.mkdir()
    assert batch(empty, tmp_path / "nothing") == 0
    assert "Pages read 0 of 0 in 0 files" in report_of(tmp_path / "nothing").text
    assert run(["batch", "--report", "--out", str(empty)]) == 65
    assert "There is no batch run in" in capsys.readouterr().err


def test_plots_hold_every_page_once_and_pauses_are_not_worked_time(tmp_path: Path) -> None:
    pages = [
        *(_facts(1010.0, lines=2), _facts(1020.0, "broken_image")),
        *(_facts(5000.0, seconds=8000.0, lines=1), _facts(5030.0, seconds=0.0001)),
    ]
    with page_table(tmp_path / "pages", enumerate(pages)) as table:
        assert worked_seconds(table) == pytest.approx(1.0 + 10.0 + 30.0)
        plots = list(plots_of(table))
    counts = [[(read, failed) for _, read, failed in plot.columns] for plot in plots]
    assert [tuple(map(sum, zip(*columns, strict=True))) for columns in counts] == [(3, 1), (3, 0), (2, 0)]


def _facts(at: float, error: str = "", seconds: float = 1.0, lines: int = 0) -> PageFacts:
    return PageFacts(error, 1, at, seconds, 0.5, lines, "one")


FILE = SourceFile("a", "a", "", 10, 1, range(1, 2))
WIDE_PNG = png(900, 50, 255)


def test_a_picture_that_cannot_be_made_says_why() -> None:
    for size, data, missing in (
        (1_000_000_000, b"", "the file is too large"),
        (10, b"", "broken_image"),
        (10, LARGE_PNG, "image_too_large"),
    ):
        [picture] = make_pictures([(replace(FILE, size=size), 1)], lambda _file, data=data: data)  # type: ignore[misc]
        assert picture.missing == missing


def test_pictures_end_with_their_time_where_a_source_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, loads = threading.Event(), iter(range(3))
    monkeypatch.setattr("ocrsvc.batch.report.TIME_S", 0.5)

    def load(_file: SourceFile) -> bytes:
        assert next(loads) != 1 or let_go.wait()
        return WIDE_PNG

    first, *_, last = make_pictures([(FILE, 1)] * 3, load)
    let_go.set()
    assert (first.width, last.missing) == (SIDE_PX, "there was no time for it")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
def test_a_browser_shows_it(width: int, scheme: str, folder: Path, tmp_path: Path, browser: Browser) -> None:
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
        assert page.locator("img").evaluate_all("all => all.every(one => one.complete && one.naturalWidth > 0)")
