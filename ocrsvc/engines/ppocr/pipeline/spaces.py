"""Decides, for a whole page, where spaces belong between Chinese and Latin text.

Some authors type a space there, some layout programs open a gap of a quarter em, and in other texts both scripts are as
close as any two characters; most pages do only one of these. The evidence for a space is the width of the gap in em,
measured in the line's crop, minus the page's usual gap between Chinese characters; and whether the model read a space.
All such gaps of a page influence each other, with limited weight. Figures: docs/design/recognition.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText, Path, ScriptGaps
from ocrsvc.imaging.geometry import Quad, sides
from ocrsvc.results import Pixels, Spaces

INK_CONTRAST: Final = 0.3  # least contrast of a pixel that counts as ink, as a share of the line's strongest contrast
CORE: Final = slice(10, 38)  # rows, of 48, that contain no ink of other lines
EDGES: Final = [0, 1, -2, -1]  # crop rows that letters seldom reach, from which the background is measured
RULE_FILL: Final = 0.9  # a row with a larger share of ink pixels is a ruled line
MIN_PITCHES: Final = 3
MAX_PITCH_DIFFERENCE: Final = 0.3  # largest relative difference from the median pitch; pitches beyond include a comma

_OTHER, _LATIN, _CHINESE = range(3)


def measure_gaps(path: Path, get_crop: Callable[[], Pixels]) -> ScriptGaps | None:
    """Measure the gaps of one line; None if the script does not change in it, or if no gap is visible.

    `get_crop` returns the line's (48, w[, 3]) crop; it is called only if the script changes.
    """
    inked = np.flatnonzero([not character.isspace() for character in path.characters])
    scripts = np.array([_script(path.characters[place]) for place in inked], np.int8)
    # Chinese beside Latin, in either order: no other two scripts have this sum.
    changes = np.flatnonzero(scripts[:-1] + scripts[1:] == _LATIN + _CHINESE)
    if not len(changes):
        return None
    blank = blank_columns(get_crop())
    pixels_a_step = len(blank) / path.steps
    middles = (path.first + path.last + 1)[inked] / 2 * pixels_a_step
    widths = longest_runs(blank, middles.astype(np.intp))
    if not widths.any():
        return None
    chinese = (scripts[:-1] == _CHINESE) & (scripts[1:] == _CHINESE)
    ways = np.diff(middles)[chinese & (np.diff(inked) == 1)]
    return ScriptGaps(_pitch(ways), widths[chinese], inked[changes], widths[changes], len(blank))


def _pitch(ways: NDArray[np.float64]) -> float:
    """The mean of those distances between Chinese characters that are near the median; 0 if they are too few."""
    middle = np.median(ways) if len(ways) else 0.0
    usual = ways[np.abs(ways - middle) <= MAX_PITCH_DIFFERENCE * middle]
    return float(usual.mean()) if len(usual) >= MIN_PITCHES else 0.0


def blank_columns(crop: Pixels) -> NDArray[np.bool_]:
    """(w,) whether each column has no ink in the rows CORE; the rows EDGES show whether the background is light."""
    # Summing the channels takes a tenth of the time of averaging them.
    tones = crop if crop.ndim == 2 else crop[..., 0].astype(np.uint16) + crop[..., 1] + crop[..., 2]
    core = tones[CORE]
    upto = np.cumsum(np.bincount(core.ravel()))
    low, high = (int(tone) for tone in np.searchsorted(upto, np.array([0.02, 0.98]) * upto[-1]))
    between = (low + high) // 2
    below = upto[between]
    if np.median(tones[EDGES]) > between:
        ground = int(np.searchsorted(upto, (below + upto[-1]) / 2))
        ink = core < ground - INK_CONTRAST * (ground - low)
    else:
        ground = int(np.searchsorted(upto, below / 2))
        ink = core > ground + INK_CONTRAST * (high - ground)
    ink = ink[ink.mean(axis=1) < RULE_FILL]
    return cast("NDArray[np.bool_]", ~ink.any(axis=0))


def _script(character: str) -> int:
    if "\u3400" <= character <= "\u9fff" or "\u3041" <= character <= "\u30ff":
        return _CHINESE
    # _LATIN includes Greek and Cyrillic; symbols and other scripts follow other rules for spaces.
    return _LATIN if character < "\u0530" and character.isalnum() else _OTHER


def longest_runs(blank: NDArray[np.bool_], bounds: NDArray[np.intp]) -> NDArray[np.float32]:
    """(N - 1,) lengths of the longest run of blank columns between each two consecutive bounds; `blank` is (w,)."""
    bounds = np.maximum.accumulate(np.clip(bounds, 0, len(blank) - 1))
    columns = np.arange(len(blank))
    stops = np.where(blank, -1, columns)
    stops[bounds] = np.maximum(stops[bounds], bounds - 1)
    runs = columns - np.maximum.accumulate(stops)
    return np.maximum.reduceat(runs, bounds)[:-1].astype(np.float32)


# Gap from which a space is likely: above LibreOffice's automatic gap (0.18 to 0.19 em), below the narrowest typed space
# (0.224 em). Like all numbers below, chosen on the corpus's tuning half and pages drawn by a browser and LibreOffice.
OPEN_EM: Final = 0.2
SEEN_EM: Final = 0.12  # smallest gap for spaces="visible": half of a quarter em
OPEN_SLOPE_EM: Final = 0.05  # a gap that is wider by this multiplies the odds of a space by e
# Limits on what changes the log odds that a gap is a space: its own width, one other gap of the page, all other gaps.
# A gap of 0.4 em is a space on any page.
MAX_FROM_GAP: Final = 4.0
MAX_FROM_PLACE: Final = 1.0
MAX_FROM_PAGE: Final = 3.5
# Evidence, as log odds, if the model read a space in the gap and if it did not. It reads a space in half of the gaps
# with a typed space, and in a fifth of a program's automatic gaps.
READ, UNREAD = 0.8, -0.2
# Defaults for a page: type size relative to box height (0.83 to 0.99, because detectors leave different margins); gap
# between two Chinese characters (0.06 to 0.12 em in seven typefaces), with the weight of five measured gaps.
EM_OF_HEIGHT: Final = 0.9
USUAL_GAP_EM: Final = 0.1
USUAL_GAPS: Final = 5
# Blank at the sides of narrow characters, which widens their gaps; means of 875 gaps in seven typefaces.
NARROW_EM: Final = {"1": 0.05, "\u65e5": 0.1, "\u6708": 0.1, "\u4e86": 0.1}


Ems = NDArray[np.float64]


def decide_spaces(lines: Sequence[tuple[LineText, Quad]], spaces: Spaces) -> list[LineText]:
    """Decide the spaces between Chinese and Latin in all lines of a page; for `spaces` see ReadOptions."""
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
    wide_em, chinese_em, read = (np.concatenate(values) for values in zip(*places, strict=True))
    wider_em = wide_em - _usual_gap(chinese_em)
    is_open = wider_em >= SEEN_EM if spaces == "visible" else _are_open(wider_em, read)
    ends = np.cumsum([len(gaps_em) for gaps_em, _, _ in places])[:-1]
    for (number, path, gaps, _), flags in zip(measured, np.split(is_open, ends), strict=True):
        spaced = _with_spaces(path, gaps, flags)
        texts[number] = replace(texts[number], text="".join(spaced.characters), path=spaced)
    return texts


def _are_open(gaps_em: NDArray[np.float64], read: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(N,) whether each gap of a page gets a space; `gaps_em` are widths beyond the page's usual gap."""
    evidence = np.clip((gaps_em - OPEN_EM) / OPEN_SLOPE_EM, -MAX_FROM_GAP, MAX_FROM_GAP)
    evidence = evidence + np.where(read, READ, UNREAD)
    votes = np.clip(evidence, -MAX_FROM_PLACE, MAX_FROM_PLACE)
    votes_of_others = np.clip(votes.sum() - votes, -MAX_FROM_PAGE, MAX_FROM_PAGE)
    return cast("NDArray[np.bool_]", evidence + votes_of_others > 0)


def _usual_gap(gaps_em: NDArray[np.float64]) -> float:
    """The mean of the middle half of the gaps; a median, in whole pixels, is too coarse (1/40 of the type size)."""
    cut = len(gaps_em) // 4
    middle = np.sort(gaps_em)[cut : len(gaps_em) - cut]
    return float((middle.sum() + USUAL_GAPS * USUAL_GAP_EM) / (len(middle) + USUAL_GAPS))


def _type_sizes(lines: Sequence[tuple[ScriptGaps, Quad]]) -> list[float]:
    """The type size per line in crop pixels: distance between Chinese characters, else a share of the line's height."""
    extents = [(gaps.crop_width, *sides(quad)) for gaps, quad in lines]
    # Scale each line's height by its crop's horizontal scale: in a squeezed crop, the vertical scale differs.
    heights = np.array([width / max(along, 1.0) * max(across, 1.0) for width, along, across in extents])
    pitches = np.array([gaps.pitch for gaps, _ in lines])
    known = pitches > 0
    share = float(np.median(pitches[known] / heights[known])) if known.any() else EM_OF_HEIGHT
    return cast("list[float]", np.where(known, pitches, share * heights).tolist())


def _places(path: Path, gaps: ScriptGaps, em: float) -> tuple[Ems, Ems, NDArray[np.bool_]]:
    """Gap widths in em: (N,) at script changes, (K,) between Chinese characters; (N,) whether a space was read."""
    characters, before = path.characters, gaps.places
    after = [_next(characters, place) for place in before]
    pairs = [(characters[one], characters[other]) for one, other in zip(before, after, strict=True)]
    bearings = np.array([NARROW_EM.get(one, 0.0) + NARROW_EM.get(other, 0.0) for one, other in pairs])
    read = np.array(after) - before > 1
    return gaps.widths / em - bearings, gaps.chinese.astype(np.float64) / em, read


def _next(characters: Sequence[str], place: int) -> int:
    return next(number for number in range(place + 1, len(characters)) if not characters[number].isspace())


def _with_spaces(path: Path, gaps: ScriptGaps, is_open: NDArray[np.bool_]) -> Path:
    """The path with a space in exactly the gaps with `is_open`; an added space gets the middle CTC step of its gap."""
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
