"""Puts the lines of a page into the regions that a layout model found on it.

Lines stay in the order that geometry gave them: read region by region they come in a worse one (docs/design/layout.md).
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

WITHIN: Final = 0.5  # of a line's frame lies within its region
NOBODY: Final = -1

Frames = NDArray[np.float32]
"""(N, 4) left, top, right, bottom of lines on the upright page."""


@dataclass(frozen=True, slots=True)
class FoundRegion:
    """What a layout model found: its type, confidence in [0, 1], and left, top, right, bottom on the upright page."""

    type: RegionType
    confidence: float
    frame: tuple[float, float, float, float]


Group = tuple[FoundRegion, Sequence[int]]
"""A region, and the lines in it."""


def assign_lines(page: Page, found: Sequence[FoundRegion]) -> tuple[Region, ...]:
    """The regions of a page, in the order of their middle lines.

    Every line is in one region: in the surest of those found that hold most of it. Lines that are in none, and follow
    each other, are a region of text of confidence 0. What was found comes surest first, on the page turned clockwise by
    its `angle`.
    """
    quads = np.array([line.box for line in page.lines], np.float32).reshape(-1, 4, 2)
    upright = turn_points(quads, page.angle, page.width, page.height)
    frames = np.concatenate([upright.min(axis=1), upright.max(axis=1)], axis=1)
    return tuple(
        Region(region.type, region.confidence, _box_of(page, region.frame), tuple(lines))
        for region, lines in _grouped(frames, found)
    )


def _grouped(frames: Frames, found: Sequence[FoundRegion]) -> list[Group]:
    """The regions with their lines; those without lines where they stand."""
    held: dict[tuple[int, int], list[int]] = {}
    owners, run = _owners(frames, found), 0
    for number, owner in enumerate(owners):
        run += number > 0 and owner != owners[number - 1]
        held.setdefault((owner, run if owner == NOBODY else 0), []).append(number)
    groups: list[Group] = [
        (found[owner] if owner != NOBODY else _text_around(frames[lines]), lines)
        for (owner, _), lines in sorted(held.items(), key=lambda item: median_low(item[1]))
    ]
    for region in (region for number, region in enumerate(found) if (number, 0) not in held):
        groups.insert(_place_of(region, groups), (region, ()))
    return groups


def _owners(frames: Frames, found: Sequence[FoundRegion]) -> list[int]:
    """For each line of the upright page, which region holds most of it; NOBODY, if none does."""
    if not found:
        return [NOBODY] * len(frames)
    regions = np.array([region.frame for region in found], np.float32)
    low, high = np.maximum(frames[:, None, :2], regions[:, :2]), np.minimum(frames[:, None, 2:], regions[:, 2:])
    shared = (high - low).clip(0).prod(axis=2)
    holds = (shared >= WITHIN * (frames[:, 2:] - frames[:, :2]).prod(axis=1)[:, None]) & (shared > 0)
    return [int(owner) for owner in np.where(holds.any(axis=1), holds.argmax(axis=1), NOBODY)]


def _text_around(frames: Frames) -> FoundRegion:
    left, top = frames[:, :2].min(axis=0).tolist()
    right, bottom = frames[:, 2:].max(axis=0).tolist()
    return FoundRegion("text", 0.0, (left, top, right, bottom))


def _place_of(region: FoundRegion, groups: Sequence[Group]) -> int:
    """Where a region without lines comes in: behind the last one above it, else before all."""
    left, top, right, bottom = region.frame
    place = 0
    for number, (other, _) in enumerate(groups, 1):
        other_left, _, other_right, other_bottom = other.frame
        if other_bottom <= (top + bottom) / 2 and other_left < right and left < other_right:
            place = number
    return place


def _box_of(page: Page, frame: Sequence[float]) -> Box:
    """A frame of the upright page, in the page's image."""
    left, top, right, bottom = frame
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)
    width, height = (page.height, page.width) if page.angle in (90, 270) else (page.width, page.height)
    return as_box(turn_points(corners, -page.angle % 360, width, height))
