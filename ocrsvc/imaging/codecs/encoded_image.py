"""An image file whose header is read and whose pixels are not decoded yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.errors import BrokenImage

Samples = NDArray[Any]
"""(H, W) gray, (H, W, 3) BGR or (H, W, 4) BGRA with straight alpha; uint8 or uint16, full range."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A file whose header is read and whose pixels are not.

    Attributes:
        format: Lower-case name of the file format, such as "jpeg".
        width, height: Pixels that the decoder will have to hold, before any turn.
        read: Decodes the pixels, in the calling thread; if it is given True, colour may be left out where that is
            cheaper. Raises BrokenImage.
        orientation: EXIF orientation that is still to be applied, 1 to 8.
        gray: The header says that there is no colour.
        bytes_per_pixel: What decoding holds at most for each pixel, the flat image included, for a gray image and for
            one in colour. OpenCV's answer to Python is a copy: it holds all samples twice for a moment.
        copied_bytes: Of the file, while it is decoded.
    """

    format: str
    width: int
    height: int
    read: Callable[[bool], Samples]
    orientation: int = 1
    gray: bool = False
    bytes_per_pixel: tuple[int, int] = (2, 6)
    copied_bytes: int = 0

    def flat_bytes(self, *, gray: bool) -> int:
        """What the image holds once it is decoded."""
        return self.width * self.height * (1 if gray or self.gray else 3)

    def most_bytes(self, *, gray: bool) -> int:
        """What is held at most while it is decoded and turned upright."""
        decoding = self.width * self.height * self.bytes_per_pixel[not (gray or self.gray)] + self.copied_bytes
        return max(decoding, self.flat_bytes(gray=gray) * (1 if self.orientation == 1 else 2))


def broken(name: str, what: str) -> BrokenImage:
    """The error for a damaged file of the format `name`; `what` completes "This PNG ..."."""
    return BrokenImage(f"This {name} {what}.", "Check that the file opens in a viewer and is sent whole.")


def decode_with_opencv(raw: bytes, flags: int, name: str) -> Samples:
    """What OpenCV makes of `raw`; it releases the GIL meanwhile. Raises BrokenImage."""
    samples = try_opencv(raw, flags)
    if samples is None:
        raise broken(name, "is cut off or damaged: its pixels cannot be decoded")
    return samples


def try_opencv(raw: bytes, flags: int) -> Samples | None:
    """Like `decode_with_opencv`, with None for what cannot be decoded."""
    try:
        return cv2.imdecode(np.frombuffer(raw, np.uint8), flags)
    except cv2.error:
        return None
