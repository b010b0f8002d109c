"""Finds ruled lines from sampled rows and columns of pixels, which costs little on pages without rules.

A vertical rule crosses every sampled row at about the same place as a thin dark spot; strokes of letters end at the
next row of text. `tables/ruled_grids.py` finds fainter and shorter rules in all pixels.
"""

from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.results import Pixels

Quads = NDArray[np.float32]
Mask = NDArray[np.uint8]

SAMPLES = 5.0  # sampled rows or columns per line height
THICKEST = 0.12  # largest distance, in line heights, from the centre of a rule to paper beside it
LEAST_THICK_PX = 3
CONTRAST = 10  # gray levels by which a rule is darker than its sides
IN_TEXT = 0.95  # share in boxes of text from which a run is strokes of letters below each other
EDGE = 0.4  # line heights by which a box of text may reach over a rule
INSIDE_TEXT = 0.3  # the same share for boxes shrunk by EDGE
LEAST_TALL = 1.4  # shortest vertical rule, in line heights
LEAST_WIDE = 3.0  # shortest horizontal rule
MOST_RULES = 400  # of each direction, the longest


def find_rules(pixels: Pixels, quads: Quads) -> Quads:
    """(M, 4, 2) corners of the rules of a page, each from one end to the other and back; in pixels.

    The page is (H, W) gray or (H, W, 3) BGR, level or turned by a few degrees; `quads` (N, 4, 2) are the corners of its
    text lines, whose strokes are not rules.
    """
    if not len(quads):
        return np.empty((0, 4, 2), np.float32)
    line_height = max(1.0, float(np.median(np.hypot(*(quads[:, 3] - quads[:, 0]).T))))
    step = max(1, int(line_height / SAMPLES))
    vertical = _runs(_gray(pixels[::step]), quads, step, line_height, LEAST_TALL)
    columns = np.ascontiguousarray(_gray(np.ascontiguousarray(pixels[:, ::step])).T)
    horizontal = _runs(columns, quads[..., ::-1], step, line_height, LEAST_WIDE)[..., ::-1]
    return np.concatenate([vertical, horizontal])[:, [0, 1, 1, 0]]


def _gray(pixels: Pixels) -> Pixels:
    return cast(Pixels, pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY))


def _runs(gray: Pixels, quads: Quads, step: int, line_height: float, least: float) -> NDArray[np.float32]:
    """(N, 2, 2) ends (x, y) of vertical rules of `least` line heights; `gray` is every `step`-th row of pixels."""
    reach = max(LEAST_THICK_PX, round(THICKEST * line_height))
    none = np.empty((0, 2, 2), np.float32)
    if gray.shape[1] <= 2 * reach or gray.shape[0] < 2:
        return none
    beside = np.minimum(gray[:, : -2 * reach], gray[:, 2 * reach :])
    spots = (cv2.subtract(beside, gray[:, reach:-reach]) >= CONTRAST).view(np.uint8)
    # One pixel to each side follows slightly slanted rules; crossing rules leave a gap of one row.
    wide = cv2.dilate(spots, np.ones((1, 3), np.uint8))
    closed = cv2.morphologyEx(wide, cv2.MORPH_CLOSE, np.ones((3, 1), np.uint8))
    runs = cast(Mask, cv2.morphologyEx(closed, cv2.MORPH_OPEN, np.ones((max(2, round(SAMPLES)), 1), np.uint8)))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(runs, connectivity=8, ltype=cv2.CV_32S)
    tall, areas = stats[:, cv2.CC_STAT_HEIGHT], stats[:, cv2.CC_STAT_AREA]
    rules = 1 + np.flatnonzero((tall[1:] * step >= least * line_height) & (areas[1:] <= 3 * reach * tall[1:]))
    # A rule may lie in the margins of boxes, beyond their text.
    margins = (0.0, EDGE * line_height) if len(rules) else ()
    texts = [_painted(runs.shape, quads, step, reach, margin) for margin in margins]
    ends = []
    for rule in rules[np.argsort(-tall[rules], kind="stable")[:MOST_RULES]].tolist():
        left, top, width, height, area = stats[rule].tolist()
        place = np.s_[top : top + height, left : left + width]
        run = labels[place] == rule
        within = [int(np.count_nonzero(run & text[place])) for text in texts]
        if within[0] < IN_TEXT * area and within[1] < INSIDE_TEXT * area:
            ends.append([(left + reach + run[row].nonzero()[0].mean(), (top + row) * step) for row in (0, height - 1)])
    return np.array(ends, np.float32).reshape(-1, 2, 2)


def _painted(shape: tuple[int, ...], quads: Quads, step: int, left: int, margin: float) -> NDArray[np.bool_]:
    """Paint boxes of text, shrunk by a margin, onto every `step`-th row without the first `left` columns."""
    shift = np.clip(quads - quads.mean(axis=1, keepdims=True), -margin, margin)
    painted = np.zeros(shape, np.uint8)
    for quad in np.rint((quads - shift * (1, 0)) / (1, step) - (left, 0)).astype(np.int32):
        cv2.fillConvexPoly(painted, quad, 1)
    return painted.view(np.bool_)
