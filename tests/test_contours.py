"""Text lines found in hand-drawn probability maps: straight, fused and curved lines."""

import time

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from support import data_of

from ocrsvc.engines.ppocr.gpu.page_reader import CERTAIN, pack_map, unpack_map
from ocrsvc.engines.ppocr.pipeline.db_postprocess import MAP_THRESHOLD, find_lines, lines_from_map, lines_from_mask
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask
from ocrsvc.imaging.geometry import headings
from ocrsvc.imaging.text_contour import Outline, corners, ends, is_curved, turned_round
from ocrsvc.results import Pixels

Map = NDArray[np.float32]
Patch = tuple[int, int, int, int, float]
"""Left, top, right, bottom, and the probability inside."""


def drawn_map(*rectangles: tuple[int, int, int, int], size: tuple[int, int] = (64, 160)) -> Map:
    """A probability map of size (height, width) with 0.9 inside each rectangle (left, top, right, bottom)."""
    table = np.zeros(size, np.float32)
    for left, top, right, bottom in rectangles:
        table[top:bottom, left:right] = 0.9
    return table


def test_faint_shapes_and_specks_are_dropped_and_boxes_stay_inside_the_image() -> None:
    assert lines_from_map(drawn_map((30, 20, 130, 30)) * 0.45, 160, 64).outlines == []
    assert lines_from_map(drawn_map((30, 20, 31, 21)), 160, 64).outlines == []
    (quad,) = lines_from_map(drawn_map((0, 0, 160, 10)), 160, 64).outlines
    assert quad.min() >= 0
    assert (quad.max(axis=0) <= (160, 64)).all()


def test_small_text_gets_a_second_finer_pass_and_large_text_does_not() -> None:
    seen: list[int] = []

    def run(pixels: Pixels) -> Map:
        seen.append(pixels.shape[-1])
        return (pixels < 128).astype(np.float32)

    for height, passes in ((60, 1), (5, 2)):
        page = np.full((704, 704), 255, np.uint8)
        page[100 : 100 + height, 20:680] = 0
        seen.clear()
        find_lines(page, run)
        assert (seen[0], len(seen)) == (704, passes)
    assert seen[1] > 704


@pytest.mark.parametrize(
    ("bars", "finer"),
    [
        ({(20, 30, 300, 35): 0, (20, 60, 300, 65): 0}, (128, 640)),  # all text in a corner
        ({(20, 30, 300, 35): 0, (300, 660, 400, 665): 250}, (1344, 832)),  # a faint footer far from it
        ({(0, 0, 704, 5): 0, (0, 699, 704, 704): 0}, (1536, 1536)),  # text at all sides, at most 1,536 px
        ({}, None),
    ],
)
def test_second_pass_leaves_out_margins_without_any_text(
    bars: dict[tuple[int, int, int, int], int], finer: tuple[int, int] | None
) -> None:
    sizes: list[tuple[int, ...]] = []

    def run(pixels: Pixels) -> Map:
        """Faint text has a low probability on the first pass only."""
        sizes.append(pixels.shape)
        inked: Map = (255 - pixels).astype(np.float32) / np.float32(255)
        return inked if len(sizes) == 1 else np.ceil(inked)

    page = np.full((704, 704), 255, np.uint8)
    for (left, top, right, bottom), gray in bars.items():
        page[top:bottom, left:right] = gray
    last = LastMask()
    outlines = sorted(find_lines(page, run, last_mask=last), key=lambda line: line[0, 1])
    assert sizes[1:] == ([finer] if finer else [])
    assert last.mask.shape[0] >= (1408 if bars else 704)
    for outline, (left, top, right, bottom) in zip(outlines, bars, strict=True):
        assert np.allclose(outline.mean(axis=0), ((left + right) / 2, (top + bottom) / 2), atol=3)


WIDTH, HEIGHT = 320, 160
USUAL_LINES: tuple[Patch, ...] = ((8, 120, 100, 128, 0.9), (8, 140, 120, 148, 0.9), (160, 140, 220, 148, 0.9))
"""Single lines of 8 px that establish the page's usual thickness."""
COLUMN: tuple[Patch, ...] = (
    *((40, 10 + 10 * row, 52, 18 + 10 * row, 0.95) for row in range(5)),
    *((42, 18 + 10 * row, 50, 20 + 10 * row, 0.6) for row in range(4)),
)


def drawn(*patches: Patch) -> Map:
    table = np.zeros((HEIGHT, WIDTH), np.float32)
    for left, top, right, bottom, likely in (*patches, *USUAL_LINES):
        table[top:bottom, left:right] = likely
    return table


@pytest.mark.parametrize(("patches", "middles"), data_of("split_shapes")["shapes"])
def test_shapes_with_several_lines_are_split(patches: list[Patch], middles: list[tuple[int, int]]) -> None:
    found = [outline.mean(axis=0) for outline in lines_from_map(drawn(*patches), WIDTH, HEIGHT).outlines]
    above = sorted((float(y), float(x)) for x, y in found if y < 110)
    assert len(above) == len(middles)
    assert np.allclose(above, middles, atol=1.5)


@pytest.mark.parametrize("edge", [0.0, 0.2005])
def test_a_uint8_map_gives_the_same_lines(edge: float) -> None:
    table = drawn((39, 9, 53, 59, edge), *COLUMN)
    mask, likely = unpack_map(pack_map(np, table, MAP_THRESHOLD))
    packed = lines_from_mask(mask, likely, WIDTH, HEIGHT, certain=CERTAIN)
    assert np.array_equal(packed.outlines, lines_from_map(table, WIDTH, HEIGHT).outlines)


def test_nested_frames_are_scanned_in_limited_time() -> None:
    side, step = 2048, 12
    places = range(16, side // 2 - 20, step)
    found = np.zeros((side, side), np.float32)
    for place in places:
        cv2.rectangle(found, (place, place), (side - 1 - place, side - 1 - place), 0.95, 3)
    for number, place in enumerate(places[:-1], 1):
        # Every 3rd, 9th and 27th bridge is less probable, so groups of frames split level by level.
        bridge = min([0.8, *(level for count, level in ((3, 0.65), (9, 0.45), (27, 0.27)) if number % count == 0)])
        middle = found[side // 2 - 2 : side // 2 + 3, place + 2 : place + step - 1]
        np.maximum(middle, bridge, out=middle)
    began_s = time.thread_time()
    lines_from_map(found, side, side)
    # Scanning the whole map at every level takes 3 s.
    assert time.thread_time() - began_s < 1.5


SIZE = 400


def arc(radius: float, thickness: int, half_angle: float, turned: float = 0.0, middle_y: int = SIZE // 2) -> Map:
    """A map with a strip of 0.9 along an arc that bulges upwards; angles in degrees, `turned` clockwise."""
    table, middle = np.zeros((SIZE, SIZE), np.float32), (SIZE // 2, middle_y)
    begin, end = -90 - half_angle + turned, -90 + half_angle + turned
    cv2.ellipse(table, middle, (round(radius), round(radius)), 0, begin, end, 0.9, thickness)
    return table


def only_line(table: Map) -> Outline:
    (outline,) = lines_from_map(table, SIZE, SIZE).outlines
    return outline


@pytest.mark.parametrize(("turned", "direction"), [(0, 0), (90, 90), (180, 0), (270, 90)])
def test_a_curved_line_begins_at_its_left_or_top_end(turned: float, direction: int) -> None:
    outline = only_line(arc(150, 10, 40, turned))
    quad = corners(outline)
    assert headings(quad) == headings(ends(outline)) == direction
    assert headings(ends(turned_round(outline))) == headings(corners(turned_round(outline))) == direction + 180
    assert np.allclose(quad.min(axis=0), outline.min(axis=0), atol=1)
    assert np.allclose(quad.max(axis=0), outline.max(axis=0), atol=1)


def test_slanted_and_slightly_bent_lines_are_rectangles() -> None:
    slanted = cv2.line(np.zeros((SIZE, SIZE), np.float32), (50, 60), (350, 200), 0.9, 10)
    assert not is_curved(only_line(slanted.astype(np.float32)))
    assert not is_curved(only_line(arc(800, 10, 6, middle_y=900)))
