"""Tables: found on drawn pages with known cells, mapped to image coordinates, escaped as HTML and Markdown."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_support import box, noise
from table_pages import KINDS, DrawnPage, TrueCell, draw_page

from ocrsvc.errors import ClientGone
from ocrsvc.formats.markup import to_html, to_markdown
from ocrsvc.imaging.geometry import as_box, restore_page, turn, turn_points
from ocrsvc.imaging.tables.aligned_grids import find_stacked_grids
from ocrsvc.imaging.tables.find_tables import find_tables
from ocrsvc.imaging.tables.text_grid import TextBlock
from ocrsvc.results import Cell, Line, Page, Pixels, Region, Table, no_check

SQUARE = box(0.0, 0.0, 1.0, 1.0)
WITHOUT = ("two_columns", "letter")


def blank(height: int = 400, width: int = 600) -> Pixels:
    return np.full((height, width), 255, np.uint8)


def line_at(x: float, y: float, text: str, width: float = 60, height: float = 20) -> Line:
    return Line(text, 0.9, box(x, y, x + width, y + height))


def cells_of(cells: Sequence[TrueCell | Cell]) -> list[tuple[int, int, int, int, str]]:
    return sorted((cell.row, cell.column, cell.row_span, cell.column_span, cell.text) for cell in cells if cell.text)


def found_on(drawn: DrawnPage) -> list[list[tuple[int, int, int, int, str]]]:
    return sorted(cells_of(table.cells) for table in find_tables(drawn.pixels, drawn.page, no_check))


@pytest.mark.parametrize("slant", [0.0, 3.0, -5.0])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WITHOUT])
def test_the_cells_of_a_drawn_table_are_found(kind: str, slant: float) -> None:
    drawn = draw_page(kind, 1, slant)
    assert found_on(drawn) == sorted(map(cells_of, drawn.tables))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", WITHOUT)
def test_a_page_without_tables_has_none(kind: str, seed: int) -> None:
    assert found_on(draw_page(kind, seed)) == []


def test_text_columns_between_rules_are_not_a_table() -> None:
    # Lower boxes make the gaps between characters wide in relation to the box height.
    drawn = draw_page("two_columns", 2000)
    lines = []
    for line in drawn.page.lines:
        (left, top), _, (right, bottom), _ = line.box
        inner = 0.15 * (bottom - top)
        lines.append(line_at(left, top + inner, line.text, right - left, bottom - top - 2 * inner))
    assert find_tables(drawn.pixels, replace(drawn.page, lines=tuple(lines)), no_check) == ()


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_table_on_a_turned_page_has_image_coordinates(degrees: int) -> None:
    drawn = draw_page("spans", 2)
    width, height = drawn.page.width, drawn.page.height
    boxes = [turn_points(np.array(line.box, np.float32), degrees, width, height) for line in drawn.page.lines]
    lines = tuple(replace(line, box=as_box(box)) for line, box in zip(drawn.page.lines, boxes, strict=True))
    page = Page(*((height, width) if degrees % 180 else (width, height)), -degrees % 360, lines)
    (turned,) = find_tables(np.ascontiguousarray(turn(drawn.pixels, degrees)), page, no_check)
    (upright,) = find_tables(drawn.pixels, drawn.page, no_check)
    assert cells_of(turned.cells) == cells_of(upright.cells)
    expected = turn_points(np.array(upright.box, np.float32), degrees, width, height)
    assert np.abs(np.array(turned.box) - expected).max() < 4


@pytest.mark.parametrize(("kind", "seed", "slant"), [("ruled", 4, 3.0), ("spans", 3, 0.0)])
def test_cells_cover_the_grid_once_and_contain_their_lines(kind: str, seed: int, slant: float) -> None:
    drawn = draw_page(kind, seed, slant)
    (table,) = find_tables(drawn.pixels, drawn.page, no_check)
    seen = [number for cell in table.cells for number in cell.lines]
    assert len(seen) == len(set(seen))
    covered = np.zeros((table.rows, table.columns), int)
    for cell in table.cells:
        covered[cell.row : cell.row + cell.row_span, cell.column : cell.column + cell.column_span] += 1
        outline = np.array(cell.box, np.float32)
        for number in cell.lines:
            x, y = np.mean(drawn.page.lines[number].box, axis=0).tolist()
            assert cv2.pointPolygonTest(outline, (x, y), measureDist=False) >= 0
    assert (covered == 1).all()


def scattered() -> list[Line]:
    places = np.random.default_rng(3).uniform(0, 1, (60, 2)) * (1100, 1500)
    return [line_at(x, y, "word") for x, y in places.tolist()]


@pytest.mark.parametrize(
    "lines",
    [[line_at(x * 90.0, y * 30.0, "") for y in range(4) for x in range(3)], scattered()],
    ids=("empty", "scattered"),
)
def test_empty_or_unordered_lines_are_not_a_table(lines: Sequence[Line]) -> None:
    assert find_tables(blank(1600, 1200), Page(1200, 1600, 0, tuple(lines)), no_check) == ()


def test_a_color_page_and_a_large_one_have_the_same_tables_as_the_gray_one() -> None:
    drawn = draw_page("ruled", 5)
    (table,) = find_tables(drawn.pixels, drawn.page, no_check)
    colour = np.asarray(cv2.cvtColor(drawn.pixels, cv2.COLOR_GRAY2BGR), np.uint8)
    assert find_tables(colour, drawn.page, no_check) == (table,)
    large = np.asarray(cv2.resize(drawn.pixels, None, fx=3, fy=3, interpolation=cv2.INTER_CUBIC), np.uint8)
    page = restore_page(drawn.page, 0, drawn.page.width * 3, drawn.page.height * 3)
    (enlarged,) = find_tables(large, page, no_check)
    assert cells_of(enlarged.cells) == cells_of(table.cells)
    assert np.abs(np.array(enlarged.box) / 3 - np.array(table.box)).max() < 4


def test_the_search_ends_when_its_client_is_gone() -> None:
    drawn = draw_page("ruled", 1)
    with pytest.raises(ClientGone):
        find_tables(drawn.pixels, drawn.page, Mock(side_effect=ClientGone("The client has disconnected.")))


def hatching(height: int, width: int, every: int) -> Pixels:
    pixels = blank(height, width)
    pixels[::every] = 0
    pixels[:, ::every] = 0
    return pixels


def frames_in_frames() -> Pixels:
    pixels = blank(2000, 2000)
    for at in range(0, 900, 9):
        cv2.rectangle(pixels, (at, at), (1999 - at, 1999 - at), 0, 1)
    return pixels


BUSY: dict[str, tuple[Callable[[], Pixels], list[tuple[float, float]]]] = {
    "thousands of words in rows": (
        lambda: blank(2400, 2400),
        [(x * 55.0, y * 30.0) for y in range(79) for x in range(43)],
    ),
    "graph paper": (lambda: hatching(2400, 2400, 12), [(x * 200.0, y * 100.0) for y in range(24) for x in range(12)]),
    "a grid of 100 x 100": (
        lambda: hatching(2400, 2400, 24),
        [(x * 24.0, y * 24.0) for y in range(100) for x in range(100)],
    ),
    "frames in frames": (frames_in_frames, [(x * 55.0, y * 200.0) for y in range(10) for x in range(36)]),
    "noise": (lambda: noise(1, 2000, 2000), [(9.0, y * 2.0) for y in range(999)]),
}


@pytest.mark.parametrize("name", BUSY)
def test_hostile_pages_take_at_most_5_seconds(name: str) -> None:
    draw, places = BUSY[name]
    find_within(5, draw(), [line_at(x, y, "x", width=20, height=10) for x, y in places])


def find_within(max_s: float, pixels: Pixels, lines: Sequence[Line]) -> tuple[Table, ...]:
    began_s = time.thread_time()
    found = find_tables(pixels, Page(pixels.shape[1], pixels.shape[0], 0, tuple(lines)), no_check)
    assert time.thread_time() - began_s < max_s
    return found


def test_a_pattern_of_thousands_of_segments_is_skipped() -> None:
    # Lines of a hundred words with a gap after each word.
    pixels = blank(8 * 280, 2400)
    pixels[:, np.arange(2400) % 24 > 11] = 0
    pixels[::8] = pixels[7::8] = 255
    lines = [line_at(0, y * 8.0, "ab " * 100, width=2400, height=8) for y in range(280)]
    assert find_within(1, pixels, lines) == ()
    # Columns one pixel wide.
    places = [(x * 3, y * 4) for y in range(4) for x in range(750)]
    pixels = blank(40, 3 * 750)
    for x, y in places:
        pixels[y : y + 3, x] = 0
    assert find_within(1, pixels, [line_at(x, y, "x", width=1.5, height=3) for x, y in places]) == ()


def test_stacked_rules_of_many_extents_are_skipped() -> None:
    places = np.random.default_rng(5).uniform(0, 2300, (3000, 2))
    frames = np.concatenate([places, np.add(places, (20, 8))], axis=1).tolist()
    steps = np.arange(500)
    lefts, widths = 10 + steps * 10 % 1100, 60 + steps * 2
    segments = [np.stack([lefts, np.full(500, top), widths, np.ones(500, int)], axis=1) for top in (5, 2390)]
    checks = list[int]()
    began_s = time.thread_time()
    block = TextBlock(frames, range(3000), 8.0)
    grids = list(find_stacked_grids(block, np.concatenate(segments).astype(np.int32), lambda: checks.append(1)))
    assert time.thread_time() - began_s < 1
    assert len(checks) >= len(grids)


SMALL_TABLE = Table(
    SQUARE,
    2,
    2,
    (
        Cell(0, 0, 1, 2, SQUARE, "a | b", (0,)),
        Cell(1, 0, 1, 1, SQUARE, "<script>alert(1)</script>", (1, 2)),
        Cell(1, 1, 1, 1, SQUARE, "one\ntwo", ()),
    ),
)


def test_html_and_markdown_have_spans_and_escape_text() -> None:
    assert to_html(SMALL_TABLE) == (
        '<table><tr><td colspan="2">a | b</td></tr>'
        "<tr><td>&lt;script&gt;alert(1)&lt;/script&gt;</td><td>one<br/>two</td></tr></table>"
    )
    assert to_markdown(SMALL_TABLE) == (
        "| a \\| b |  |\n| --- | --- |\n| \\<script\\>alert(1)\\</script\\> | one<br>two |"
    )


ANY_TEXT = st.text(st.characters(exclude_categories=()) | st.sampled_from("<>&\"'|\\`\t\r\n\x00\x85\u2028"))


@given(ANY_TEXT)
def test_any_text_stays_in_its_table_cell(text: str) -> None:
    table = Table(SQUARE, 1, 1, (Cell(0, 0, 1, 1, SQUARE, text, ()),))
    (cell,) = ET.fromstring(to_html(table)).iter("td")
    assert [child.tag for child in cell] == ["br"] * (len(text.splitlines()) - 1 if text.splitlines() else 0)
    heading, rule = to_markdown(table).split("\n")
    assert rule == "| --- |"
    assert heading.replace("\\\\", "").replace("\\|", "").count("|") == 2


def test_tables_and_regions_are_mapped_to_the_image_with_their_page() -> None:
    region = Region("title", 0.5, SQUARE, (0,))
    page = Page(50, 100, 0, (line_at(1, 1, "x"),) * 3, tables=(SMALL_TABLE,), regions=(region,))
    back = restore_page(page, 90, width=200, height=100)
    assert back.tables[0].box == back.regions[0].box == ((0.0, 100.0), (0.0, 98.0), (2.0, 98.0), (2.0, 100.0))
    assert back.tables[0].cells[2].box == back.tables[0].box
