"""Decides for a whole page where spaces stand between Chinese and Latin text, from its gaps and the model's spaces.

People type a space there, or typesetting opens a gap of about a quarter of the type size, or both scripts stand as
close as any two characters; a page mostly keeps to one of these. A gap in em, measured in the line's crop, less the
usual gap between the page's Chinese characters, and whether the model read a space there, are the evidence for a space
at one place; each place has a vote of limited weight at all the others of its page. docs/design/spaces.md has the
figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText, Path, ScriptGaps
from ocrsvc.imaging.geometry import Quad, sides
from ocrsvc.results import Pixels, Spaces

INKED: Final = 0.3  # of the way from the ground's tone to the ink's, from which a pixel holds ink
CORE: Final = slice(10, 38)  # rows that belong to this line for sure, of 48
EDGES: Final = [0, 1, -2, -1]  # rows that letters seldom reach
RULE: Final = 0.9  # of a row's pixels; with more ink the row is a ruled line
LEAST_PITCHES: Final = 3
UNUSUAL: Final = 0.3  # of the median way; what differs more has a comma or a gap in it

_OTHER, _LATIN, _CHINESE = range(3)


def measure_gaps(path: Path, get_crop: Callable[[], Pixels]) -> ScriptGaps | None:
    """The gaps of one line; None where no Chinese character stands beside a Latin one, or where no gap is seen at all.

    `get_crop` gives the line's (48, w[, 3]) crop; it is asked only where the scripts change.
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


# Between what LibreOffice opens where no space was typed (0.2 em, measured as 0.18 to 0.19) and the narrowest space
# (0.224 em). Chosen, with all numbers below, on the tuning half and on pages drawn by a browser and by LibreOffice.
OPEN_EM: Final = 0.2
SEEN_EM: Final = 0.12  # where spaces="visible" is asked for: half of a quarter
OPEN_SLOPE_EM: Final = 0.05  # that makes a space e times as likely
# Evidence is the logarithm of the odds. A gap has at most the first, a place at the others the second, all others
# together at one the third: so a gap of 0.4 em is a space on any page.
MOST_FROM_GAP: Final = 4.0
MOST_FROM_PLACE: Final = 1.0
MOST_FROM_PAGE: Final = 3.5
# The model reads half of the typed spaces, a fifth of the gaps opened by programs, and none where there is no gap.
READ, UNREAD = 0.8, -0.2
# Until a page shows its own: the type size in heights of a box (0.83 to 0.99 for different margins of the detector),
# and the gap between two Chinese characters (0.06 to 0.12 em in seven typefaces), which weighs as five such gaps.
EM_OF_HEIGHT: Final = 0.9
USUAL_GAP_EM: Final = 0.1
USUAL_GAPS: Final = 5
# What the side bearings of narrow characters add to a gap; means of 875 places in seven typefaces.
NARROW_EM: Final = {"1": 0.05, "\u65e5": 0.1, "\u6708": 0.1, "\u4e86": 0.1}


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of one line where the script changes."""

    gaps_em: NDArray[np.float64]  # (N,) the gaps, less the side bearings of narrow characters
    chinese_em: NDArray[np.float64]  # (K,) the gaps between its Chinese characters
    read: NDArray[np.bool_]  # (N,) whether the model read a space there


def decide_spaces(lines: Sequence[tuple[LineText, Quad]], spaces: Spaces) -> list[LineText]:
    """All lines of one page, and where they are, with spaces where Chinese meets Latin; `spaces` as of ReadOptions."""
    texts = [text for text, _ in lines]
    measured = [
        (number, text.path, text.gaps, quad)
        for number, (text, quad) in enumerate(lines)
        if text.gaps is not None and text.path is not None
    ]
    if spaces == "model" or not measured:
        return texts
    sizes = _type_sizes([(gaps, quad) for _, _, gaps, quad in measured])
    places = [_places(path, gaps, em) for (_, path, gaps, _), em in zip(measured, sizes, strict=True)]
    usual = _usual_gap(np.concatenate([line.chinese_em for line in places]))
    gaps_em, read = (np.concatenate(rows) for rows in zip(*((one.gaps_em, one.read) for one in places), strict=True))
    is_open = gaps_em - usual >= SEEN_EM if spaces == "visible" else _are_open(gaps_em - usual, read)
    ends = np.cumsum([len(line.gaps_em) for line in places])[:-1]
    for (number, path, gaps, _), flags in zip(measured, np.split(is_open, ends), strict=True):
        spaced = _with_spaces(path, gaps, flags)
        texts[number] = replace(texts[number], text="".join(spaced.characters), path=spaced)
    return texts


def _are_open(gaps_em: NDArray[np.float64], read: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(N,) which places of one page have a space; the gaps are what the page's usual gap leaves."""
    evidence = np.clip((gaps_em - OPEN_EM) / OPEN_SLOPE_EM, -MOST_FROM_GAP, MOST_FROM_GAP)
    evidence = evidence + np.where(read, READ, UNREAD)
    votes = np.clip(evidence, -MOST_FROM_PLACE, MOST_FROM_PLACE)
    of_others = np.clip(votes.sum() - votes, -MOST_FROM_PAGE, MOST_FROM_PAGE)
    is_open: NDArray[np.bool_] = evidence + of_others > 0
    return is_open


def _usual_gap(gaps_em: NDArray[np.float64]) -> float:
    """The mean of the middle half; a median would be a whole number of pixels, a fortieth of the type size each."""
    cut = len(gaps_em) // 4
    middle = np.sort(gaps_em)[cut : len(gaps_em) - cut]
    return float((middle.sum() + USUAL_GAPS * USUAL_GAP_EM) / (len(middle) + USUAL_GAPS))


def _type_sizes(lines: Sequence[tuple[ScriptGaps, Quad]]) -> list[float]:
    """The type size of each line along its crop, in pixels: its pitch, or a share of its height."""
    extents = [(gaps.crop_width, *sides(quad)) for gaps, quad in lines]
    # How long the line's height would be along its crop, which is squeezed.
    heights = np.array([width / max(along, 1.0) * max(across, 1.0) for width, along, across in extents])
    pitches = np.array([gaps.pitch for gaps, _ in lines])
    known = pitches > 0
    share = float(np.median(pitches[known] / heights[known])) if known.any() else EM_OF_HEIGHT
    sizes: list[float] = np.where(known, pitches, share * heights).tolist()
    return sizes


def _places(path: Path, gaps: ScriptGaps, em: float) -> _Places:
    characters, before = path.characters, gaps.places
    after = [_next(characters, place) for place in before]
    pairs = [(characters[one], characters[other]) for one, other in zip(before, after, strict=True)]
    bearings = np.array([NARROW_EM.get(one, 0.0) + NARROW_EM.get(other, 0.0) for one, other in pairs])
    read = np.array(after) - before > 1
    return _Places(gaps.widths / em - bearings, gaps.chinese.astype(np.float64) / em, read)


def _next(characters: Sequence[str], place: int) -> int:
    """The next character that is not a space."""
    return next(number for number in range(place + 1, len(characters)) if not characters[number].isspace())


def _with_spaces(path: Path, gaps: ScriptGaps, is_open: NDArray[np.bool_]) -> Path:
    """The line's path with spaces at those of its places that are open, and with none at the others.

    A space that the model did not read stands on the step halfway across its gap.
    """
    keep = np.ones(len(path.characters), bool)
    new = []
    for place, wanted in zip(gaps.places.tolist(), is_open.tolist(), strict=True):
        after = _next(path.characters, place)
        keep[place + 1 : after] = wanted
        if wanted and after == place + 1:
            new.append(after)
    at = np.array(new, np.intp)
    kept = np.insert(keep, at, True)
    middles = (path.last[at - 1] + path.first[at]) // 2
    characters = np.insert(np.array(path.characters, object), at, " ")[kept].tolist()
    first, last = (np.insert(steps, at, middles)[kept] for steps in (path.first, path.last))
    probabilities = np.insert(path.probabilities, at, 1.0)[kept]
    return Path(characters, first, last, path.steps, path.confidence, probabilities)
