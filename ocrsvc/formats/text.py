"""Writes pages as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page


def to_text(pages: Sequence[Page], _engine: EngineInfo) -> str:
    """Each page's lines, each line ended by a newline; pages are separated by a form feed."""
    return "\f".join("".join(f"{line.text}\n" for line in page.lines) for page in pages)


def to_bar_separated(page: Page) -> str:
    """Each line's text followed by a bar, in one string: the form that TrWebOCR.cpp answers."""
    return "".join([f"{line.text}|" for line in page.lines])
