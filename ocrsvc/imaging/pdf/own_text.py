"""Decides which text of a PDF page's text layer is used, and whether the rest of the page must be recognized.

"auto" and "merge" use visible text whose font maps to Unicode: with a missing or wrong map the text is garbage although
the page looks right. "only" uses all text, because nothing is recognized.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.characters import Flags, PageCharacters, PageFrame
from ocrsvc.imaging.pdf.line_boxes import PlacedLines, make_lines, page_angle, place_lines
from ocrsvc.imaging.pdf.lines import BULLETS, HYPHENS, find_lines, is_blank
from ocrsvc.imaging.pdf.merge_text import order_of
from ocrsvc.imaging.pdf.page_look import edges_of, find_seen, rest_share, rule_finder
from ocrsvc.results import OwnText, Pixels, ReadOptions, Rectangle

MAX_REST: Final = {"auto": 0.005, "merge": 0.0}  # run OCR if possible text outside the text layer covers more than this
CHARACTER_BYTES: Final = 600  # memory per character while lines are built

_SAME_PLACE: Final = 0.15  # largest distance, in ems, of a character from a repeated print of it
_SAME_LINE: Final = 0.6  # lines of equal text whose boxes overlap by this share of the smaller one are duplicates
_COPIES: Final = 8  # compare a line with at most this many earlier lines of equal text, for speed

_NO_CHARACTERS: Final = frozenset({"Cc", "Cn", "Co", "Cs"})
MAX_BAD: Final = 0.02  # a line with a larger share of bad characters is left to the engine

MIN_LETTERS: Final = 80  # a font with fewer Latin letters is not judged by their frequency
MIN_DIFFERENT: Final = 16  # a font with fewer different letters (a formula font) is not judged by their frequency
MAX_BITS: Final = 4.95  # cross-entropy in bits per letter: usually 4.1 to 4.7; 4.9 to 5.8 if the map permutes letters
MIN_SYMBOLS, MAX_SYMBOLS = 60, 0.6  # in a font of at least 60 characters, a larger share of symbols is implausible

# Relative frequencies of the letters A to Z without accents: mean of seven European languages.
_COUNTS: Final = [90, 14, 38, 42, 140, 12, 17, 22, 75, 5, 8, 46, 28, 70, 72, 28, 6, 66, 67, 64, 36, 14, 9, 3, 10, 8]
_BITS: Final = -np.log2(np.array(_COUNTS) / sum(_COUNTS))


@dataclass(frozen=True, slots=True)
class OwnPage:
    """The text layer of a page, and the size in pixels at which the page would be drawn."""

    width: int
    height: int
    text: OwnText


def takes_own_text(options: ReadOptions) -> bool:
    """Whether the request uses the text layer at all."""
    return options.text_layer != "ignore" and options.barcodes != "only"


def needs_pixels(options: ReadOptions) -> bool:
    """Whether the request asks for layout, tables or barcodes, which need a drawn page."""
    return bool(options.layout or options.tables or options.barcodes)


def own_text(everything: PageCharacters, drawing: Pixels, frame: PageFrame, options: ReadOptions) -> OwnText:
    """Select the text of a page according to the options `text_layer` ("auto", "only" or "merge") and `region`.

    `drawing` is the page in gray, `small_width` x `small_height` pixels of the frame; with "only" it is empty.
    """
    region = options.region
    if options.text_layer == "only":
        characters = _once(_on_page(everything, frame, region))
        placed = place_lines(characters, find_lines(characters))
        return _described(placed, range(len(placed.lines)), options, is_all=True)
    shown = everything.of(~everything.is_hidden | is_blank(everything.codes))
    characters = _once(_on_page(shown, frame, region))
    bad = _bad_characters(characters)
    lines = find_lines(characters, partial(rule_finder, drawing, frame))
    sound = [line for line in lines if int(bad[line.members].sum()) <= MAX_BAD * len(line.members)]
    placed = place_lines(characters, sound)
    edges = edges_of(drawing)
    seen = find_seen(edges, placed.quads, frame)
    share = rest_share(edges, placed.quads[seen], frame, region)
    kept = np.flatnonzero(seen).tolist()
    return _described(placed, kept, options, is_all=share <= (MAX_REST[options.text_layer] if kept else 0.0))


def _on_page(characters: PageCharacters, frame: PageFrame, region: Rectangle | None) -> PageCharacters:
    """The characters whose centre lies on the page and in the region, and all blanks, which have no ink to locate."""
    x, y, width, height = region or (0, 0, frame.width, frame.height)
    middle = characters.middle
    inside = ((middle >= (x, y)) & (middle < (x + width, y + height))).all(axis=1)
    inside &= ((middle >= 0) & (middle < (frame.width, frame.height))).all(axis=1)
    return characters.of(inside | is_blank(characters.codes))


def _once(characters: PageCharacters) -> PageCharacters:
    """Drop characters printed repeatedly at one position to look bold or shadowed."""
    if not len(characters):
        return characters
    cells = characters.middle / (_SAME_PLACE * characters.em[:, None])
    keep = is_blank(characters.codes)
    again = np.zeros(len(characters), np.bool_)
    for shift in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)):
        columns, rows = np.floor(cells + shift).astype(np.int64).T
        keys = (rows, columns, characters.codes, np.round(characters.em).astype(np.int64))
        order = np.lexsort(keys)
        same = np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys])
        again[order[1:][same]] = True
    # Characters that share a text object and ink come from one ligature, and are not printed repeatedly.
    again[1:] &= (np.diff(characters.owner) != 0) | (np.diff(characters.ink, axis=0) != 0).any(axis=1)
    return characters.of(keep | ~again)


def _described(placed: PlacedLines, kept: Sequence[int], options: ReadOptions, *, is_all: bool) -> OwnText:
    chosen = _different(placed, kept)
    lines, quads = [placed.lines[index] for index in chosen], placed.quads[chosen]
    angle = page_angle(lines, quads) if options.rotate == "auto" else int(options.rotate)
    order = order_of([line.text for line in lines], quads, angle)
    return OwnText(make_lines(placed, [chosen[index] for index in order], options), angle, is_all)


def _different(placed: PlacedLines, kept: Sequence[int]) -> list[int]:
    """The line indices in `kept`, without lines that repeat the text of an earlier one at the same position."""
    low, high = placed.quads.min(axis=1), placed.quads.max(axis=1)
    areas = np.prod(high - low, axis=1)
    by_text: dict[str, list[int]] = {}
    for line in kept:
        others = by_text.setdefault(placed.lines[line].text, [])
        near = others[-_COPIES:]
        common = np.minimum(high[near], high[line]) - np.maximum(low[near], low[line])
        shared = np.prod(common.clip(0), axis=1) / np.maximum(np.minimum(areas[near], areas[line]), 1e-9)
        if not (shared > _SAME_LINE).any():
            others.append(line)
    return sorted(line for several in by_text.values() for line in several)


def _bad_characters(characters: PageCharacters) -> Flags:
    """Whether each character (N,) is a control, private use or replacement character, or its font has a wrong map."""
    bad = np.isin(characters.codes, list(filter(_is_bad, set(characters.codes.tolist())))) | characters.is_unmapped
    order = np.argsort(characters.font, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(characters.font[order])) + 1):
        bad[members] |= _is_wrong(characters.codes[members])
    return bad


def _is_bad(code: int) -> bool:
    if code in BULLETS or code in HYPHENS:
        return False
    return code > 0x10FFFF or code == 0xFFFD or unicodedata.category(chr(code)) in _NO_CHARACTERS


def _is_wrong(codes: NDArray[np.uint32]) -> bool:
    folded = codes | 0x20
    is_letter = (folded >= 0x61) & (folded <= 0x7A)
    letters = codes[is_letter]
    counts = np.bincount((letters | 0x20) - 0x61, minlength=26)
    is_text = len(letters) >= MIN_LETTERS and len(np.unique(letters)) >= MIN_DIFFERENT
    if is_text and counts @ _BITS / counts.sum() > MAX_BITS:
        return True
    shown = int((codes > 0x20).sum())
    symbols = codes[(codes > 0x20) & (codes < 0x7F) & ~is_letter & ~((codes >= 0x30) & (codes <= 0x39))]
    # Many symbols show a wrong font map. Dot leaders and dashes have few kinds of symbols, so require more than eight.
    return shown >= MIN_SYMBOLS and len(np.unique(symbols)) > 8 and len(symbols) > MAX_SYMBOLS * shown
