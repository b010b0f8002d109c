"""Decides what of a page's own text is taken, and whether something else is left to be read.

"auto" and "merge" take what a reader of the page sees: text that is drawn visibly, on the page, by fonts that map to
Unicode. "only" takes whatever the file says that is text, for there is nothing else to be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ocrsvc.imaging.pdf.copied_text import CopiedText, PageCharacters, PageFrame, page_characters
from ocrsvc.imaging.pdf.ink import edges_of, find_seen, rest_share
from ocrsvc.imaging.pdf.lines import find_lines, is_blank
from ocrsvc.imaging.pdf.own_lines import PlacedLines, make_lines, order_of, page_angle, place_lines
from ocrsvc.imaging.pdf.page_rules import PageRules
from ocrsvc.imaging.pdf.soundness import bad_characters, is_sound, wrong_fonts
from ocrsvc.records import OwnText, ReadOptions, Rectangle

MOST_REST: Final = {"auto": 0.005, "merge": 0.0}
"""The share of a page with own text that may be taken by something else, and yet nothing else is read."""

MOST_CHARACTERS: Final = 50_000
"""Of a page whose own text is taken; the densest pages of newspapers have 30,000."""

CHARACTER_BYTES: Final = 600
"""What one character takes while lines are made of all."""

_SAME_PLACE: Final = 0.15  # ems between a character and the same one printed again
_SAME_LINE: Final = 0.6  # of the smaller of two boxes with the same text
_COPIES: Final = 8  # lines of the same text that are compared


@dataclass(frozen=True, slots=True)
class OwnPage:
    """A page that may be read by its own text: its size in pixels as it would be drawn, and the text."""

    width: int
    height: int
    text: OwnText


def takes_own_text(options: ReadOptions) -> bool:
    """Whether a page's own text is looked for at all."""
    return options.text_layer != "ignore" and options.barcodes != "only"


def needs_pixels(options: ReadOptions) -> bool:
    """Whether something is asked for that is found on drawn pages alone."""
    return bool(options.layout or options.tables or options.barcodes)


def own_text(copied: CopiedText, options: ReadOptions) -> OwnText:
    """What of a page's text is taken.

    Args:
        copied: Its characters, with a small drawing unless the option is "only".
        options: `text_layer` is "auto", "only" or "merge"; `region`, `rotate`, and how lines are to be described.
    """
    region, everything = options.region, page_characters(copied)
    if options.text_layer == "only":
        characters = _once(_on_page(everything, copied.frame, region))
        placed = place_lines(characters, find_lines(characters))
        return _described(placed, range(len(placed.lines)), options, is_all=True)
    shown = everything.of(~everything.is_hidden | is_blank(everything.codes))
    characters = _once(_on_page(shown, copied.frame, region))
    bad = bad_characters(characters) | wrong_fonts(characters)
    drawing = copied.drawing()
    lines = find_lines(characters, PageRules(drawing, copied.frame))
    placed = place_lines(characters, [line for line in lines if is_sound(line, bad)])
    edges = edges_of(drawing)
    seen = find_seen(edges, placed.quads, copied.frame)
    share = rest_share(edges, placed.quads[seen], copied.frame, region)
    kept = np.flatnonzero(seen).tolist()
    return _described(placed, kept, options, is_all=share <= (MOST_REST[options.text_layer] if kept else 0.0))


def _on_page(characters: PageCharacters, frame: PageFrame, region: Rectangle | None) -> PageCharacters:
    """Those whose middle lies on the page, and in the region of it; all blanks, which have no place of their own."""
    x, y, width, height = region or (0, 0, frame.width, frame.height)
    middle = characters.middle
    inside = ((middle >= (x, y)) & (middle < (x + width, y + height))).all(axis=1)
    inside &= ((middle >= 0) & (middle < (frame.width, frame.height))).all(axis=1)
    return characters.of(inside | is_blank(characters.codes))


def _once(characters: PageCharacters) -> PageCharacters:
    """Without those that are printed again in the same place, which makes text bold, or gives it a shadow."""
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
    # The letters of a ligature share its place.
    again[1:] &= (np.diff(characters.owner) != 0) | (np.diff(characters.ink, axis=0) != 0).any(axis=1)
    return characters.of(keep | ~again)


def _described(placed: PlacedLines, kept: Sequence[int], options: ReadOptions, *, is_all: bool) -> OwnText:
    """Records of these lines in reading order, no line twice."""
    chosen = _different(placed, kept)
    lines, quads = placed.of(chosen)
    angle = page_angle(lines, quads) if options.rotate == "auto" else int(options.rotate)
    order = order_of([line.text for line in lines], quads, angle)
    return OwnText(make_lines(placed, [chosen[one] for one in order], options), angle, is_all)


def _different(placed: PlacedLines, kept: Sequence[int]) -> list[int]:
    """Without lines that say the same in the same place as one before them."""
    frames = np.concatenate([placed.quads.min(axis=1), placed.quads.max(axis=1)], axis=1).tolist()
    by_text: dict[str, list[int]] = {}
    for one in kept:
        others = by_text.setdefault(placed.lines[one].text, [])
        if not any(_overlap(frames[one], frames[other]) > _SAME_LINE for other in others[-_COPIES:]):
            others.append(one)
    return sorted(one for several in by_text.values() for one in several)


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """What two frames share, as a part of the smaller one."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    least = min((frame[2] - frame[0]) * (frame[3] - frame[1]) for frame in (one, other))
    return max(0.0, width) * max(0.0, height) / max(least, 1e-9)
