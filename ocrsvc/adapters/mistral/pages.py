"""Pages as Mistral's OCR answers them: Markdown, tables, sizes and confidences."""

from __future__ import annotations

from typing import Any, Final

from ocrsvc.adapters.mistral.ocr_request import OcrRequest
from ocrsvc.formats.blocks import Block, Kind, blocks_of
from ocrsvc.formats.markup import to_html, to_markdown
from ocrsvc.records import Page, Table

_DIGITS: Final = 4
_BLOCK_TYPES: Final[dict[Kind, str]] = {"heading": "title", "paragraph": "text", "item": "list", "table": "table"}
# How a table is written, and what the name of its file ends with.
_TABLE_FORMATS: Final = {"markdown": (to_markdown, "md"), "html": (to_html, "html")}


def page_members(page: Page, markdown: str, asked: OcrRequest, dpi: int) -> dict[str, object]:
    """One page, which is also given as Markdown; pages of PDFs are drawn at `dpi`."""
    members: dict[str, object] = {
        "index": page.number - 1,
        "markdown": markdown,
        "images": [],
        "dimensions": {"dpi": dpi, "height": page.height, "width": page.width},
        "hyperlinks": [],
        "header": None,
        "footer": None,
    }
    if asked.include_blocks:
        members["blocks"] = [_block(block, page) for block in blocks_of(page)]
    if asked.table_format:
        members["tables"] = [_table(number, table, asked.table_format) for number, table in enumerate(page.tables)]
    if asked.confidence_scores_granularity and page.lines:
        by_word = asked.confidence_scores_granularity == "word"
        members["confidence_scores"] = _confidences(page, markdown, by_word=by_word)
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
    words = _words(page, markdown) if by_word else []
    scores = [word["confidence"] for word in words] or [line.confidence for line in page.lines]
    return {
        "average_page_confidence_score": round(sum(scores) / len(scores), _DIGITS),
        "minimum_page_confidence_score": round(min(scores), _DIGITS),
        **({"word_confidence_scores": words} if by_word else {}),
    }


def _words(page: Page, markdown: str) -> list[dict[str, Any]]:
    """The words in the order of the text, each looked for in the Markdown behind the one before it."""
    found: list[dict[str, Any]] = []
    at = 0
    for word in (word for line in page.lines for word in line.words or ()):
        # In Markdown some signs are escaped; such a word is put where the search stands.
        at = max(at, markdown.find(word.text, at))
        found.append({"text": word.text, "confidence": round(word.confidence, _DIGITS), "start_index": at})
        at += len(word.text) if markdown.startswith(word.text, at) else 0
    return found
