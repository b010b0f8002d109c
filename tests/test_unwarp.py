"""When a page is flattened before it is read: with readers that know the page, and with the real models."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import cv2
import numpy as np
import pytest
from curved_pages import HEIGHT, WIDTH, bent, flat_page
from numpy.typing import NDArray
from support import page_handle

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask
from ocrsvc.engines.ppocr.pipeline.page_grid import UNWARPING_MODEL, find_grid
from ocrsvc.engines.ppocr.pipeline.unwarp import read_unwarped
from ocrsvc.errors import DeadlineExceeded
from ocrsvc.http.options import read_options
from ocrsvc.imaging.geometry import Quad, turn
from ocrsvc.records import Check, Image, Page, Pixels, ReadOptions, ReadTask

SAG_PX = 60.0
ROWS = range(60, HEIGHT - 60, 40)


def striped_page() -> Pixels:
    """A page whose lines are rows of dark bars."""
    page: Pixels = np.full((HEIGHT, WIDTH), 250, np.uint8)
    for top in ROWS:
        for left in range(80, WIDTH - 150, 120):
            page[top : top + 14, left : left + 80] = 100
    return page


@dataclass
class BarReader:
    """Finds the bars of a page and reads each as `bar`."""

    pixels: Pixels
    mask: LastMask | None
    in_batches: bool = False

    def find(self) -> list[Quad]:
        dark = np.asarray((self.pixels > 50) & (self.pixels < 120), np.uint8)
        if self.mask is not None:
            self.mask.keep(dark)
        contours = cv2.findContours(dark, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)[0]
        boxes = [cv2.boundingRect(contour) for contour in contours]
        corners = [[[x, y], [x + w, y], [x + w, y + h], [x, y + h]] for x, y, w, h in boxes if w > 8 and h > 4]
        return list(np.array(corners, np.float32).reshape(-1, 4, 2))

    def read(self, quads: Sequence[Quad]) -> list[LineText]:
        return [LineText("bar", 0.9)] * len(quads)


def open_bars(task: ReadTask, mask: LastMask | None) -> BarReader:
    return BarReader(task.image.pixels, mask)


class Grids:
    """Gives a known grid and counts how often it was asked for."""

    def __init__(self, points: NDArray[np.float32]) -> None:
        self.points = points
        self.asked = 0

    def find(self, pixels: Pixels, check: Check) -> NDArray[np.float32]:
        check()
        assert pixels.dtype == np.uint8
        self.asked += 1
        return self.points


def bent_bars() -> tuple[Pixels, Grids]:
    # Lit evenly, so that the bars are found everywhere.
    picture, grid = bent(striped_page(), SAG_PX, background=250)
    lit = np.asarray(np.where(picture < 160, 100, 250), np.uint8)
    return lit, Grids(grid.points)


def read_bars(pixels: Pixels, grids: Grids, options: ReadOptions | None = None) -> Page:
    return read_unwarped(ReadTask(Image(pixels, "png"), options or ReadOptions()), open_bars, grids.find)


def tops(page: Page) -> set[int]:
    """The different heights, in steps of 10 px, at which lines begin."""
    return {round(line.box[0][1] / 10) for line in page.lines}


def test_a_flat_page_is_read_as_it_is_and_no_model_runs() -> None:
    grids = bent_bars()[1]
    page = read_bars(striped_page(), grids)
    assert grids.asked == 0
    assert len(page.lines) == len(ROWS) * 6


def test_a_bent_page_is_read_flat_and_its_boxes_are_where_the_lines_are_in_the_picture() -> None:
    picture, grids = bent_bars()
    page = read_bars(picture, grids)
    assert grids.asked == 1
    assert (page.width, page.height) == (picture.shape[1], picture.shape[0])
    assert len(page.lines) == len(ROWS) * 6
    for line in page.lines:
        (x, y), (right, bottom) = np.mean(line.box, axis=0), line.box[2]
        assert 50 < picture[round(y), round(x)] < 120
        assert right > line.box[0][0]
        assert bottom > line.box[0][1]


def test_rows_of_a_bent_page_are_read_row_by_row() -> None:
    picture, grids = bent_bars()
    lines = read_bars(picture, grids).lines
    lefts = np.array([line.box[0][0] for line in lines]).reshape(len(ROWS), 6)
    assert (np.diff(lefts, axis=1) > 0).all()


def test_upright_boxes_of_a_bent_page_have_level_sides() -> None:
    picture, grids = bent_bars()
    page = read_bars(picture, grids, ReadOptions(upright_boxes=True))
    for a, b, c, d in (line.box for line in page.lines):
        assert (a[1], b[0], c[1], d[0]) == (b[1], c[0], d[1], a[0])


def test_a_page_that_the_grid_does_not_straighten_is_read_as_it_is() -> None:
    picture = bent_bars()[0]
    height, width = picture.shape
    x, y = np.meshgrid(np.linspace(0, width, 31), np.linspace(0, height, 45))
    useless = Grids(np.stack([x, y], axis=-1).astype(np.float32))
    page = read_bars(picture, useless)
    assert useless.asked == 1
    # The boxes are those of the picture, with level sides, as the reader found them.
    assert all(line.box[0][1] == line.box[1][1] for line in page.lines)
    assert page.lines


def test_a_page_of_which_the_grid_would_lose_a_part_is_read_as_it_is() -> None:
    picture, grids = bent_bars()
    grids.points = grids.points[:40]
    page = read_bars(picture, grids)
    assert len(page.lines) == len(ROWS) * 6


def test_a_picture_too_long_to_be_resampled_is_read_as_it_is() -> None:
    picture, grids = bent_bars()
    longer = np.pad(picture, ((0, 32_767 - len(picture)), (0, 0)), constant_values=250)
    assert len(read_bars(longer, grids).lines) > 50
    assert grids.asked == 0


def test_few_lines_are_no_evidence() -> None:
    picture, grids = bent_bars()
    picture[300:] = 250
    read_bars(picture, grids)
    assert grids.asked == 0


def test_work_that_nobody_waits_for_ends_before_the_grid_is_asked_for() -> None:
    picture, grids = bent_bars()
    task = ReadTask(Image(picture, "png"), check=expire)
    with pytest.raises(DeadlineExceeded):
        read_unwarped(task, open_bars, grids.find)
    assert grids.asked == 0


def expire() -> None:
    raise DeadlineExceeded("nobody waits")


def test_the_model_finds_where_a_bent_page_lies() -> None:
    picture, truth = bent(flat_page()[0], SAG_PX)
    found = find_grid(picture)
    assert found.shape == (45, 31, 2)
    # The page is a thousand pixels tall; the model was made for photos, not for drawings.
    assert np.abs(found - truth.points).mean() < 15
    colour = cv2.cvtColor(picture, cv2.COLOR_GRAY2BGR)
    assert np.array_equal(find_grid(np.asarray(colour, np.uint8)), found)


def test_who_waits_for_the_model_in_vain_stops_waiting() -> None:
    picture: Pixels = np.full((60, 40), 200, np.uint8)
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks > 2:
            expire()

    with UNWARPING_MODEL._turn, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(find_grid, picture, check)
        assert isinstance(waiting.exception(timeout=20), DeadlineExceeded)


def test_the_model_gives_the_same_grid_on_any_thread() -> None:
    pictures = [np.asarray(bent(flat_page()[0], sag)[0], np.uint8) for sag in (40.0, 60.0)]
    alone = [find_grid(picture) for picture in pictures]
    start = threading.Barrier(4)

    def find(index: int) -> NDArray[np.float32]:
        start.wait()
        return find_grid(pictures[index % 2])

    with ThreadPoolExecutor(4) as pool:
        for index, found in enumerate(pool.map(find, range(4))):
            assert np.array_equal(found, alone[index % 2])


@pytest.fixture(scope="module")
def handle() -> Iterator[PageHandle]:
    with page_handle(threads=2) as handle:
        yield handle


def read(handle: PageHandle, pixels: Pixels, options: ReadOptions | None = None) -> Page:
    (page,) = handle.read([ReadTask(Image(pixels, "png"), options or ReadOptions())])
    assert isinstance(page, Page)
    return page


def words_right(page: Page, truth: Sequence[str]) -> float:
    expected, found = " ".join(truth).split(), page.text.split()
    return sum(word in found for word in expected) / len(expected)


def rows_right(page: Page, truth: Sequence[str]) -> float:
    """The share of the lines of words, as read across the page, which are in the text unbroken."""
    joined, rows = " ".join(page.text.split()), [row for row in truth if not row[-1].isdigit()]
    return sum(row in joined for row in rows) / len(rows)


def test_a_bent_page_is_read_whole_and_in_its_rows(handle: PageHandle) -> None:
    page, truth = flat_page()
    picture = bent(page, SAG_PX)[0]
    unwarped, as_it_is = read(handle, picture), read(handle, picture, ReadOptions(unwarp=False))
    assert words_right(unwarped, truth) > 0.97
    assert rows_right(unwarped, truth) > 0.9
    assert as_it_is != unwarped


def test_boxes_of_a_bent_page_lie_on_its_lines(handle: PageHandle) -> None:
    page, _ = flat_page()
    picture, grid = bent(page, SAG_PX)
    found = read(handle, picture)
    flat = {line.text: np.mean(line.box, axis=0) for line in read(handle, page).lines}
    distances = [
        np.abs(np.mean(line.box, axis=0) - grid.locate(flat[line.text].astype(np.float32))).max()
        for line in found.lines
        if line.text in flat and line.text.isdigit()
    ]
    assert len(distances) > 30
    assert np.median(distances) < 4
    assert np.quantile(distances, 0.95) < 10


@pytest.mark.parametrize("degrees", [90, 180])
def test_a_bent_page_that_lies_on_its_side_is_read_too(handle: PageHandle, degrees: int) -> None:
    page, truth = flat_page()
    picture = np.ascontiguousarray(turn(bent(page, SAG_PX)[0], degrees))
    found = read(handle, picture)
    assert found.angle == -degrees % 360
    assert words_right(found, truth) > 0.9


def test_a_page_reads_the_same_alone_and_beside_a_bent_one(handle: PageHandle) -> None:
    page, _ = flat_page(12)
    pictures = [page, np.asarray(bent(page, SAG_PX)[0], np.uint8)]
    alone = [read(handle, picture) for picture in pictures]
    with ThreadPoolExecutor(3) as pool:
        beside = list(pool.map(lambda index: read(handle, pictures[index % 2]), range(4)))
    assert beside == [alone[index % 2] for index in range(4)]


def test_a_whole_line_is_never_flattened(handle: PageHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("no lines were asked for")

    monkeypatch.setattr(handle, "_find_grid", refuse)
    picture = bent(flat_page()[0], SAG_PX)[0]
    assert read(handle, picture, ReadOptions(detect=False)).width == picture.shape[1]
    assert read(handle, picture, replace(ReadOptions(), unwarp=False)).lines


@pytest.mark.parametrize(("sent", "unwarp"), [([], True), ([("unwarp", "false")], False), ([("unwarp", True)], True)])
def test_pages_are_flattened_unless_the_request_says_otherwise(
    sent: Sequence[tuple[str, object]], unwarp: bool
) -> None:
    assert read_options(sent).read.unwarp is unwarp
