"""Blocks of a page with their lines, and Markdown page by page: for answers that tell where each block stands."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ocrsvc.formats.markdown import join_lines, write_markdown
from ocrsvc.formats.paragraphs import Block, blocks_of
from ocrsvc.formats.table_markup import to_markdown
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Box, Page, Table


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """One block, and which of the page's lines are in it, from 0."""

    block: Block
    lines: tuple[int, ...]

    @property
    def text(self) -> str:
        """What it says: of a table in Markdown, else without markup."""
        return join_lines(self.block.lines) if self.block.table is None else to_markdown(self.block.table)

    def frame(self, page: Page) -> Box:
        """The smallest upright rectangle around it."""
        boxes = [page.lines[line].box for line in self.lines]
        if self.block.table is not None:
            boxes.append(self.block.table.box)
        xs, ys = [x for box in boxes for x, _ in box], [y for box in boxes for _, y in box]
        left, top, right, bottom = min(xs), min(ys), max(xs), max(ys)
        return (left, top), (right, top), (right, bottom), (left, bottom)


def placed_blocks(page: Page) -> list[PlacedBlock]:
    """The blocks of a page in reading order; each line is in one of them at most."""
    blocks = blocks_of(page)
    in_tables = {line for block in blocks if block.table is not None for line in _lines_of(block.table)}
    # Blocks have the lines in their order, and leave out headers and footers.
    left = iter([number for number in range(len(page.lines)) if number not in in_tables])
    placed = [
        PlacedBlock(block, _lines_of(block.table) if block.table is not None else _taken(page, block.lines, left))
        for block in blocks
    ]
    return [block for block in placed if block.lines]


def _lines_of(table: Table) -> tuple[int, ...]:
    return tuple(sorted({line for cell in table.cells for line in cell.lines}))


def _taken(page: Page, texts: Iterable[str], left: Iterator[int]) -> tuple[int, ...]:
    """The next lines that say this, one after the other; what comes before each is passed over."""
    found = (next((number for number in left if _plain(page.lines[number].text) == text), None) for text in texts)
    return tuple(number for number in found if number is not None)


def _plain(text: str) -> str:
    return " ".join(text.split())


def markdown_by_page(pages: Iterable[Page], engine: EngineInfo) -> Iterator[tuple[Page, str]]:
    """Each page with its Markdown, headings by the letters of all pages before; memory holds one page of them."""
    taken: deque[Page] = deque()

    def noted() -> Iterator[Page]:
        for page in pages:
            taken.append(page)
            yield page

    for text in write_markdown(noted(), 0, engine):
        page = taken.popleft()
        yield page, text.removeprefix(f"\n<!-- page {page.number} -->\n\n")
