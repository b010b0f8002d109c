"""Curved pages: flattening with a known grid, and when pages are flattened before they are read."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import cv2
import numpy as np
import pytest
from curved_pages import HEIGHT, WIDTH, bent, flat_page
from numpy.typing import NDArray
from ppocr_support import give_up_at, read, rectangle

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.engine import PageHandle
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask
from ocrsvc.engines.ppocr.pipeline.unwarp import PageGrid, make_grid, read_unwarped
from ocrsvc.errors import DeadlineExceeded
from ocrsvc.http.options import read_options
from ocrsvc.imaging.geometry import Quad, turn
from ocrsvc.results import Check, Image, Page, Pixels, ReadOptions, ReadTask

SAG_PX = 60.0


def even_grid(left: float, top: float, width: int, height: int, *, flat: tuple[int, int]) -> PageGrid:
    """The grid of a flat page that fills this rectangle of its picture."""
    x, y = np.meshgrid(np.linspace(left, left + width, 31), np.linspace(top, top + height, 45))
    return PageGrid(np.stack([x, y], axis=-1).astype(np.float32), *flat)


def test_flattening_restores_the_original_page() -> None:
    page = flat_page()[0]
    picture, grid = bent(page, 80.0)
    shade = 0.7 + 0.3 * np.sin(np.pi * (np.arange(WIDTH) + 0.5) / WIDTH)
    # Two interpolations change the edges of strokes slightly.
    assert np.abs(grid.flatten(picture) - page * shade).mean() < 4


@pytest.mark.parametrize(("max_pixels", "size"), [(10**9, (100, 150)), (3750, (50, 75)), (1, (1, 1))])
def test_a_flat_page_is_at_most_as_large_as_in_its_picture(max_pixels: int, size: tuple[int, int]) -> None:
    grid = make_grid(even_grid(20, 30, 100, 150, flat=(1, 1)).points, max_pixels)
    assert (grid.width, grid.height) == pytest.approx(size, abs=1)


def test_flat_page_sizes_are_limited_and_at_least_one_pixel() -> None:
    y, x = np.meshgrid(np.linspace(0, 30_000, 5), np.linspace(0, 100, 4), indexing="ij")
    winding = np.stack([x + np.where(np.arange(5) % 2, 20_000, 0)[:, None], y], axis=-1).astype(np.float32)
    grid = make_grid(winding, 16_000_000)
    assert max(grid.width, grid.height) <= 32_766
    assert grid.flatten(np.zeros((20_000, 120), np.uint8)).shape == (grid.height, grid.width)
    point = make_grid(np.zeros((45, 31, 2), np.float32), 10**6)
    assert point.flatten(np.zeros((10, 10, 3), np.uint8)).shape == (1, 1, 3)


ROWS = range(60, HEIGHT - 60, 40)


def striped_page() -> Pixels:
    page: Pixels = np.full((HEIGHT, WIDTH), 250, np.uint8)
    for top in ROWS:
        for left in range(80, WIDTH - 150, 120):
            page[top : top + 14, left : left + 80] = 100
    return page


@dataclass
class BarReader:
    """A reader that finds dark bars and reads each as `bar`."""

    pixels: Pixels
    mask: LastMask | None
    in_batches: bool = False

    def find(self) -> list[Quad]:
        dark = np.asarray((self.pixels > 50) & (self.pixels < 120), np.uint8)
        if self.mask is not None:
            self.mask.mask = dark
        contours = cv2.findContours(dark, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)[0]
        boxes = [cv2.boundingRect(contour) for contour in contours]
        return [rectangle(x, y, x + w, y + h) for x, y, w, h in boxes if w > 8 and h > 4]

    def read(self, quads: Sequence[Quad]) -> list[LineText]:
        return [LineText("bar", 0.9)] * len(quads)


def open_bars(task: ReadTask, mask: LastMask | None) -> BarReader:
    return BarReader(task.image.pixels, mask)


@dataclass
class KnownGrid:
    """Returns a known grid and counts the calls."""

    points: NDArray[np.float32]
    asked: int = 0

    def find(self, pixels: Pixels, check: Check) -> NDArray[np.float32]:
        check()
        assert pixels.dtype == np.uint8
        self.asked += 1
        return self.points


def bent_bars() -> tuple[Pixels, KnownGrid]:
    # Remove the shading, so that all bars are found.
    picture, grid = bent(striped_page(), SAG_PX, background=250)
    return np.asarray(np.where(picture < 160, 100, 250), np.uint8), KnownGrid(grid.points)


def read_bars(pixels: Pixels, grids: KnownGrid, options: ReadOptions | None = None) -> Page:
    return read_unwarped(ReadTask(Image(pixels, "png"), options or ReadOptions()), open_bars, grids.find)


def test_a_bent_page_is_read_flattened_with_boxes_in_the_picture() -> None:
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
    lefts = np.array([line.box[0][0] for line in page.lines]).reshape(len(ROWS), 6)
    assert (np.diff(lefts, axis=1) > 0).all()
    upright = read_bars(picture, grids, ReadOptions(upright_boxes=True))
    for a, b, c, d in (line.box for line in upright.lines):
        assert (a[1], b[0], c[1], d[0]) == (b[1], c[0], d[1], a[0])


def test_a_page_that_flattening_does_not_improve_is_read_unflattened() -> None:
    picture, grids = bent_bars()
    useless = KnownGrid(even_grid(0, 0, picture.shape[1], picture.shape[0], flat=(1, 1)).points)
    page = read_bars(picture, useless)
    assert useless.asked == 1
    # The boxes were found in the unflattened picture, so their sides are level.
    assert all(line.box[0][1] == line.box[1][1] for line in page.lines)
    assert page.lines
    grids.points = grids.points[:40]
    assert len(read_bars(picture, grids).lines) == len(ROWS) * 6


def test_flat_pages_and_those_with_few_lines_or_too_long_sides_are_not_flattened() -> None:
    picture, grids = bent_bars()
    assert len(read_bars(striped_page(), grids).lines) == len(ROWS) * 6
    longer = np.pad(picture, ((0, 32_767 - len(picture)), (0, 0)), constant_values=250)
    assert len(read_bars(longer, grids).lines) > 50
    picture[300:] = 250
    read_bars(picture, grids)
    assert grids.asked == 0


def test_a_cancelled_page_is_dropped_before_the_model_runs() -> None:
    picture, grids = bent_bars()
    with pytest.raises(DeadlineExceeded):
        read_unwarped(ReadTask(Image(picture, "png"), check=give_up_at(1)), open_bars, grids.find)
    assert grids.asked == 0


def share_of_words_read(page: Page, truth: Sequence[str]) -> float:
    expected, found = " ".join(truth).split(), page.text.split()
    return sum(word in found for word in expected) / len(expected)


def test_a_bent_page_is_read_completely_in_order_with_correct_boxes(handle: PageHandle) -> None:
    page, truth = flat_page()
    picture, grid = bent(page, SAG_PX)
    unwarped = read(handle, picture)
    assert share_of_words_read(unwarped, truth) > 0.97
    joined, rows = " ".join(unwarped.text.split()), [row for row in truth if not row[-1].isdigit()]
    assert sum(row in joined for row in rows) / len(rows) > 0.9
    assert read(handle, picture, unwarp=False) != unwarped
    flat = {line.text: np.mean(line.box, axis=0) for line in read(handle, page).lines}
    distances = [
        np.abs(np.mean(line.box, axis=0) - grid.locate(flat[line.text].astype(np.float32))).max()
        for line in unwarped.lines
        if line.text in flat and line.text.isdigit()
    ]
    assert len(distances) > 30
    assert np.median(distances) < 4
    assert np.quantile(distances, 0.95) < 10


@pytest.mark.parametrize("degrees", [90, 180])
def test_a_rotated_bent_page_is_read(handle: PageHandle, degrees: int) -> None:
    page, truth = flat_page()
    found = read(handle, np.ascontiguousarray(turn(bent(page, SAG_PX)[0], degrees)))
    assert found.angle == -degrees % 360
    assert share_of_words_read(found, truth) > 0.9


def test_a_page_reads_the_same_alone_and_beside_a_bent_one(handle: PageHandle) -> None:
    page, _ = flat_page(12)
    pictures = [page, np.asarray(bent(page, SAG_PX)[0], np.uint8)]
    alone = [read(handle, picture) for picture in pictures]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda picture: read(handle, picture), pictures)) == alone


def test_detect_false_never_flattens(handle: PageHandle) -> None:
    def refuse(*_: object) -> NDArray[np.float32]:
        raise AssertionError("The page must not be flattened.")

    never = replace(handle, find_grid=refuse)
    picture = bent(flat_page()[0], SAG_PX)[0]
    assert read(never, picture, detect=False).width == picture.shape[1]
    assert read(never, picture, unwarp=False).lines


@pytest.mark.parametrize(("sent", "unwarp"), [([], True), ([("unwarp", "false")], False), ([("unwarp", True)], True)])
def test_the_unwarp_option_controls_flattening(sent: Sequence[tuple[str, object]], unwarp: bool) -> None:
    assert read_options(sent).read.unwarp is unwarp
