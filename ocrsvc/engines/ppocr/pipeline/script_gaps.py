"""Measures how wide the gaps between neighbouring characters are in a line's crop, where Chinese meets Latin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import Path, ScriptGaps
from ocrsvc.records import Pixels

INKED: Final = 0.3  # of the way from the ground's tone to the ink's, from which a pixel holds ink
CORE: Final = slice(10, 38)  # rows that belong to this line for sure, of 48
EDGES: Final = [0, 1, -2, -1]  # rows that letters seldom reach
RULE: Final = 0.9  # of a row's pixels; with more ink the row is a ruled line
LEAST_PITCHES: Final = 3
UNUSUAL: Final = 0.3  # of the median way; what differs more has a comma or a gap in it

_OTHER, _LATIN, _CHINESE = range(3)


def measure_gaps(path: Path, get_crop: Callable[[], Pixels]) -> ScriptGaps | None:
    """The gaps of one line; None where no Chinese character stands beside a Latin one, or where no gap is seen at all.

    Args:
        path: What was read, without spaces of our own.
        get_crop: Gives the line's (48, w[, 3]) crop; asked only where the scripts change.
    """
    inked = np.flatnonzero([not character.isspace() for character in path.characters])
    scripts = np.array([_script(path.characters[place]) for place in inked], np.int8)
    # No other two scripts have this sum.
    changes = np.flatnonzero(scripts[:-1] + scripts[1:] == _LATIN + _CHINESE)
    if not len(changes):
        return None
    blank = blank_columns(get_crop())
    pixels_a_step = len(blank) / path.steps
    middles = (path.first + path.last + 1)[inked] / 2 * pixels_a_step
    widths = _longest_runs(blank, middles.astype(np.intp))
    if not widths.any():
        return None
    chinese = (scripts[:-1] == _CHINESE) & (scripts[1:] == _CHINESE)
    ways = np.diff(middles)[chinese & (np.diff(inked) == 1)]
    return ScriptGaps(_pitch(ways), widths[chinese], inked[changes], widths[changes], len(blank))


def _pitch(ways: NDArray[np.float64]) -> float:
    """The mean of the usual ways, because each is a whole number of steps; 0 for too few."""
    middle = np.median(ways) if len(ways) else 0.0
    usual = ways[np.abs(ways - middle) <= UNUSUAL * middle]
    return float(usual.mean()) if len(usual) >= LEAST_PITCHES else 0.0


def blank_columns(crop: Pixels) -> NDArray[np.bool_]:
    """(w,) whether a column of the line's core holds no ink. The ground is what the crop's edges show."""
    # Sums of the channels instead of means, which would cost ten times as much.
    tones = crop if crop.ndim == 2 else crop[..., 0].astype(np.uint16) + crop[..., 1] + crop[..., 2]
    core = tones[CORE]
    upto = np.cumsum(np.bincount(core.ravel()))
    low, high = (int(tone) for tone in np.searchsorted(upto, np.array([0.02, 0.98]) * upto[-1]))
    between = (low + high) // 2
    below = upto[between]
    if np.median(tones[EDGES]) > between:
        ground = int(np.searchsorted(upto, (below + upto[-1]) / 2))
        ink = core < ground - INKED * (ground - low)
    else:
        ground = int(np.searchsorted(upto, below / 2))
        ink = core > ground + INKED * (high - ground)
    ink = ink[ink.mean(axis=1) < RULE]
    blank: NDArray[np.bool_] = ~ink.any(axis=0)
    return blank


def _script(character: str) -> int:
    if "\u3400" <= character <= "\u9fff" or "\u3041" <= character <= "\u30ff":
        return _CHINESE
    # Latin, Greek and Cyrillic; beyond them lie symbols and scripts with rules of their own.
    return _LATIN if character < "\u0530" and character.isalnum() else _OTHER


def _longest_runs(blank: NDArray[np.bool_], bounds: NDArray[np.intp]) -> NDArray[np.float32]:
    """The longest run of blank columns between each two neighbouring bounds; (w,), (N,) to (N - 1,)."""
    bounds = np.maximum.accumulate(np.clip(bounds, 0, len(blank) - 1))
    columns = np.arange(len(blank))
    stops = np.where(blank, -1, columns)
    stops[bounds] = np.maximum(stops[bounds], bounds - 1)
    runs = columns - np.maximum.accumulate(stops)
    longest: NDArray[np.float32] = np.maximum.reduceat(runs, bounds)[:-1].astype(np.float32)
    return longest
