"""Cleans the Markdown that a remote model wrote, and derives lines and tables from it."""

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ocrsvc.results import Box, Cell, Line, Page, Table

_FRONT_MATTER: Final = re.compile(r"\A\s*---[ \t]*\n.*?\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_FENCE: Final = re.compile(r"\A\s*```(?:markdown|md|html|text)?[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
# DeepSeek-OCR's types and positions of blocks, and special tokens of all models.
_TOKENS: Final = re.compile(r"<\|(ref|det)\|>[^<]*<\|/\1\|>|<\|[a-z_/]{1,40}\|>|<｜[^<>｜]{1,40}｜>")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_BLOCK_FORMULA: Final = re.compile(r"(?<!\\)\\[\[\]]")
_INLINE_FORMULA: Final = re.compile(r"(?<!\\)\\[()]")
_PICTURE: Final = re.compile(r"!\[[^\[\]\n]{0,2000}\]\([^()\n]{0,2000}\)")
_LINK: Final = re.compile(r"\](?=[(:])")
_TABLE_TAG: Final = re.compile(r"<(/?)(table|tr|t[dh]|br)\b([^<>]{0,300})>", re.IGNORECASE)
_DROPPED_TAG: Final = re.compile(r"</?(?:thead|tbody|tfoot|caption|center|div|p|b|i|u)\b[^<>]{0,300}>", re.IGNORECASE)
_TAG_BEGINNING: Final = re.compile(r"<(?=[A-Za-z/!?])")
_SPAN: Final = re.compile(r"\b(rowspan|colspan)\s*=\s*[\"']?([1-9]\d?)\b", re.IGNORECASE)

_LINE_END: Final = re.compile(r"</tr>|<br>")
_CELL_END: Final = re.compile(r"</t[dh]>")
_ANY_TAG: Final = re.compile(r"</?(?:table|tr|t[dh])[^<>]*>")
_MARKS: Final = re.compile(r"^\s{0,3}(?:#{1,6}|>)\s+|\*\*|\$\$")
_RULE: Final = re.compile(r"[|\s:+=*_-]+")
_ROW: Final = re.compile(r"<tr>(.*?)(?=<tr>|\Z)", re.DOTALL)
_CELL: Final = re.compile(r"<t[dh]([^<>]*)>(.*?)(?=<t[dh]|</tr>|\Z)", re.DOTALL)
_MAX_TABLE_CELLS: Final = 10_000


def clean_markdown(text: str) -> str:
    """The Markdown of a page in a model's answer, in linear time.

    Tables are HTML without other attributes than spans, formulas are LaTeX between $ or $$. Nothing else acts as HTML,
    as a link or as a picture, since the text of a page can be anything.
    """
    text = _FRONT_MATTER.sub("", text.replace("\r\n", "\n"), count=1)
    if fenced := _FENCE.match(text):
        text = fenced[1]
    text = _CONTROL.sub(" ", _TOKENS.sub("", text))
    text = _INLINE_FORMULA.sub("$", _BLOCK_FORMULA.sub("$$", text))
    text = _LINK.sub("] ", _DROPPED_TAG.sub("", _PICTURE.sub("", text)))
    pieces, end = list[str](), 0
    for tag in _TABLE_TAG.finditer(text):
        pieces += [_TAG_BEGINNING.sub("< ", text[end : tag.start()]), _bare_tag(tag)]
        end = tag.end()
    pieces.append(_TAG_BEGINNING.sub("< ", text[end:]))
    return "\n".join(line.rstrip() for line in "".join(pieces).strip().split("\n"))


def _bare_tag(tag: re.Match[str]) -> str:
    spans = "" if tag[1] else "".join(f' {name.lower()}="{count}"' for name, count in _SPAN.findall(tag[3])[:2])
    return f"<{tag[1]}{tag[2].lower()}{spans}>"


def plain_lines(markdown: str) -> list[str]:
    """The lines of cleaned Markdown as plain text, each row of a table as one; formulas stay LaTeX."""
    found = []
    for line in _LINE_END.sub("\n", markdown).split("\n"):
        if not line.strip() or _RULE.fullmatch(line):
            continue
        text = _ANY_TAG.sub("", _CELL_END.sub(" ", line))
        if text.lstrip().startswith("|"):
            text = text.replace("|", " ")
        found.append(" ".join(html.unescape(_MARKS.sub("", text)).split()))
    return [line for line in found if line]


def page_of(markdown: str, width: int, height: int, *, whole: bool) -> Page:
    """A page of `width` x `height` pixels from cleaned Markdown; with `whole` all text is one line.

    The lines have equal strips of the page as boxes, from top to bottom, because most models report no positions.
    """
    texts = plain_lines(markdown)
    texts = [" ".join(texts)] if whole and texts else texts
    step = height / max(1, len(texts))
    lines = (Line(text, 1.0, _strip(width, step * at, step * (at + 1))) for at, text in enumerate(texts))
    tables = tuple(_tables(markdown, _strip(width, 0, height)))
    return Page(width, height, 0, tuple(lines), tables=tables, markdown=markdown)


def _strip(width: float, top: float, bottom: float) -> Box:
    return (0.0, top), (float(width), top), (float(width), bottom), (0.0, bottom)


def _tables(markdown: str, box: Box) -> Iterator[Table]:
    """The tables, until they have more than 10,000 cells together."""
    left = _MAX_TABLE_CELLS
    for rest in markdown.split("<table>")[1:]:
        cells, taken = dict[tuple[int, int], Cell](), set[tuple[int, int]]()
        for row, row_text in enumerate(_ROW.findall(rest.partition("</table>")[0])):
            column = 0
            for attributes, text in _CELL.findall(row_text):
                while (row, column) in taken:
                    column += 1
                spans = {name: int(count) for name, count in _SPAN.findall(attributes)}
                cell = Cell(row, column, spans.get("rowspan", 1), spans.get("colspan", 1), box, _cell_text(text), ())
                if taken.intersection(_places(cell)):
                    cell = replace(cell, row_span=1, column_span=1)
                cells[row, column] = cell
                taken.update(_places(cell))
                if len(taken) > left:
                    return
        rows, columns = (1 + max((place[axis] for place in taken), default=-1) for axis in (0, 1))
        left -= rows * columns
        if left < 0:
            return
        # The model may have written too few cells.
        for place in {(row, column) for row in range(rows) for column in range(columns)} - taken:
            cells[place] = Cell(*place, 1, 1, box, "", ())
        if cells:
            yield Table(box, rows, columns, tuple(cells[place] for place in sorted(cells)))


def _places(cell: Cell) -> list[tuple[int, int]]:
    rows, columns = range(cell.row, cell.row + cell.row_span), range(cell.column, cell.column + cell.column_span)
    return [(row, column) for row in rows for column in columns]


def _cell_text(text: str) -> str:
    return "\n".join(plain_lines(_CELL_END.sub("", text)))
