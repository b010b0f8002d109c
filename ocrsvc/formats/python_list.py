"""Writes a page as the Python list that Paddle Serving's clients hand to eval()."""

from __future__ import annotations

from ocrsvc.formats.box_values import to_boxes, to_scores
from ocrsvc.formats.json_lines import fill_template, python_number_column, python_row_column
from ocrsvc.records import Page


def to_result(page: Page) -> str:
    """[[(text, score), corners], ...] as Python writes it: `eval` gives exactly that back, whatever was read."""
    lines = page.lines
    texts = [repr(line.text) for line in lines]
    boxes = python_row_column(to_boxes(lines).round(1))
    items = fill_template(", [(%, %), [[%]]]", texts, python_number_column(to_scores(lines)), boxes)
    return f"[{items[2:]}]"
