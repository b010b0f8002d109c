"""Looks at a small drawing of a page: which lines are to be seen on it, and how much stands on it besides them."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.copied_text import Flags, PageFrame
from ocrsvc.records import Pixels, Rectangle

LOOK_DPI: Final = 50
"""At which a page is drawn for this look: text of 6 points is 4 pixels high."""

_EDGE: Final = 40
"""The least difference of neighbouring pixels, of 255, that counts as ink."""
_SEEN: Final = 8
"""The least difference within a line's box that shows that something is written there."""
_RULE_PX: Final = 25
"""Straight edges of half an inch and more are rules, frames and bars: no text."""
_THICK_PX: Final = 5
_JOINED_PX: Final = 7
_LEAST_SIDES_PX: Final = (5, 4)
"""Text of 5 points has more; the ends of a bar of a chart are as thick as their outline."""
_LEAST_SHARE: Final = 0.2
"""Ink in the frame of a piece of text or of a picture; curves and outlines have less."""


def look_frame(width: int, height: int, dpi: int) -> PageFrame:
    """The frame of a page of so many pixels at so many a inch, with small sides for the look at it."""
    scale = min(1.0, LOOK_DPI / dpi)
    return PageFrame(width, height, max(1, round(width * scale)), max(1, round(height * scale)))


def edges_of(drawing: Pixels) -> Pixels:
    """How much each pixel of a gray drawing differs from those around it."""
    return np.asarray(cv2.morphologyEx(drawing, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)), np.uint8)


def find_seen(edges: Pixels, quads: NDArray[np.float32], frame: PageFrame) -> Flags:
    """(L,) in which of the lines' boxes something is drawn: text in the paper's colour is there to be found by others.

    Args:
        edges: Of a small drawing of the page.
        quads: (L, 4, 2) boxes of lines, in pixels of the frame.
        frame: Of the page.
    """
    height, width = edges.shape
    frames = np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1) * _scale(frame)[[0, 1, 0, 1]]
    seen = np.zeros(len(quads), np.bool_)
    for number, (left, top, right, bottom) in enumerate(frames.tolist()):
        x, y = min(max(0, int(left)), width - 1), min(max(0, int(top)), height - 1)
        part = edges[y : max(y, int(bottom)) + 1, x : max(x, int(right)) + 1]
        seen[number] = part.max() >= _SEEN
    return seen


def rest_share(edges: Pixels, quads: NDArray[np.float32], frame: PageFrame, region: Rectangle | None = None) -> float:
    """The share of the page that is taken by what may be text, outside of these boxes; 0 where there is nothing.

    Args:
        edges, quads, frame: As for `find_seen`.
        region: The part of the page that is looked at, in pixels of the frame; None is all of it.
    """
    ink = np.asarray(edges > _EDGE, np.uint8)
    covered = np.zeros_like(ink)
    corners = np.round(quads * _scale(frame)).astype(np.int32)
    for quad in corners:
        cv2.fillConvexPoly(covered, quad, 1)
    covered = np.asarray(cv2.dilate(covered, np.ones((5, 5), np.uint8)), np.uint8)
    share = _share_outside(ink, covered, frame, region)
    # The boxes of a table's lines leave short pieces of its rules, which are rules before they are covered alone.
    return min(share, _share_outside(_without_rules(ink), covered, frame, region)) if share else share


def _share_outside(ink: Pixels, covered: Pixels, frame: PageFrame, region: Rectangle | None) -> float:
    ink = np.where(covered, np.uint8(0), ink)
    if region is not None:
        x, y, width, height = region
        left, top, right, bottom = (np.array([x, y, x + width, y + height]) * _scale(frame)[[0, 1, 0, 1]]).astype(int)
        ink = np.ascontiguousarray(ink[top:bottom, left:right])
    return _area_of_pieces(_without_rules(ink)) / max(1, ink.size)


def _scale(frame: PageFrame) -> NDArray[np.float32]:
    return np.array([frame.small_width / frame.width, frame.small_height / frame.height], np.float32)


def _without_rules(ink: Pixels) -> Pixels:
    if not ink.size:
        return ink
    rest = ink
    for along, across in (((1, _RULE_PX), (_THICK_PX, 1)), ((_RULE_PX, 1), (1, _THICK_PX))):
        long = cv2.morphologyEx(ink, cv2.MORPH_OPEN, np.ones(along, np.uint8))
        # Letters beside each other are as long, and thicker.
        thick = cv2.morphologyEx(long, cv2.MORPH_OPEN, np.ones(across, np.uint8))
        rest = np.asarray(cv2.subtract(rest, cv2.subtract(long, thick)), np.uint8)
    return rest


def _area_of_pieces(ink: Pixels) -> int:
    """Pixels in the frames of what is dense enough to be text or a picture."""
    if not ink.size or not ink.any():
        return 0
    joined = cv2.morphologyEx(ink, cv2.MORPH_CLOSE, np.ones((1, _JOINED_PX), np.uint8))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(joined, connectivity=8)
    inked = np.bincount(labels[ink > 0], minlength=count)
    frames = stats[:, cv2.CC_STAT_WIDTH].astype(np.int64) * stats[:, cv2.CC_STAT_HEIGHT]
    counts = (stats[:, cv2.CC_STAT_WIDTH] >= _LEAST_SIDES_PX[0]) & (stats[:, cv2.CC_STAT_HEIGHT] >= _LEAST_SIDES_PX[1])
    counts &= inked >= _LEAST_SHARE * frames
    counts[0] = False
    return int(frames[counts].sum())
