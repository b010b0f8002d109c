"""Assigns the lines of a page to the regions that a layout model found.

Lines keep their geometric reading order: ordering them by region is worse (docs/design/layout.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.geometry import as_box, turn_points
from ocrsvc.results import Box, Page, Region, RegionType

WITHIN: Final = 0.5  # smallest share of a line's frame inside its region
NO_REGION: Final = -1

Frames = NDArray[np.float32]
"""(N, 4) left, top, right, bottom of lines on the upright page."""


@dataclass(frozen=True, slots=True)
class FoundRegion:
    """A region of a layout model: type, confidence in [0, 1], and left, top, right, bottom on the upright page."""

    type: RegionType
    confidence: float
    frame: tuple[float, float, float, float]


Group = tuple[FoundRegion, Sequence[int]]
"""A region, and indices of its lines."""


def assign_lines(page: Page, found: Sequence[FoundRegion]) -> tuple[Region, ...]:
    """Regions of a page with their lines, in the order of their median lines.

    Each line belongs to the most confident region that contains most of it. Consecutive lines outside all regions form
    a text region with confidence 0. `found` comes most confident first, on the page turned clockwise by its `angle`.
    """
    quads = np.array([line.box for line in page.lines], np.float32).reshape(-1, 4, 2)
    upright = turn_points(quads, page.angle, page.width, page.height)
    frames = np.concatenate([upright.min(axis=1), upright.max(axis=1)], axis=1)
    return tuple(
        Region(region.type, region.confidence, _box_of(page, region.frame), tuple(lines))
        for region, lines in _grouped(frames, found)
    )


def _grouped(frames: Frames, found: Sequence[FoundRegion]) -> list[Group]:
    """The regions with their lines; regions without lines are inserted by position."""
    lines_of: dict[tuple[int, int], list[int]] = {}
    owners, run = _owners(frames, found), 0
    for number, owner in enumerate(owners):
        run += number > 0 and owner != owners[number - 1]
        lines_of.setdefault((owner, run if owner == NO_REGION else 0), []).append(number)
    groups: list[Group] = [
        (found[owner] if owner != NO_REGION else _text_around(frames[lines]), lines)
        for (owner, _), lines in sorted(lines_of.items(), key=lambda item: median_low(item[1]))
    ]
    for region in (region for number, region in enumerate(found) if (number, 0) not in lines_of):
        groups.insert(_place_of(region, groups), (region, ()))
    return groups


def _owners(frames: Frames, found: Sequence[FoundRegion]) -> list[int]:
    """Index of the region of each line on the upright page; NO_REGION if none contains most of it."""
    if not found:
        return [NO_REGION] * len(frames)
    regions = np.array([region.frame for region in found], np.float32)
    low, high = np.maximum(frames[:, None, :2], regions[:, :2]), np.minimum(frames[:, None, 2:], regions[:, 2:])
    shared = (high - low).clip(0).prod(axis=2)
    holds = (shared >= WITHIN * (frames[:, 2:] - frames[:, :2]).prod(axis=1)[:, None]) & (shared > 0)
    return [int(owner) for owner in np.where(holds.any(axis=1), holds.argmax(axis=1), NO_REGION)]


def _text_around(frames: Frames) -> FoundRegion:
    left, top = frames[:, :2].min(axis=0).tolist()
    right, bottom = frames[:, 2:].max(axis=0).tolist()
    return FoundRegion("text", 0.0, (left, top, right, bottom))


def _place_of(region: FoundRegion, groups: Sequence[Group]) -> int:
    """Index at which to insert a region without lines: after the last region above it, else first."""
    left, top, right, bottom = region.frame
    place = 0
    for number, (other, _) in enumerate(groups, 1):
        other_left, _, other_right, other_bottom = other.frame
        if other_bottom <= (top + bottom) / 2 and other_left < right and left < other_right:
            place = number
    return place


def _box_of(page: Page, frame: Sequence[float]) -> Box:
    """Convert a frame of the upright page to a box in the page's image."""
    left, top, right, bottom = frame
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)
    width, height = (page.height, page.width) if page.angle in (90, 270) else (page.width, page.height)
    return as_box(turn_points(corners, -page.angle % 360, width, height))
