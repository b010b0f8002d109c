"""Pages as Mistral's OCR answers them: Markdown, tables, sizes and confidences."""

from __future__ import annotations

from typing import Final, TypedDict

from ocrsvc.adapters.mistral.options import Asked
from ocrsvc.formats.blocks import Block, Kind, blocks_of
from ocrsvc.formats.markup import to_html, to_markdown
from ocrsvc.records import Page, Table

_DIGITS: Final = 4
_BLOCK_TYPES: Final[dict[Kind, str]] = {"heading": "title", "paragraph": "text", "item": "list", "table": "table"}
# How a table is written, and what the name of its file ends with.
_TABLE_FORMATS: Final = {"markdown": (to_markdown, "md"), "html": (to_html, "html")}


class _Word(TypedDict):
    """One word: where it stands in the Markdown."""

    text: str
    confidence: float
    start_index: int


def page_members(page: Page, markdown: str, asked: Asked, dpi: int) -> dict[str, object]:
    """One page.

    Args:
        page: What was read.
        markdown: The same as Markdown.
        asked: What the answer is to hold.
        dpi: At which pages of PDFs are drawn.
    """
    members: dict[str, object] = {
        "index": page.number - 1,
        "markdown": markdown,
        "images": [],
        "dimensions": {"dpi": dpi, "height": page.height, "width": page.width},
        "hyperlinks": [],
        "header": None,
        "footer": None,
    }
    if asked.blocks:
        members["blocks"] = [_block(block, page) for block in blocks_of(page)]
    if asked.table_format:
        members["tables"] = [_table(number, table, asked.table_format) for number, table in enumerate(page.tables)]
    if asked.confidences and page.lines:
        members["confidence_scores"] = _confidences(page, markdown, by_word=asked.confidences == "word")
    return members


def _block(block: Block, page: Page) -> dict[str, object]:
    (left, top), _, (right, bottom), _ = block.frame(page)
    return {
        "type": _BLOCK_TYPES[block.kind],
        "content": block.text,
        "top_left_x": round(left),
        "top_left_y": round(top),
        "bottom_right_x": round(right),
        "bottom_right_y": round(bottom),
    }


def _table(number: int, table: Table, table_format: str) -> dict[str, object]:
    write, suffix = _TABLE_FORMATS[table_format]
    return {"id": f"tbl-{number}.{suffix}", "content": write(table), "format": table_format}


def _confidences(page: Page, markdown: str, *, by_word: bool) -> dict[str, object]:
    """The mean and the least of the lines' confidences, or of the words' with a list of them."""
    scores = [line.confidence for line in page.lines]
    if not by_word:
        return _summary(scores)
    words = _words(page, markdown)
    return {**_summary([word["confidence"] for word in words] or scores), "word_confidence_scores": words}


def _summary(scores: list[float]) -> dict[str, object]:
    return {
        "average_page_confidence_score": round(sum(scores) / len(scores), _DIGITS),
        "minimum_page_confidence_score": round(min(scores), _DIGITS),
    }


def _words(page: Page, markdown: str) -> list[_Word]:
    """The words in the order of the text, each looked for behind the one before it."""
    found: list[_Word] = []
    at = 0
    for word in (word for line in page.lines for word in line.words or ()):
        # In Markdown some signs are escaped; such a word is put where the search stands.
        at = max(at, markdown.find(word.text, at))
        found.append({"text": word.text, "confidence": round(word.confidence, _DIGITS), "start_index": at})
        at += len(word.text) if markdown.startswith(word.text, at) else 0
    return found
