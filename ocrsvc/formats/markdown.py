"""Writes pages as Markdown (CommonMark with tables), escaped so that no text is taken for markup, HTML or a link."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from ocrsvc.formats.letter_sizes import BodySize
from ocrsvc.formats.paragraphs import BULLET, NUMBER, Block, blocks_of
from ocrsvc.formats.table_markup import to_markdown
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page

# Within a line, whatever stands around them.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<~$]|&(?=#?\w{1,32};))")
# At the beginning of a block: headings, quotations, lists, rules, numbers of lists.
_BEGINNING: Final = re.compile(r"^(?=[#>+\-=:|])|^(\d{1,9})(?=[.)](?:\s|$))")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HYPHENS: Final = "-\u00ad\u2010"
_HYPHENATED: Final = re.compile(rf"[^\W\d_][{_HYPHENS}]$")
_LETTER: Final = re.compile(r"[^\W\d_]")
_DENSE: Final = re.compile(
    "[\u2018-\u201d\u2026\u2e80-\u312f\u31a0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff]"
)
"""Chinese and Japanese characters and their punctuation, between which lines break without a blank."""


def write_markdown(pages: Iterable[Page], _count: int, _engine: EngineInfo) -> Iterator[str]:
    """Each page's headings, paragraphs, lists and tables; a comment with its number before each page but the first."""
    bodies = _Bodies()
    for at, page in enumerate(pages):
        written = _written(blocks_of(page, bodies.of(page)))
        yield (f"\n<!-- page {page.number} -->\n\n" if at else "") + written


def page_to_markdown(page: Page) -> str:
    """One page by itself; "" for one without text."""
    return _written(blocks_of(page))


class _Bodies:
    """How large running text is in the pages so far, by their size: a title page has hardly any of its own."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], BodySize] = {}

    def of(self, page: Page) -> BodySize:
        """That of the pages of this page's size, with it."""
        return self._sizes.setdefault((page.width, page.height), BodySize()).add(page)


def _written(blocks: Sequence[Block]) -> str:
    """The blocks with a blank line between them, but for items of one list."""
    parts: list[str] = []
    number = 0
    for at, block in enumerate(blocks):
        text, counted = _block(block, number)
        if at:
            is_list = block.kind == blocks[at - 1].kind == "item" and bool(counted) == bool(number)
            parts.append("\n" if is_list else "\n\n")
        parts.append(text)
        number = counted
    return "".join(parts) + ("\n" if parts else "")


def _block(block: Block, number: int) -> tuple[str, int]:
    """What is written, and the number of an item, if it has one that Markdown can count.

    Args:
        block: What is to be written.
        number: Of the item before; 0 for none.
    """
    if block.table is not None:
        return to_markdown(block.table), 0
    text = join_lines(block.lines)
    if block.kind == "heading":
        return f"{'#' * block.level} {_inline(text)}", 0
    if block.kind == "item":
        return _item(text, number)
    return _begun(text), 0


def _item(text: str, number: int) -> tuple[str, int]:
    if bullet := BULLET.match(text):
        return f"- {_begun(text[bullet.end() :])}", 0
    found = NUMBER.match(text)
    if found is None:
        return f"- {_begun(text)}", 0
    own = int(found[1])
    # Markdown counts by itself: where a number is missing it would show others.
    if number and own != number + 1:
        return _begun(text), 0
    return f"{own}{found[2]} {_begun(text[found.end() :])}", own


def join_lines(lines: Sequence[str]) -> str:
    """The text of lines that go on: a word divided by a hyphen is whole, and Chinese has no blanks between lines."""
    parts = [lines[0]] if lines else []
    for one, other in pairwise(lines):
        if _HYPHENATED.search(one) and _LETTER.match(other):
            word = one.rsplit(" ", 1)[-1][:-1]
            # A capital or another hyphen shows that this one belongs to the word.
            if other[0].islower() and not any(hyphen in word for hyphen in _HYPHENS):
                parts[-1] = parts[-1][:-1]
        elif not (_DENSE.match(one[-1:]) or _DENSE.match(other)):
            parts.append(" ")
        parts.append(other)
    return "".join(parts)


def _begun(text: str) -> str:
    """A text at the beginning of a block, escaped."""
    # What is no sign becomes a blank, which would hide the beginning.
    inline = _inline(text).strip()
    return _BEGINNING.sub(lambda found: f"{found[0]}\\", inline, count=1)


def _inline(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", _CONTROL.sub(" ", text))
