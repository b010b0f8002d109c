"""Writes pages as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page


def write_text(pages: Iterable[Page], _count: int, _engine: EngineInfo) -> Iterator[str]:
    """Each page's lines, each line ended by a newline; pages are separated by a form feed."""
    for at, page in enumerate(pages):
        yield ("\f" if at else "") + "".join(f"{line.text}\n" for line in page.lines)


def to_bar_separated(page: Page) -> str:
    """Each line's text followed by a bar, in one string: the form that TrWebOCR.cpp answers."""
    return "".join([f"{line.text}|" for line in page.lines])
