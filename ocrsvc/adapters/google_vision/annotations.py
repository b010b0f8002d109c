"""A page as Google Cloud Vision's annotations: its words, and its text as blocks, paragraphs, words and symbols."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import fmean
from typing import Any, Final

from ocrsvc.formats.blocks import Block, blocks_of
from ocrsvc.formats.boxes import CONFIDENCE_DIGITS, page_with_words, place_lines, to_boxes, whole
from ocrsvc.results import Character, Page, Word

Node = dict[str, Any]

_SPACE: Final = "SPACE"
_LINE_END: Final = "EOL_SURE_SPACE"
_PARAGRAPH_END: Final = "LINE_BREAK"


@dataclass(frozen=True, slots=True)
class _PlacedWord:
    """A word of the page with its corners in whole pixels, and the kind of space that follows it, or "" if none."""

    word: Word
    corners: Sequence[int]
    break_type: str


def annotations_of(page: Page) -> Node:
    """The members `textAnnotations` and `fullTextAnnotation`; neither for a page without text, as in the original."""
    page = page_with_words(page)
    blocks = blocks_of(page)
    if not blocks:
        return {}
    lines = list(_placed_words(page))
    text = "\n".join(page.lines[number].text for block in blocks for number in block.numbers)
    words = [word for block in blocks for number in block.numbers for word in lines[number]]
    entries = [{"description": placed.word.text, "boundingPoly": _polygon(placed.corners)} for placed in words]
    nodes = [_block(block, page, lines) for block in blocks]
    members = {"width": page.width, "height": page.height, "blocks": nodes, "confidence": _confidence(words)}
    return {
        "textAnnotations": [{"description": text, "boundingPoly": _frame(words)}, *entries],
        "fullTextAnnotation": {"pages": [members], "text": text},
    }


def _placed_words(page: Page) -> Iterator[list[_PlacedWord]]:
    """The words of each line."""
    for line, placed in zip(page.lines, place_lines(page), strict=True):
        breaks = [_SPACE if after.after_blank else "" for _, after in pairwise(placed.words)]
        corners = [word.placed.corners for word in placed.words]
        yield list(map(_PlacedWord, line.words or (), corners, [*breaks, _LINE_END]))


def _block(block: Block, page: Page, lines: Sequence[Sequence[_PlacedWord]]) -> Node:
    """A block of the page, with all its words in a single paragraph."""
    words = list(chain.from_iterable(lines[number] for number in block.numbers))
    nodes = [_word(placed, placed.break_type) for placed in words[:-1]]
    nodes += [_word(placed, _PARAGRAPH_END) for placed in words[-1:]]
    around = [round(number) for corner in block.frame(page) for number in corner]
    members = {"boundingBox": _polygon(around), "confidence": _confidence(words)}
    return {**members, "paragraphs": [{**members, "words": nodes}], "blockType": "TEXT"}


def _word(placed: _PlacedWord, break_type: str) -> Node:
    """A word and its symbols; if the engine returned no characters, every symbol gets the word's box."""
    word = placed.word
    characters = word.characters or [Character(text, word.confidence, word.box) for text in word.text]
    symbols: list[Node] = [
        {
            "boundingBox": _polygon(corners),
            "text": character.text,
            "confidence": round(character.confidence, CONFIDENCE_DIGITS),
        }
        for character, corners in zip(characters, whole(to_boxes(characters)).reshape(-1, 8).tolist(), strict=True)
    ]
    if break_type and symbols:
        symbols[-1]["property"] = {"detectedBreak": {"type": break_type}}
    confidence = round(word.confidence, CONFIDENCE_DIGITS)
    return {"boundingBox": _polygon(placed.corners), "symbols": symbols, "confidence": confidence}


def _polygon(corners: Sequence[int]) -> Node:
    return {"vertices": [{"x": x, "y": y} for x, y in zip(corners[::2], corners[1::2], strict=True)]}


def _frame(words: Sequence[_PlacedWord]) -> Node:
    """The smallest upright rectangle around the words."""
    xs = [x for placed in words for x in placed.corners[::2]]
    ys = [y for placed in words for y in placed.corners[1::2]]
    left, right, top, bottom = min(xs), max(xs), min(ys), max(ys)
    return _polygon((left, top, right, top, right, bottom, left, bottom))


def _confidence(words: Sequence[_PlacedWord]) -> float:
    return round(fmean(placed.word.confidence for placed in words), CONFIDENCE_DIGITS)
