"""Writes what tools answer: the text of pages within a number of letters, and a note on what is left."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ocrsvc.errors import OcrsvcError
from ocrsvc.formats.document import DocumentResult, write_document
from ocrsvc.formats.json_values import page_to_dict
from ocrsvc.imaging.page_ranges import Ranges, choose
from ocrsvc.mcp_server.page_sources import PageResult
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page, no_check

_NOWHERE = EngineInfo("", "", "", "", "", "")


@dataclass(slots=True)
class DocumentText:
    """The text of a document, as its pages come.

    Attributes:
        format: Of the pages' texts: text or md.
        most_letters: How many letters it takes; what does not fit is left out and named in the note.
        ranges: Which pages are asked for.
        parts: What there is so far.
        read: The numbers of the pages in it.
        total: How many the document has.
    """

    format: str
    most_letters: int
    ranges: Ranges
    parts: list[str] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    total: int = 0

    def add(self, page: PageResult) -> bool:
        """Take a page; False where it does not fit any more, so that no further one is worth reading."""
        self.total = page.total
        text = page_text(page.outcome, self.format)
        left = self.most_letters - sum(map(len, self.parts))
        if self.read and len(text) > left:
            return False
        self.read.append(page.number)
        heading = f"--- page {page.number} of {page.total} ---\n" if page.total > 1 else ""
        self.parts.append(heading + cut(text, left))
        return True

    def text(self) -> str:
        """All of it, with a note on the pages that are left."""
        left = [number for number in choose(self.ranges, self.total) if number not in set(self.read)]
        note = f"[{len(left)} more of the pages asked for were not read; call again with pages={shown(left)!r}.]"
        return "\n".join([*self.parts, *([note] if left else [])])


def page_text(outcome: Page | OcrsvcError, form: str) -> str:
    """The text of a page, or why there is none."""
    if isinstance(outcome, OcrsvcError):
        return f"[This page cannot be read: {outcome}]\n"
    if not outcome.lines:
        return "[No text on this page.]\n"
    whole = io.BytesIO()
    write_document(form, DocumentResult(b"", [outcome], 1, _NOWHERE), whole, math.inf, no_check)
    return whole.getvalue().decode().rstrip("\n\f") + "\n"


def cut(text: str, most_letters: int) -> str:
    """The text, or its beginning with a note."""
    if len(text) <= most_letters:
        return text
    return f"{text[:most_letters]}\n[Cut after {most_letters} of {len(text)} letters (--most-letters).]\n"


def shown(numbers: Sequence[int]) -> str:
    """Page numbers as ranges, the way `pages` takes them; at most a hundred of these."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:100])


def lines_of(page: Page, most: int, *, words: bool) -> dict[str, Any]:
    """The lines of a page with their places in pixels, at most so many; `lines_total` says how many there are."""
    members = page_to_dict(page, page.number)
    listed: Any = members["lines"]
    for line in () if words else listed:
        line.pop("words", None)
    kept = {name: members[name] for name in ("width", "height", "angle")}
    return {**kept, "lines": listed[:most], "lines_total": len(page.lines)}
