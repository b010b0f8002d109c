"""Converts results to plain dicts and lists for orjson, except EngineInfo, which orjson writes without help."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import islice
from typing import Final

from ocrsvc.formats.boxes import BOX_DIGITS, CONFIDENCE_DIGITS, Boxed, to_boxes, to_scores
from ocrsvc.formats.markup import to_html, to_markdown
from ocrsvc.results import Barcode, Box, Cell, Line, MaskedPart, Page, ReadOptions, Region, Table, Timing, Word

BATCH: Final = 4096
"""Number of texts converted at a time, in a few ms: all texts of a large page would hold the interpreter for 0.4 s."""
TIMING_DIGITS = 6
DEFAULTS: Final = ReadOptions()


def page_to_dict(page: Page, number: int, options: ReadOptions = DEFAULTS, *, lines: bool = True) -> dict[str, object]:
    """Convert page `number` (from 1) to a dict: with its lines if `lines`, and with what `options` asks for.

    Boxes are four [x, y] corners, clockwise from where reading starts.
    """
    answer: dict[str, object] = {
        "page": number,
        "width": page.width,
        "height": page.height,
        "angle": page.angle,
        "text": page.text,
    }
    if lines:
        answer["lines"] = _lines_to_dicts(page.lines)
    if options.layout:
        answer["regions"] = [_to_dict(region) for region in page.regions]
    if options.tables:
        answer["tables"] = [_table_to_dict(table) for table in page.tables]
    if options.barcodes:
        answer["barcodes"] = [_to_dict(code) for code in page.barcodes]
    if page.markdown is not None:
        answer["markdown"] = page.markdown
    if page.fallback is not None:
        answer["fallback"] = asdict(page.fallback)
    if page.masked is not None:
        answer["masked"] = [_to_dict(part) for part in page.masked]
    return answer


def _to_dict(part: Region | Cell | Barcode | MaskedPart) -> dict[str, object]:
    answer = {field.name: getattr(part, field.name) for field in fields(part)} | {"box": _box_to_list(part.box)}
    return answer | {"confidence": round(part.confidence, CONFIDENCE_DIGITS)} if isinstance(part, Region) else answer


def _table_to_dict(table: Table) -> dict[str, object]:
    return {
        "box": _box_to_list(table.box),
        "rows": table.rows,
        "columns": table.columns,
        "cells": [_to_dict(cell) for cell in table.cells],
        "html": to_html(table),
        "markdown": to_markdown(table),
    }


def _box_to_list(box: Box) -> list[list[float]]:
    return [[round(x, BOX_DIGITS), round(y, BOX_DIGITS)] for x, y in box]


def _lines_to_dicts(lines: Sequence[Line]) -> list[dict[str, object]]:
    words = iter(_words_to_dicts([word for line in lines for word in line.words or ()]))
    return [
        answer
        | ({} if line.words is None else {"words": list(islice(words, len(line.words)))})
        | ({} if line.source is None else {"source": line.source})
        for line, answer in zip(lines, _to_dicts(lines), strict=True)
    ]


def _words_to_dicts(words: Sequence[Word]) -> list[dict[str, object]]:
    characters = iter(_to_dicts([character for word in words for character in word.characters]))
    return [
        answer | {"characters": list(islice(characters, len(word.characters)))} if word.characters else answer
        for word, answer in zip(words, _to_dicts(words), strict=True)
    ]


def _to_dicts(texts: Sequence[Boxed]) -> list[dict[str, object]]:
    """Convert lines, words or characters to dicts of text, confidence in [0, 1] and box."""
    batches = (texts[begin : begin + BATCH] for begin in range(0, len(texts), BATCH))
    return [answer for batch in batches for answer in _batch_to_dicts(batch)]


def _batch_to_dicts(texts: Sequence[Boxed]) -> list[dict[str, object]]:
    scores, boxes = to_scores(texts, CONFIDENCE_DIGITS), to_boxes(texts).round(BOX_DIGITS).tolist()
    return [
        {"text": text.text, "confidence": score, "box": box}
        for text, score, box in zip(texts, scores, boxes, strict=True)
    ]


def stages_to_dict(seconds: Mapping[str, float]) -> dict[str, object]:
    """Durations of a request's stages, and their sum, in seconds rounded to microseconds."""
    stages = {f"{name}_s": round(spent_s, TIMING_DIGITS) for name, spent_s in seconds.items()}
    return {"request_s": round(sum(stages.values()), TIMING_DIGITS), "stages": stages}


def timing_to_dict(timing: Timing) -> dict[str, float]:
    """Durations of the steps of reading a page, in seconds rounded to microseconds."""
    return {name: round(seconds, TIMING_DIGITS) for name, seconds in asdict(timing).items()}
