"""Divides what was read on a page into the runs that are written over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ocrsvc.imaging.bidirectional_text import visual_order
from ocrsvc.records import Page
from ocrsvc.searchable_pdf.page_text import PageText, Run

Corners = Sequence[Sequence[float]]


def text_of(page: Page) -> PageText:
    """What is written over a page that was read."""
    runs = [
        run
        for line in page.lines
        for run in _runs_of(line.text, line.box, [(word.text, word.box) for word in line.words or ()])
    ]
    return PageText(page.number, page.width, page.height, runs)


def text_of_record(page: Mapping[str, Any]) -> PageText:
    """The same of a page as `formats.json_values` has it."""
    runs = [
        run
        for line in page["lines"]
        for run in _runs_of(line["text"], line["box"], [(word["text"], word["box"]) for word in line.get("words", ())])
    ]
    return PageText(page["page"], page["width"], page["height"], runs)


def _runs_of(text: str, box: Corners, words: Sequence[tuple[str, Corners]]) -> Iterable[Run]:
    """What a line is written in: word by word where its words are known, with the blanks after them.

    Readers of PDFs expect text from right to left as it stands, and turn it round themselves; such a line is one run.
    """
    if (shown := visual_order(text)) != text:
        return [(shown, _flat(box))]
    begins = _begins_of([word for word, _ in words], text)
    if not begins:
        return [(text, _flat(box))] if text else []
    ends = [*begins[1:], len(text)]
    return [
        (text[begin:end], _widened(_flat(corners), (end - begin) / len(word)))
        for (word, corners), begin, end in zip(words, begins, ends, strict=True)
    ]


def _begins_of(words: Sequence[str], text: str) -> list[int]:
    """Where in the text each word begins; nothing where the text is more than its words and blanks."""
    begins, at = [], 0
    for word in words:
        begin = text.find(word, at)
        if begin < 0 or not word or text[at:begin].strip():
            return []
        begins.append(begin)
        at = begin + len(word)
    return begins if not text[at:].strip() else []


def _flat(box: Corners) -> list[float]:
    return [number for corner in box for number in corner]


def _widened(box: Sequence[float], by: float) -> list[float]:
    """A box that goes on along its line, so many times as wide."""
    x0, y0, x1, y1, x2, y2, x3, y3 = box
    upper, lower = (x0 + (x1 - x0) * by, y0 + (y1 - y0) * by), (x3 + (x2 - x3) * by, y3 + (y2 - y3) * by)
    return [x0, y0, *upper, *lower, x3, y3]
