"""Page layout: the regions of the model, their lines, and boxes in display coordinates."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ppocr_support import give_up_at
from table_pages import Sheet, draw_paragraph, draw_table, finish

from ocrsvc.engines.layout.regions import LAYOUT_MODEL, TYPES, FoundRegion, assign_lines, find_regions
from ocrsvc.engines.on_demand_model import OnDemandModel
from ocrsvc.engines.open_engine import open_engine_in_process
from ocrsvc.errors import DeadlineExceeded, EngineFailed
from ocrsvc.imaging.geometry import turn
from ocrsvc.results import Box, Image, Line, Page, Pixels, ReadOptions, ReadTask, no_check
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

SQUARE: Box = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))


def line_at(x: float, y: float, width: float = 100, height: float = 20) -> Line:
    return Line("x", 0.9, ((x, y), (x + width, y), (x + width, y + height), (x, y + height)))


PAGE = Page(400, 400, 0, (line_at(10, 10), line_at(10, 50), line_at(10, 80), line_at(200, 300), line_at(200, 330)))
TITLE = FoundRegion("title", 0.9, (5.0, 5.0, 150.0, 35.0))
TEXT = FoundRegion("text", 0.8, (5.0, 45.0, 150.0, 110.0))
FIGURE = FoundRegion("figure", 0.7, (5.0, 120.0, 150.0, 250.0))


def test_lines_belong_to_the_region_that_contains_them_and_other_lines_are_text() -> None:
    regions = assign_lines(PAGE, [TITLE, TEXT, FIGURE])
    assert [(region.type, region.confidence, region.lines) for region in regions] == [
        ("title", 0.9, (0,)),
        ("text", 0.8, (1, 2)),
        ("figure", 0.7, ()),
        ("text", 0.0, (3, 4)),
    ]
    assert regions[0].box == ((5.0, 5.0), (150.0, 5.0), (150.0, 35.0), (5.0, 35.0))
    assert regions[3].box == ((200.0, 300.0), (300.0, 300.0), (300.0, 350.0), (200.0, 350.0))
    large = FoundRegion("table", 0.6, (0.0, 0.0, 400.0, 400.0))
    regions = assign_lines(PAGE, [TITLE, TEXT, large])
    assert [(region.type, region.lines) for region in regions] == [("title", (0,)), ("text", (1, 2)), ("table", (3, 4))]


def test_a_line_without_area_is_in_no_region() -> None:
    found = [FoundRegion("title", 0.9, (0, 0, 10, 10)), FoundRegion("text", 0.8, (0, 50, 100, 100))]
    page = Page(100, 100, 0, (Line("x", 0.9, ((50.0, 20.0), (50.0, 20.0), (50.0, 28.0), (50.0, 28.0))),))
    assert [(region.type, region.confidence, region.lines) for region in assign_lines(page, found)] == [
        ("title", 0.9, ()),
        ("text", 0.0, (0,)),
        ("text", 0.8, ()),
    ]


def test_pages_without_regions_or_lines_are_handled() -> None:
    (whole,) = assign_lines(PAGE, [])
    assert (whole.type, whole.lines) == ("text", (0, 1, 2, 3, 4))
    (figure,) = assign_lines(replace(PAGE, lines=()), [FIGURE])
    assert (figure.type, figure.lines) == ("figure", ())
    assert assign_lines(replace(PAGE, lines=()), []) == ()


def test_regions_of_a_turned_page_are_in_display_coordinates() -> None:
    # The page is 400 px wide and 300 px high when upright, and displayed rotated by 90 degrees.
    page = Page(300, 400, 270, ())
    (region,) = assign_lines(page, [FoundRegion("figure", 0.5, (10.0, 20.0, 110.0, 70.0))])
    assert region.box == ((280.0, 10.0), (280.0, 110.0), (230.0, 110.0), (230.0, 10.0))


def drawn() -> tuple[Pixels, Page]:
    sheet, random_ = Sheet("zh", 24), random.Random(5)
    y = draw_paragraph(sheet, random_, 120, 200, 1000, 8) + 60
    y = draw_table(sheet, random_, "ruled", 120, y, 1000) + 60
    draw_paragraph(sheet, random_, 120, y, 1000, 8)
    page = finish(sheet, "", 0.0)
    return page.pixels, page.page


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_the_model_finds_text_and_a_table(degrees: int) -> None:
    pixels, page = drawn()
    regions = assign_lines(page, find_regions(np.ascontiguousarray(turn(pixels, degrees)), -degrees % 360, no_check))
    tables = [region for region in regions if region.type == "table"]
    assert (len(TYPES), len(tables), tables[0].confidence > 0.8) == (10, 1, True)
    inside = {page.lines[number].text for number in tables[0].lines}
    paragraphs = {line.text for line in page.lines if line.box[1][0] - line.box[0][0] > 500}
    assert len(inside) > 8
    assert not inside & paragraphs


def test_a_cancelled_request_stops_waiting_for_the_layout_model() -> None:
    with LAYOUT_MODEL._turn, pytest.raises(DeadlineExceeded):
        find_regions(np.zeros((50, 50), np.uint8), 0, give_up_at(1))


def test_without_onnx_runtime_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EngineFailed, match="onnxruntime") as failure:
        OnDemandModel(Path("none.onnx"), "layout").run(np.zeros((1, 3, 50, 50), np.float32))
    assert "extra cpu" in failure.value.remedy


def test_every_engine_returns_regions_on_request() -> None:
    handle = open_engine_in_process(Settings(engine="fake"), ThreadPlan(1, 1, 1)).open_handle()
    image = Image(np.full((400, 300), 255, np.uint8), "png")
    [plain, asked] = handle.read([ReadTask(image), ReadTask(image, ReadOptions(layout=True))])
    assert isinstance(plain, Page)
    assert isinstance(asked, Page)
    assert plain.regions == ()
    assert sorted(line for region in asked.regions for line in region.lines) == [0, 1]
