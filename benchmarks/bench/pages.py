"""The pages that the load benchmarks send."""

from __future__ import annotations

from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

SCAN_WIDTH, SCAN_HEIGHT = 1024, 760
SCAN_BYTES = range(130_000, 140_001)
SEED = 2028
_LINES = 20


def tiny_png() -> bytes:
    """A gray PNG of 64 x 32 pixels with one word; about 300 bytes."""
    page = np.full((32, 64), 255, np.uint8)
    cv2.putText(page, "ocr", (6, 22), cv2.FONT_HERSHEY_SIMPLEX, 0.7, (0.0,), 1)
    return _encode(".png", page)


def scan(number: int) -> bytes:
    """A JPEG of 130 to 140 kB that looks like a scanned business card: 1024 x 760 pixels, twenty lines, grain.

    The same number gives the same bytes with the same version of OpenCV; different numbers give different pixels.
    """
    page = _draw_scan(number)
    for quality in range(50, 98):
        data = _encode(".jpg", page, cv2.IMWRITE_JPEG_QUALITY, quality)
        if len(data) in SCAN_BYTES:
            return data
    raise AssertionError(f"no JPEG quality gives {SCAN_BYTES} bytes")


def _draw_scan(number: int) -> NDArray[np.uint8]:
    random = np.random.default_rng([SEED, number])
    page = np.full((SCAN_HEIGHT, SCAN_WIDTH, 3), (236, 242, 245), np.uint8)
    for line in range(_LINES):
        words = " ".join(str(value) for value in random.integers(100, 99_999, 8))
        cv2.putText(
            page, f"{number}-{line} {words}", (40, 50 + 34 * line), cv2.FONT_HERSHEY_SIMPLEX, 0.8, (40, 30, 30), 2
        )
    grain = random.normal(0, 5, (SCAN_HEIGHT, SCAN_WIDTH, 1))
    return np.clip(page + grain, 0, 255).astype(np.uint8)


def _encode(suffix: str, page: NDArray[np.uint8], *options: int) -> bytes:
    encoded, data = cv2.imencode(suffix, page, options)
    assert encoded, f"OpenCV cannot write {suffix}"
    return cast(NDArray[np.uint8], data).tobytes()
