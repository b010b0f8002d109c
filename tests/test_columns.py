"""Is what is woven from columns the same JSON, and the same Python, that the standard library writes line by line?"""

from __future__ import annotations

import json

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ocrsvc.formats.box_values import to_boxes
from ocrsvc.formats.json_lines import (
    as_text,
    column,
    fill_template,
    json_list,
    json_object,
    python_number_column,
    python_row_column,
    row_column,
    text_column,
)
from ocrsvc.records import Line

POINTS = st.tuples(st.integers(-99, 6_553_599), st.integers(-99, 6_553_599)).map(lambda at: (at[0] / 100, at[1] / 100))
BOXES = st.tuples(POINTS, POINTS, POINTS, POINTS)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text('",\\ \n[]')
BOX = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.builds(Line, TEXTS, st.floats(0, 1), BOXES), max_size=5))
@example([Line('ends like a text",', 0.5, BOX), Line(',"', 0.5, BOX), Line(',\n  "', 0.5, BOX), Line("%", 0.5, BOX)])
def test_woven_json_is_read_back_as_the_lines_that_were_woven(lines: list[Line]) -> None:
    texts, numbers = text_column(lines), column([line.confidence for line in lines])
    boxes = row_column(to_boxes(lines))
    listed = orjson.dumps(json_list(b'{"a":%,"b":[[%]],"c":%}', texts, boxes, numbers))
    expected = [{"a": line.text, "b": [list(at) for at in line.box], "c": line.confidence} for line in lines]
    assert json.loads(listed) == expected
    named = orjson.dumps(json_object(b'"%":%', column(list(range(len(lines)))), texts))
    assert json.loads(named) == {str(number): line.text for number, line in enumerate(lines)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1) | st.floats(0, 0.001), max_size=5))
@example([0.0001, 0.00009999])
def test_numbers_are_written_as_python_writes_them(numbers: list[float]) -> None:
    assert python_number_column(numbers) == [repr(number) for number in numbers]


@settings(max_examples=100, deadline=None)
@given(st.lists(BOXES, min_size=1, max_size=3))
def test_boxes_are_written_as_python_writes_them(boxes: list[tuple[tuple[float, float], ...]]) -> None:
    expected = [[list(corner) for corner in box] for box in boxes]
    assert [f"[[{row}]]" for row in python_row_column(np.array(boxes))] == [json.dumps(box) for box in expected]


@pytest.mark.parametrize("decimals", [1, 2])
def test_every_coordinate_of_the_largest_image_keeps_its_decimals(decimals: int) -> None:
    numbers = (np.arange(65_400 * 10**decimals, 65_536 * 10**decimals) / 10**decimals).round(decimals)
    assert json.loads(as_text(numbers)) == numbers.tolist()


@pytest.mark.parametrize(
    ("template", "columns"),
    [("%, %;", (["a", "b"], ["c"])), ("%;", (["a"], ["b"])), ("%, %;", (["a"],))],
    ids=["columns of different lengths", "more columns than places", "more places than columns"],
)
def test_columns_that_do_not_fit_are_refused(template: str, columns: tuple[list[str], ...]) -> None:
    with pytest.raises(ValueError, match=r"zip\(\) argument|extended slice"):
        fill_template(template, *columns)
