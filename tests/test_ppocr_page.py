"""Reading a page from detected lines: orientation, order, thresholds, joined lines; with a stub for the recognizer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ppocr_support import rectangle

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.pipeline.page import InMemoryPageReader, read_page, split_joined_lines
from ocrsvc.imaging.geometry import Quad, turn, turn_points
from ocrsvc.results import Check, Image, Page, Pixels, ReadOptions, ReadTask, no_check

WIDTH, HEIGHT = 300, 200
LEFT, RIGHT = 200, 90  # shades of a line's halves, by which the stub detects its direction


class ShadeReader:
    """Stub of a recognizer: it is confident only if a line's first half is lighter than its second half."""

    def __init__(self) -> None:
        self.lines_read = 0

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        return max(8, int(along)), max(4, int(across))

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        return [self._read_one(crop, check) for crop in crops]

    def _read_one(self, crop: Pixels, check: Check) -> LineText:
        check()
        self.lines_read += 1
        half = crop.shape[1] // 2
        first, second = float(np.median(crop[:, :half])), float(np.median(crop[:, half:]))
        return LineText(f"{first:.0f}", 0.95) if first > second else LineText("junk", 0.4)


def page_of(*lines: tuple[int, int]) -> tuple[Pixels, list[Quad]]:
    """A page with a line of 120 x 16 px at each (left, top); the shade of its first half identifies the line."""
    pixels: Pixels = np.full((HEIGHT, WIDTH), 255, np.uint8)
    quads = []
    for number, (left, top) in enumerate(lines):
        pixels[top : top + 16, left : left + 60] = LEFT + number
        pixels[top : top + 16, left + 60 : left + 120] = RIGHT
        quads.append(rectangle(left, top, left + 120, top + 16))
    return pixels, quads


def read(
    pixels: Pixels, quads: Sequence[Quad], reader: ShadeReader | None = None, in_batches: bool = False, **options: Any
) -> Page:
    """Read a page on which a detector finds these quads."""
    page_reader = InMemoryPageReader(pixels, lambda _: list(quads), reader or ShadeReader(), in_batches=in_batches)
    return read_page(ReadTask(Image(pixels, "png"), ReadOptions(**options)), page_reader)


def turned(pixels: Pixels, quads: Sequence[Quad], clockwise: int) -> tuple[Pixels, list[Quad]]:
    """Turn the page and its quads; corners go clockwise from the top left, as a detector returns them."""
    places = [turn_points(quad, clockwise, WIDTH, HEIGHT) for quad in quads]
    return turn(pixels, clockwise), [np.roll(quad, -int(np.argmin(quad.sum(axis=1))), axis=0) for quad in places]


LINES = ((10, 20), (150, 22), (10, 60), (10, 100), (150, 100), (10, 140))
IN_ORDER = "\n".join(str(LEFT + number) for number in range(len(LINES)))


@pytest.mark.parametrize("degrees", [0, 90, 180])
def test_ruled_cells_are_read_one_after_the_other(degrees: int) -> None:
    pixels, quads = page_of((10, 20), (10, 40), (10, 60), (160, 20), (160, 40), (160, 60))
    for left, right in ((4, 150), (150, 290)):
        pixels[[10, 90], left:right] = 0
        pixels[10:90, [left, right]] = 0
    assert read(*turned(pixels, quads, -degrees % 360)).text == IN_ORDER


def test_a_fixed_rotation_disables_the_orientation_search() -> None:
    reader = ShadeReader()
    page = read(*turned(*page_of(*LINES), 180), reader, rotate="0", min_confidence=0.0)
    assert {line.text for line in page.lines} == {"junk"}
    assert reader.lines_read == len(LINES)


def test_a_single_line_upside_down_on_an_upright_page_is_still_read() -> None:
    pixels, quads = page_of(*LINES)
    pixels[140:156, 10:70], pixels[140:156, 70:130] = RIGHT, LEFT + 5
    page = read(pixels, quads)
    assert (page.text, page.angle) == (IN_ORDER, 0)


def test_lines_below_min_confidence_are_left_out() -> None:
    assert read(*page_of(*LINES), min_confidence=0.96).lines == ()


@pytest.mark.parametrize("detect", [True, False])
def test_a_page_without_detected_lines_is_read_as_one_line(*, detect: bool) -> None:
    pixels, quads = page_of(*LINES)
    pixels[:, : WIDTH // 2], pixels[:, WIDTH // 2 :] = 150, 50
    page = read(pixels, [] if detect else quads, detect=detect)
    assert (page.text, page.lines[0].box) == ("150", ((0, 0), (WIDTH, 0), (WIDTH, HEIGHT), (0, HEIGHT)))


def test_rows_of_a_slanted_page_stay_rows() -> None:
    pixels, quads = page_of((10, 20), (160, 20), (10, 44), (160, 44))
    slant = np.float32(np.tan(np.radians(6.0)))
    slanted = [(quad + np.stack([np.zeros(4), quad[:, 0] * slant], axis=1)).astype(np.float32) for quad in quads]
    drawn: Pixels = np.full((HEIGHT + 60, WIDTH + 60), 255, np.uint8)
    for x in range(WIDTH):
        shift = round(x * float(slant))
        drawn[shift : shift + HEIGHT, x] = pixels[:, x]
    assert read(drawn, slanted).text == "\n".join(str(LEFT + number) for number in range(4))


# Two columns; a detector may join their lines across the gutter.
FIRST, SECOND, TOPS = (20, 280), (320, 580), range(20, 220, 30)


def drawn(*columns: tuple[int, int]) -> NDArray[np.uint8]:
    pixels = np.full((240, 600, 3), 255, np.uint8)
    for begin, end in columns:
        for top in TOPS:
            for x in range(begin, end, 5):
                pixels[top + 6 : top + 14, x : x + 2] = 20
    return pixels


def quad(begin: int, end: int, top: int) -> NDArray[np.float32]:
    return rectangle(begin, top, end, top + 20)


def test_a_line_across_a_gutter_is_split_where_the_next_column_begins() -> None:
    lines = [quad(*column, top) for top in TOPS[1:] for column in (FIRST, SECOND)]
    parts = split_joined_lines(drawn(FIRST, SECOND), [quad(20, 580, 20), *lines])
    assert len(parts) == len(lines) + 2
    ends = [(part[:, 0].min(), part[:, 0].max()) for part in parts[:2]]
    assert ends == [pytest.approx(FIRST, abs=6), pytest.approx(SECOND, abs=6)]


@pytest.mark.parametrize("columns", [((20, 580),), (FIRST, SECOND)], ids=["text", "a gap where no column begins"])
def test_other_lines_stay_whole(columns: tuple[tuple[int, int], ...]) -> None:
    lines = [quad(20, 580, top) for top in TOPS]
    assert len(split_joined_lines(drawn(*columns), lines)) == len(lines)
