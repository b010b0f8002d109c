"""Groups the n lines of a page into headings, paragraphs, list items and tables, in O(n log n)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from ocrsvc.formats.boxes import to_boxes, to_frames
from ocrsvc.formats.letter_sizes import BodySize, height_of
from ocrsvc.formats.markup import to_markdown
from ocrsvc.imaging.geometry import turn_points
from ocrsvc.results import Box, Page, Region, RegionType, Table

Kind = Literal["heading", "paragraph", "item", "table"]

_LEVELS: Final = ((1.8, 1), (1.45, 2), (1.22, 3))
"""Smallest size of a heading's letters, relative to the running text, and the heading's level."""
_HARDLY_LARGER: Final = 3  # headings of this level or deeper may be paragraph lines with boxes larger by chance
_SECTION: Final = re.compile(r"§?\s?(\d{1,2}(?:\.\d{1,2}){1,4})\.?\s+[^\W\d_]{2}")
_OF_SECTION: Final = ((3, 0.85), (2, 1.05))
"""Numbered headings, in pairs: least parts of the number ("2.1" has two), least letter size relative to the text."""
_OTHER_SIZE: Final = 1.3
_ALIKE: Final = 1.1  # neighbouring heading lines are one heading, whatever their levels, below this ratio of sizes
_HEADING_LINES: Final = 3
_HEADING_CHARACTERS: Final = 120
_MIN_CUT: Final = 25
# Least and largest indent of a paragraph's first line. Distances here are in line heights, unless a unit is given.
_INDENT: Final = (0.8, 8.0)
_FREE_AT_END: Final = 2.0
_FREE_SHARE, _FREE_SHARE_OPEN = 0.08, 0.25  # least empty share of a paragraph's last line: with, without full stop
_WIDER_GAP: Final = 0.45
_MAX_GAP: Final = 2.5
_OVERLAP: Final = 0.3
_USUAL_PITCH: Final = 1.5

BULLET: Final = re.compile(r"\s*(?:[•·●○◦▪■□◆◇►▶➢➤‣∙✓✔]\s*|[-–—*]\s+)(?=\S)")
NUMBER: Final = re.compile(r"\s*(\d{1,3})([.)])\s+(?=\S)")
_MARKED: Final = re.compile(
    r"\s*(?:[(（](?:\d{1,3}|[a-zA-Z]|[ivx]{1,4}|[一二三四五六七八九十]{1,3})[)）]|[a-zA-Z]\)\s|[①-⑳]|\d{1,3}、"
    r"|[一二三四五六七八九十]{1,3}、)"
)
_ENDED: Final = re.compile(r"[.!?:;。！？：；…”’\"」』)）]\s*$")
_OPEN_END: Final = re.compile(r"[,;，；、。.!]$")
_WORD: Final = re.compile(r"[a-z]")
_NOT_PRINTED: Final[frozenset[RegionType]] = frozenset({"header", "footer"})
_CJK: Final = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff]")
_HYPHENS: Final = "-\u00ad\u2010"
_HYPHENATED: Final = re.compile(rf"[^\W\d_][{_HYPHENS}]$")
_LETTER: Final = re.compile(r"[^\W\d_]")
_SENTENCE_ENDS: Final = (".", "!", "?")
_DENSE: Final = re.compile(
    "[\u2018-\u201d\u2026\u2e80-\u312f\u31a0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff]"
)
"""Chinese and Japanese characters and punctuation: lines that end or begin with one are joined without a space."""


@dataclass(slots=True)
class Block:
    """A heading with its level from 1, a paragraph, a list item, or a table.

    `numbers` are the indices of its lines on the page, and `lines` are the lines' texts, empty for a table.
    """

    kind: Kind
    numbers: list[int]
    lines: list[str] = field(default_factory=list)
    level: int = 0
    table: Table | None = None

    @property
    def text(self) -> str:
        """The block's text; a table's as Markdown."""
        return join_lines(self.lines) if self.table is None else to_markdown(self.table)

    def frame(self, page: Page) -> Box:
        """The smallest upright rectangle around the block."""
        boxes = [page.lines[number].box for number in self.numbers]
        if self.table is not None:
            boxes.append(self.table.box)
        xs, ys = [x for box in boxes for x, _ in box], [y for box in boxes for _, y in box]
        left, top, right, bottom = min(xs), min(ys), max(xs), max(ys)
        return (left, top), (right, top), (right, bottom), (left, bottom)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A line on the upright page: its index (`number`), text, sides in pixels, and the index of its region, or -1.

    `size` is the height of its box in pixels, and `ratio` the size of its letters relative to the running text.
    """

    number: int
    text: str
    left: float
    top: float
    right: float
    bottom: float
    size: float
    ratio: float
    region: int


@dataclass(frozen=True, slots=True)
class _Column:
    """Common left and right side of lines below each other, and the line spacing in line heights."""

    left: float
    right: float
    pitch: float


def blocks_of(page: Page, body: BodySize | None = None) -> list[Block]:
    """The blocks of a page in reading order; `body` is the size of the document's running text, by default the page's.

    Leaves out lines in regions of headers and footers. A table stands where its first line would stand.
    """
    body = body or BodySize().add(page)
    tables = _tables_by_line(page.tables)
    blocks: list[Block] = []
    written: set[int] = set()
    run: list[_Placed] = []
    for placed in _placed_lines(page, body):
        if placed.number in tables:
            _add_run(blocks, run, page.regions)
            run = []
            table = tables[placed.number]
            if id(table) not in written:
                written.add(id(table))
                numbers = sorted({line for cell in table.cells for line in cell.lines})
                blocks.append(Block("table", numbers, table=table))
        else:
            run.append(placed)
    _add_run(blocks, run, page.regions)
    return blocks


def _tables_by_line(tables: Sequence[Table]) -> dict[int, Table]:
    """Map lines to their tables; tables with a single row or column are left out, as they are running text."""
    return {
        line: table
        for table in tables
        if table.rows > 1 and table.columns > 1
        for cell in table.cells
        for line in cell.lines
    }


def _placed_lines(page: Page, body: BodySize) -> Iterator[_Placed]:
    regions = {line: at for at, region in enumerate(page.regions) for line in region.lines}
    frames = to_frames(turn_points(to_boxes(page.lines), page.angle, page.width, page.height)).tolist()
    for number, (line, frame) in enumerate(zip(page.lines, frames, strict=True)):
        region = regions.get(number, -1)
        text = " ".join(line.text.split())
        if text and (region < 0 or page.regions[region].type not in _NOT_PRINTED):
            left, top, right, bottom = frame
            yield _Placed(number, text, left, top, right, bottom, height_of(line), body.ratio_of(line), region)


def _add_run(blocks: list[Block], run: Sequence[_Placed], regions: Sequence[Region]) -> None:
    before: _Placed | None = None
    for column, lines in _columns(run):
        for line in lines:
            level = _heading_level(line, regions)
            if level and before is not None and line is not lines[0] and not blocks[-1].level:
                level = 0 if line.region == before.region and _flows_on(before, line, column) else level
            if before is None or _begins(blocks[-1], before, line, level, column, lines[0]):
                blocks.append(_block_of(line, level))
            else:
                blocks[-1].numbers.append(line.number)
                blocks[-1].lines.append(line.text)
            before = line
    blocks[:] = _without_false_headings(blocks)


def _block_of(line: _Placed, level: int) -> Block:
    if level:
        return Block("heading", [line.number], [line.text], level)
    is_item = bool(BULLET.match(line.text) or NUMBER.match(line.text) or _MARKED.match(line.text))
    return Block("item" if is_item else "paragraph", [line.number], [line.text])


def _without_false_headings(blocks: Sequence[Block]) -> list[Block]:
    """Turn headings into paragraphs if they are too long or end like a clause.

    Slightly larger headings that continue in lower case become paragraphs, too: their boxes may be larger by chance.
    """
    kept: list[Block] = []
    for block in blocks:
        is_long = len(block.lines) > _HEADING_LINES or sum(map(len, block.lines)) > _HEADING_CHARACTERS
        if block.kind == "heading" and (is_long or _OPEN_END.search(block.lines[-1])):
            block.kind, block.level = "paragraph", 0
        last = kept[-1] if kept else None
        is_continued = bool(block.lines) and _WORD.match(block.lines[0])
        if is_continued and last is not None and last.level >= _HARDLY_LARGER and len(last.lines[-1]) > _MIN_CUT:
            last.kind, last.level = "paragraph", 0
            last.numbers += block.numbers
            last.lines += block.lines
        else:
            kept.append(block)
    return kept


def _columns(run: Sequence[_Placed]) -> Iterator[tuple[_Column, Sequence[_Placed]]]:
    begin = 0
    for at in range(1, len(run) + 1):
        if at == len(run) or not _is_below(run[at - 1], run[at]):
            lines = run[begin:at]
            yield _column_of(lines), lines
            begin = at


def _is_below(one: _Placed, other: _Placed) -> bool:
    wide = min(one.right, other.right) - max(one.left, other.left)
    least = _OVERLAP * min(one.right - one.left, other.right - other.left)
    size = max(one.size, other.size)
    is_lower = other.top > one.top + 0.3 * min(one.size, other.size)
    return wide > least and is_lower and other.top - one.bottom < _MAX_GAP * size


def _column_of(lines: Sequence[_Placed]) -> _Column:
    pitches = sorted(
        (other.bottom - one.bottom) / max(1.0, one.size) for one, other in pairwise(lines) if _is_of_size(one, other)
    )
    middle = sorted(lines, key=lambda line: line.size)[len(lines) // 2]
    # In a damaged document the median line may have no height, so that no line is of similar size: use all lines.
    usual = [line for line in lines if _is_of_size(line, middle)] or lines
    lefts, rights = sorted(line.left for line in usual), sorted(line.right for line in usual)
    pitch = pitches[len(pitches) // 3] if pitches else _USUAL_PITCH
    return _Column(lefts[len(lefts) // 4], rights[len(rights) * 9 // 10], pitch)


def _pitch(one: _Placed, other: _Placed) -> float:
    return (other.top + other.bottom - one.top - one.bottom) / max(1.0, one.size + other.size)


def _is_of_size(one: _Placed, other: _Placed) -> bool:
    return max(one.size, other.size) < _OTHER_SIZE * min(one.size, other.size)


def _heading_level(line: _Placed, regions: Sequence[Region]) -> int:
    ratio = line.ratio
    level = next((level for least, level in _LEVELS if ratio >= least), 0)
    if section := _SECTION.match(line.text):
        parts = section[1].count(".") + 1
        if level or any(parts >= least and ratio >= size for least, size in _OF_SECTION):
            level = parts
    if line.region >= 0 and regions[line.region].confidence > 0:
        return (level or 3) if regions[line.region].type == "title" else 0
    return level if len(_LETTER.findall(line.text)) > 1 else 0


def _flows_on(before: _Placed, line: _Placed, column: _Column) -> bool:
    """Whether a line in slightly larger letters continues the line above, which is full and ends no sentence."""
    is_like = line.ratio < _LEVELS[1][0] * before.ratio and _pitch(before, line) <= column.pitch + _WIDER_GAP / 2
    return is_like and not _ENDED.search(before.text) and not _is_short(before, line, column)


def _begins(block: Block, before: _Placed, line: _Placed, level: int, column: _Column, first: _Placed) -> bool:
    is_one_heading = level and block.level and max(line.ratio, before.ratio) < _ALIKE * min(line.ratio, before.ratio)
    if (level != block.level and not is_one_heading) or line.region != before.region or block.kind == "table":
        return True
    if line is first:
        return not _continues_in_next_column(block, before, line)
    is_far = _pitch(before, line) > column.pitch + _WIDER_GAP
    if level or is_far:
        return is_far
    if BULLET.match(line.text) or not (_is_of_size(before, line) or _flows_on(before, line, column)):
        return True
    is_apart = _is_indented(before, line, column, block) or _is_short(before, line, column)
    if NUMBER.match(line.text) or _MARKED.match(line.text):
        return is_apart or block.kind == "item" or bool(_ENDED.search(before.text))
    return is_apart


def _is_indented(before: _Placed, line: _Placed, column: _Column, block: Block) -> bool:
    """Whether a line is indented from both the previous line and its column, so that it begins a paragraph."""
    least, most = _INDENT
    moved = line.left - before.left
    if block.kind == "item" and len(block.lines) == 1 and moved > 0:
        return False
    if moved < -least * line.size and block.kind == "item":
        return bool(_ENDED.search(before.text))
    return least * line.size < moved < most * line.size and line.left - column.left > least * line.size


def _is_short(before: _Placed, line: _Placed, column: _Column) -> bool:
    """Whether the line `before` ends early: the first word of `line` would have fitted behind it."""
    free = column.right - before.right
    letter = (line.right - line.left) / max(1, len(line.text))
    word = line.text if _CJK.match(line.text) is None else line.text[:2]
    first = word.split(" ", 1)[0][:40]
    needed = (len(first) + 1) * letter
    share = _FREE_SHARE if _ENDED.search(before.text) else _FREE_SHARE_OPEN
    return free > max(needed, _FREE_AT_END * before.size, share * (column.right - column.left))


def _continues_in_next_column(block: Block, before: _Placed, line: _Placed) -> bool:
    if block.kind == "heading" or not _is_of_size(before, line) or _ENDED.search(before.text):
        return False
    is_hyphenated = before.text.endswith(("-", "\u00ad", "\u2010"))
    is_below = line.top > before.top
    return (is_hyphenated or not is_below) and bool(_WORD.match(line.text) or _is_chinese_join(before.text, line.text))


def _is_chinese_join(one: str, other: str) -> bool:
    return bool(_CJK.match(one[-1]) and _CJK.match(other[0])) and not _MARKED.match(other)


def join_lines(lines: Sequence[str]) -> str:
    """Join the lines of a text. Hyphens at line ends are removed; Chinese gets spaces only after a line's final .!?"""
    parts = [lines[0]] if lines else []
    for one, other in pairwise(lines):
        if _HYPHENATED.search(one) and _LETTER.match(other):
            word = one.rsplit(" ", 1)[-1][:-1]
            # Before a capital, or in a word with another hyphen, the hyphen is part of the spelling.
            if other[0].islower() and not any(hyphen in word for hyphen in _HYPHENS):
                parts[-1] = parts[-1][:-1]
        elif one.endswith(_SENTENCE_ENDS) or not (_DENSE.match(one[-1:]) or _DENSE.match(other)):
            parts.append(" ")
        parts.append(other)
    return "".join(parts)
