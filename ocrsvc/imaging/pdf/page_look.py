"""Inspects a small drawing of a page: visible lines, ink outside them, and ruled lines between table cells."""

from collections.abc import Callable
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.characters import Flags, Numbers, PageFrame
from ocrsvc.results import Pixels, Rectangle

LOOK_DPI: Final = 50  # resolution of the drawing: text of 6 points is 4 pixels high

_EDGE: Final = 40  # least contrast of neighbouring pixels, in gray levels of 255, that counts as ink
_SEEN: Final = 8  # least contrast, in gray levels, in the box of a text line that is visible
_RULE_PX: Final = 25  # longer straight edges (half an inch) are ruled lines, frames and bars, not text
_THICK_PX: Final = 5
_JOINED_PX: Final = 7
_MIN_SIDES_PX: Final = (5, 4)  # smallest width and height of text (5 points); remains of chart bars are smaller
_MIN_SHARE: Final = 0.2  # ink share of its bounding box from which a shape is text or a picture, not a curve

_STEP: Final = 12  # least contrast of a ruled line, in gray levels: that of a light gray hairline at 50 dpi
_ABOVE, _BELOW = 0.85, 0.28  # ems that a ruled line must reach above and below the baseline, more than letters do
_NEAR_PX: Final = 3  # distance on each side of a ruled line at which the background is sampled
_MIN_DRAWING_PX: Final = 3
_SAMPLES: Final = 12  # pixels sampled per column of a gap, from above the text to below it
_MAX_GAP_PX: Final = 64  # only this width of a gap is searched, from its left side

RuleFinder = Callable[[Numbers, Numbers, Numbers, Numbers], tuple[Flags, Flags]]
"""For gaps given by left and right side, baseline and font size: whether a ruled line crosses the text line in each
gap, and whether the background changes there."""


def look_frame(width: int, height: int, dpi: int) -> PageFrame:
    """A page's size in pixels at `dpi`, and the size of its small drawing at LOOK_DPI, as a PageFrame."""
    scale = min(1.0, LOOK_DPI / dpi)
    return PageFrame(width, height, max(1, round(width * scale)), max(1, round(height * scale)))


def edges_of(drawing: Pixels) -> Pixels:
    """Difference between the lightest and darkest pixel in the 3 x 3 pixels around each pixel of a gray drawing."""
    return np.asarray(cv2.morphologyEx(drawing, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)), np.uint8)


def find_seen(edges: Pixels, quads: NDArray[np.float32], frame: PageFrame) -> Flags:
    """Whether each line's box (L, 4, 2) has visible ink; text in the colour of the paper has none."""
    height, width = edges.shape
    frames = np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1) * _scale(frame)[[0, 1, 0, 1]]
    seen = np.zeros(len(quads), np.bool_)
    for number, (left, top, right, bottom) in enumerate(frames.tolist()):
        x, y = min(max(0, int(left)), width - 1), min(max(0, int(top)), height - 1)
        seen[number] = edges[y : max(y, int(bottom)) + 1, x : max(x, int(right)) + 1].max() >= _SEEN
    return seen


def rest_share(edges: Pixels, quads: NDArray[np.float32], frame: PageFrame, region: Rectangle | None = None) -> float:
    """The share of the page, or of a region, covered by possible text outside the boxes `quads`."""
    ink = np.asarray(edges > _EDGE, np.uint8)
    covered = np.zeros_like(ink)
    for quad in np.round(quads * _scale(frame)).astype(np.int32):
        cv2.fillConvexPoly(covered, quad, 1)
    covered = np.asarray(cv2.dilate(covered, np.ones((5, 5), np.uint8)), np.uint8)
    part = np.s_[:, :]
    if region is not None:
        sides = np.array([*region[:2], region[0] + region[2], region[1] + region[3]])
        left, top, right, bottom = (sides * _scale(frame)[[0, 1, 0, 1]]).astype(int).tolist()
        part = np.s_[top:bottom, left:right]

    def share_outside(ink: Pixels) -> float:
        inside = np.ascontiguousarray(np.where(covered, np.uint8(0), ink)[part])
        return _area_of_pieces(_without_rules(inside)) / max(1, inside.size)

    # Erased text boxes cut ruled lines into pieces too short to recognize, so also try removing ruled lines first.
    return min(share, share_outside(_without_rules(ink))) if (share := share_outside(ink)) else share


def _scale(frame: PageFrame) -> NDArray[np.float32]:
    return np.array([frame.small_width / frame.width, frame.small_height / frame.height], np.float32)


def _without_rules(ink: Pixels) -> Pixels:
    if not ink.size:
        return ink
    rest = ink
    for along, across in (((1, _RULE_PX), (_THICK_PX, 1)), ((_RULE_PX, 1), (1, _THICK_PX))):
        long = cv2.morphologyEx(ink, cv2.MORPH_OPEN, np.ones(along, np.uint8))
        # A row of letters can be as long as a ruled line but is thicker: remove only thin ones.
        thick = cv2.morphologyEx(long, cv2.MORPH_OPEN, np.ones(across, np.uint8))
        rest = np.asarray(cv2.subtract(rest, cv2.subtract(long, thick)), np.uint8)
    return rest


def _area_of_pieces(ink: Pixels) -> int:
    """Total area of the bounding boxes of connected components that are dense enough to be text or pictures."""
    if not ink.size or not ink.any():
        return 0
    joined = cv2.morphologyEx(ink, cv2.MORPH_CLOSE, np.ones((1, _JOINED_PX), np.uint8))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(joined, connectivity=8)
    inked = np.bincount(labels[ink > 0], minlength=count)
    frames = stats[:, cv2.CC_STAT_WIDTH].astype(np.int64) * stats[:, cv2.CC_STAT_HEIGHT]
    sides = stats[:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]]
    counts = (sides >= _MIN_SIDES_PX).all(axis=1) & (inked >= _MIN_SHARE * frames)
    counts[0] = False
    return int(frames[counts].sum())


def rule_finder(drawing: Pixels, frame: PageFrame, degrees: int) -> RuleFinder | None:
    """Make a RuleFinder, whose gaps are on the upright page; None if text is not turned by a multiple of 90 degrees."""
    if degrees % 90:
        return None
    height, width = drawing.shape
    x, y = {0: (0, 0), 90: (0, width), 180: (width, height), 270: (height, 0)}[degrees]
    scale_x, scale_y = _scale(frame).tolist()[:: 1 if degrees % 180 == 0 else -1]
    turned = np.ascontiguousarray(np.rot90(drawing, degrees // 90))
    # The darker side is the background: a ruled line is darker than both sides, a coloured area only than one.
    beside = [cv2.dilate(turned, np.ones((1, _NEAR_PX + 1), np.uint8), anchor=(at, 0)) for at in (0, _NEAR_PX)]
    ground = np.asarray(cv2.min(*beside), np.uint8)

    def find(left: Numbers, right: Numbers, base: Numbers, em: Numbers) -> tuple[Flags, Flags]:
        sides = left * scale_x + x, right * scale_x + x
        rows = (base - _ABOVE * em) * scale_y + y, (base + _BELOW * em) * scale_y + y
        return _find_rules(turned, ground, *sides, *rows)

    return find


def _find_rules(
    drawing: Pixels, ground: Pixels, left: Numbers, right: Numbers, top: Numbers, bottom: Numbers
) -> tuple[Flags, Flags]:
    """For each gap in a text line: whether a vertical rule stands in it; whether the background changes in it."""
    (height, width), is_rule, is_step = drawing.shape, np.zeros(len(left), np.bool_), np.zeros(len(left), np.bool_)
    if width < _MIN_DRAWING_PX:
        return is_rule, is_step
    first = np.clip(np.floor(left), 1, width - 1).astype(np.intp)
    last = np.clip(np.ceil(right) - 1, 1, width - 2).astype(np.intp)
    rows = np.clip(np.linspace(top, bottom, _SAMPLES), 0, height - 1).astype(np.intp)
    for at in range(min(_MAX_GAP_PX, int((last - first).max(initial=-1)) + 1)):
        column = np.minimum(first + at, width - 2)
        here = drawing[rows, column].astype(np.int16)
        step = drawing[rows, column + 1].astype(np.int16) - drawing[rows, column - 1]
        within = first + at <= last
        is_rule |= within & (ground[rows, column] - here > _STEP).all(axis=0)
        is_step |= within & ((step > _STEP).all(axis=0) | (step < -_STEP).all(axis=0))
    return is_rule, is_step
