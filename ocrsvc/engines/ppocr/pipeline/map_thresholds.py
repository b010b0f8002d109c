"""What counts as text on a detector's map: the thresholds of DB post-processing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ocrsvc.engines.model.description import Detection

# Threshold and box threshold are those of PP-OCRv6's own configuration, which unclips by 1.4; 1.5 reads the same with
# fewer columns. How they were chosen: docs/design/detection.md.
MAP_THRESHOLD: Final = 0.2
BOX_THRESHOLD: Final = 0.45
UNCLIP_RATIO: Final = 1.5


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Of one detector.

    Attributes:
        of_map: Probability from which a pixel is text.
        of_box: Mean probability from which a shape is a line.
        unclip_ratio: How far a line reaches beyond its shape, times the shape's area by its perimeter.
    """

    of_map: float = MAP_THRESHOLD
    of_box: float = BOX_THRESHOLD
    unclip_ratio: float = UNCLIP_RATIO


USUAL_THRESHOLDS: Final = Thresholds()


def thresholds_of(part: Detection | None) -> Thresholds:
    """Those that a model's description states; the usual ones where it states none."""
    if part is None:
        return USUAL_THRESHOLDS
    return Thresholds(
        part.map_threshold or MAP_THRESHOLD, part.box_threshold or BOX_THRESHOLD, part.unclip_ratio or UNCLIP_RATIO
    )
