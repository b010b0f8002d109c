"""Inserts spaces between Chinese and Latin text where the line's pixels show a gap that the model did not report.

Typesetting sets Latin words and numbers off from Chinese by about a quarter of the type size, and people type a space
there; the model reports only half of these. Over 724 such places on pages with exact text, model and gap together agree
with the truth in 88 %, the model alone in 70 %.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.records import Pixels

GAP_PX = 9  # at a line height of 48 px; letters that touch leave 0 to 4
INKED = 0.3  # of the line's strong contrast, from which a column of pixels holds ink
CORE = slice(10, 38)  # rows that belong to this line for sure


def with_spaces(path: Path, get_crop: Callable[[], Pixels]) -> Path:
    """The path with a space wherever the line shows a gap between the two scripts, on the step halfway across.

    Args:
        path: What was read.
        get_crop: Gives the line's (48, w[, 3]) crop; asked only where the scripts change.
    """
    places = [place for place, pair in enumerate(pairwise(path.characters)) if _changes_script(*pair)]
    if not places:
        return path
    blank = _blank_columns(get_crop())
    pixels_a_step = len(blank) / path.steps
    begins = ((path.first[places] + 0.5) * pixels_a_step).astype(int)
    ends = ((path.last[np.add(places, 1)] + 0.5) * pixels_a_step).astype(int) + 1
    wide = [_longest_run(blank[begin:end]) >= GAP_PX for begin, end in zip(begins, ends, strict=True)]
    return _insert_spaces(path, np.array(places)[wide])


def _insert_spaces(path: Path, places: NDArray[np.intp]) -> Path:
    """The path with a space after each of these places."""
    characters = list(path.characters)
    for place in reversed(places.tolist()):
        characters.insert(place + 1, " ")
    middles = (path.last[places] + path.first[places + 1]) // 2
    first, last = (np.insert(steps, places + 1, middles) for steps in (path.first, path.last))
    return Path(characters, first, last, path.steps, path.confidence)


def _changes_script(one: str, other: str) -> bool:
    return (_is_latin(one) and _is_chinese(other)) or (_is_chinese(one) and _is_latin(other))


def _is_latin(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _is_chinese(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff"


def _blank_columns(crop: Pixels) -> NDArray[np.bool_]:
    """(w,) whether a column of the line's core holds no ink."""
    core = crop[CORE]
    if crop.ndim == 2:
        tones, shades = core, np.arange(256, dtype=np.float32)
    else:
        # Sums of the channels instead of means, which would cost ten times as much.
        tones = core[..., 0].astype(np.uint16) + core[..., 1] + core[..., 2]
        shades = (np.arange(3 * 255 + 1) / 3).astype(np.float32)
    contrast = np.abs(shades - _median(tones, shades))[tones].max(axis=0)
    blank: NDArray[np.bool_] = contrast < INKED * np.percentile(contrast, 90)
    return blank


def _median(tones: NDArray[np.unsignedinteger], shades: NDArray[np.float32]) -> np.float32:
    """The median of `shades[tones]`, by counting."""
    upto = np.cumsum(np.bincount(tones.ravel(), minlength=len(shades)))
    lower, upper = np.searchsorted(upto, [(tones.size - 1) // 2, tones.size // 2], side="right")
    return np.float32((shades[lower] + shades[upper]) / np.float32(2))


def _longest_run(flags: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max(initial=0))
