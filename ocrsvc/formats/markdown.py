"""Writes pages as Markdown (CommonMark with tables), escaped so that no text acts as markup, HTML or a link."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ocrsvc.formats.blocks import BULLET, NUMBER, Block, blocks_of
from ocrsvc.formats.letter_sizes import BodySize
from ocrsvc.results import EngineInfo, Page

# Characters that Markdown interprets anywhere in a line.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<~$]|&(?=#?\w{1,32};))")
# Markers that Markdown interprets at the beginning of a block: headings, quotations, lists, rules, list numbers.
_BEGINNING: Final = re.compile(r"^(?=[#>+\-=:|])|^(\d{1,9})(?=[.)](?:\s|$))")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def markdown_parts(pages: Iterable[Page], _count: int, _engine: EngineInfo) -> Iterator[str]:
    """Write pages as headings, paragraphs, lists and tables; `<!-- page N -->` precedes each page but the first."""
    for at, (page, text) in enumerate(markdown_by_page(pages)):
        yield (f"\n<!-- page {page.number} -->\n\n" if at else "") + text


def markdown_by_page(pages: Iterable[Page]) -> Iterator[tuple[Page, str]]:
    """Yield each page with its Markdown.

    Heading levels are relative to the paragraphs' text size on all pages of equal dimensions so far, because a title
    page has hardly any paragraphs.
    """
    bodies: dict[tuple[int, int], BodySize] = {}
    for page in pages:
        if page.markdown is not None:
            yield page, page.markdown
            continue
        body = bodies.setdefault((page.width, page.height), BodySize()).add(page)
        yield page, _written(blocks_of(page, body))


def _written(blocks: Sequence[Block]) -> str:
    """Join blocks with a blank line between them, but with none between the items of one list."""
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
    """Convert a block to Markdown; returns that and its list number (0: none). `number` is the previous block's."""
    match block.kind:
        case "table":
            return block.text, 0
        case "heading":
            return f"{'#' * block.level} {_inline(block.text)}", 0
        case "item":
            return _item(block.text, number)
        case _:
            return _begun(block.text), 0


def _item(text: str, number: int) -> tuple[str, int]:
    if bullet := BULLET.match(text):
        return f"- {_begun(text[bullet.end() :])}", 0
    marker = NUMBER.match(text)
    if marker is None:
        return f"- {_begun(text)}", 0
    item_number = int(marker[1])
    # Markdown renumbers the items of a list, so an item after a gap in the numbers becomes a paragraph.
    if number and item_number != number + 1:
        return _begun(text), 0
    return f"{item_number}{marker[2]} {_begun(text[marker.end() :])}", item_number


def _begun(text: str) -> str:
    """Escape the text of a block, and a Markdown marker at its beginning, such as "#"."""
    # Strip spaces first (control characters become spaces), because they would hide a marker at the beginning.
    inline = _inline(text).strip()
    return _BEGINNING.sub(lambda match: f"{match[0]}\\", inline, count=1)


def _inline(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", _CONTROL.sub(" ", text))
