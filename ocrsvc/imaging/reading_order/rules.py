"""Finds rules (ruled lines) from sampled rows and columns of pixels, which costs little on pages without rules.

A vertical rule is a thin dark spot at about the same x in successive sampled rows; strokes of letters end sooner. From
all pixels, `tables/ruled_grids.py` finds fainter and shorter rules.
"""

from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.results import Pixels

Quads = NDArray[np.float32]
Mask = NDArray[np.uint8]

SAMPLES = 5.0  # sampled rows or columns per line height
THICKEST = 0.12  # largest distance, in line heights, from the centre of a rule to the paper beside it
MIN_THICK_PX = 3
CONTRAST = 10  # least number of gray levels by which a rule is darker than both sides
FAINT = 30  # rules that are darker than the paper by fewer gray levels may be paper grain
MIN_DARK = 0.75  # least share of a faint rule's samples outside text boxes that are dark: paper grain has gaps
MIN_DASHES = 0.5  # the same for other rules: dashes pass, strokes of letters above each other do not
IN_TEXT = 0.95  # a dark run with this share inside text boxes is letter strokes above each other, not a rule
EDGE = 0.4  # boxes of text may reach over a rule by this many line heights
INSIDE_TEXT = 0.3  # a dark run with this share inside text boxes shrunk by EDGE is letter strokes, not a rule
MIN_TALL = 1.4  # length of the shortest vertical rule, in line heights
MIN_WIDE = 3.0  # length of the shortest horizontal rule, in line heights
MAX_RULES = 400  # most rules per direction; the longest are kept


def find_rules(pixels: Pixels, quads: Quads) -> Quads:
    """Find the rules of a page as degenerate quads (M, 4, 2) in pixels: from one end to the other and back.

    The page is (H, W) gray or (H, W, 3) BGR, slanted by at most a few degrees; `quads` (N, 4, 2) are its text lines.
    """
    if not len(quads):
        return np.empty((0, 4, 2), np.float32)
    line_height = max(1.0, float(np.median(np.hypot(*(quads[:, 3] - quads[:, 0]).T))))
    step = max(1, int(line_height / SAMPLES))
    vertical = _runs(_gray(pixels[::step]), quads, step, line_height, MIN_TALL)
    columns = np.ascontiguousarray(_gray(np.ascontiguousarray(pixels[:, ::step])).T)
    horizontal = _runs(columns, quads[..., ::-1], step, line_height, MIN_WIDE)[..., ::-1]
    return np.concatenate([vertical, horizontal])[:, [0, 1, 1, 0]]


def _gray(pixels: Pixels) -> Pixels:
    return cast(Pixels, pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY))


def _runs(gray: Pixels, quads: Quads, step: int, line_height: float, least: float) -> NDArray[np.float32]:
    """Both ends (N, 2, 2) of vertical rules of `least` line heights or more; `gray` has every `step`-th pixel row."""
    reach = max(MIN_THICK_PX, round(THICKEST * line_height))
    none = np.empty((0, 2, 2), np.float32)
    if gray.shape[1] <= 2 * reach or gray.shape[0] < 2:
        return none
    beside = np.minimum(gray[:, : -2 * reach], gray[:, 2 * reach :])
    darker = cv2.subtract(beside, gray[:, reach:-reach])
    spots = (darker >= CONTRAST).view(np.uint8)
    # Widen spots by one pixel per side, to follow slanted rules; then fill gaps of one row, made by crossing rules.
    wide = cv2.dilate(spots, np.ones((1, 3), np.uint8))
    closed = cv2.morphologyEx(wide, cv2.MORPH_CLOSE, np.ones((3, 1), np.uint8))
    runs = cast(Mask, cv2.morphologyEx(closed, cv2.MORPH_OPEN, np.ones((max(2, round(SAMPLES)), 1), np.uint8)))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(runs, connectivity=8, ltype=cv2.CV_32S)
    tall, areas = stats[:, cv2.CC_STAT_HEIGHT], stats[:, cv2.CC_STAT_AREA]
    rules = 1 + np.flatnonzero((tall[1:] * step >= least * line_height) & (areas[1:] <= 3 * reach * tall[1:]))
    # A rule may lie in the margin of a text box, so boxes are also tried without their margins.
    margins = (0.0, EDGE * line_height) if len(rules) else ()
    texts = [_painted(runs.shape, quads, step, reach, margin) for margin in margins]
    ends = []
    for rule in rules[np.argsort(-tall[rules], kind="stable")[:MAX_RULES]].tolist():
        left, top, width, height, area = stats[rule].tolist()
        place = np.s_[top : top + height, left : left + width]
        run = labels[place] == rule
        within = [int(np.count_nonzero(run & text[place])) for text in texts]
        in_text = within[0] >= IN_TEXT * area or within[1] >= INSIDE_TEXT * area
        if not in_text and _is_unbroken(np.where(run, darker[place], 0), texts[0][place] & run):
            ends.append([(left + reach + run[row].nonzero()[0].mean(), (top + row) * step) for row in (0, height - 1)])
    return np.array(ends, np.float32).reshape(-1, 2, 2)


def _is_unbroken(darker: Pixels, in_text: NDArray[np.bool_]) -> bool:
    """Whether enough rows of a run, outside text, are darker than the paper; `darker` (h, w) is by how many levels."""
    depth = darker.max(axis=1)[~in_text.any(axis=1)]
    dark = depth[depth >= CONTRAST]
    min_dark = MIN_DARK if len(dark) and np.median(dark) < FAINT else MIN_DASHES
    return len(dark) >= min_dark * len(depth)


def _painted(shape: tuple[int, ...], quads: Quads, step: int, left: int, margin: float) -> NDArray[np.bool_]:
    """Mask of text boxes, each shrunk by `margin`, on every `step`-th pixel row, without the first `left` columns."""
    shift = np.clip(quads - quads.mean(axis=1, keepdims=True), -margin, margin)
    painted = np.zeros(shape, np.uint8)
    for quad in np.rint((quads - shift * (1, 0)) / (1, step) - (left, 0)).astype(np.int32):
        cv2.fillConvexPoly(painted, quad, 1)
    return painted.view(np.bool_)
