"""An image file whose header is read; and its samples, decoded, as the upright 8-bit gray or BGR that engines read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.errors import BrokenImage
from ocrsvc.results import Pixels

Samples = NDArray[Any]
"""(H, W) gray, (H, W, 3) BGR or (H, W, 4) BGRA with straight alpha; uint8 or uint16, full range."""

Resolution = tuple[float, float]
"""Pixels an inch, across and down."""

FLAT_LEVELS = 48  # gray levels between the darkest and the lightest pixel up to which a page counts as one flat colour

OPAQUE = 255
BAND_PIXELS: Final = 1 << 18  # pixels that are worked on at once, so that intermediate arrays do not grow with the page

# A mirrored image is mirrored left to right first and turned clockwise afterwards.
_MIRRORED: Final = frozenset({2, 4, 5, 7})
_TURNS: Final = {
    3: cv2.ROTATE_180,
    4: cv2.ROTATE_180,
    6: cv2.ROTATE_90_CLOCKWISE,
    7: cv2.ROTATE_90_CLOCKWISE,
    5: cv2.ROTATE_90_COUNTERCLOCKWISE,
    8: cv2.ROTATE_90_COUNTERCLOCKWISE,
}


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A file, by its header: the format's lower-case name, and the pixels that the decoder will hold, before any turn.

    `read` decodes the pixels, given True perhaps without colour; raises BrokenImage. `orientation` is EXIF's and still
    to be applied; `gray` says that there is no colour. Decoding holds `bytes_per_pixel` at most, the flat image
    included, for a gray image and for one in colour (OpenCV's answer to Python is a copy: it holds all samples twice
    for a moment), and `copied_bytes` of the file. `dpi` is of the samples as stored, None where the file states none.
    """

    format: str
    width: int
    height: int
    read: Callable[[bool], Samples]
    orientation: int = 1
    gray: bool = False
    bytes_per_pixel: tuple[int, int] = (2, 6)
    copied_bytes: int = 0
    dpi: Resolution | None = None

    def flat_bytes(self, *, gray: bool) -> int:
        """The bytes of the decoded image."""
        return self.width * self.height * (1 if gray or self.gray else 3)

    def most_bytes(self, *, gray: bool) -> int:
        """The most bytes that are held while it is decoded and turned upright."""
        decoding = self.width * self.height * self.bytes_per_pixel[not (gray or self.gray)] + self.copied_bytes
        return max(decoding, self.flat_bytes(gray=gray) * (1 if self.orientation == 1 else 2))


def broken(name: str, what: str) -> BrokenImage:
    """The error for a damaged file of the format `name`; `what` completes "This PNG ..."."""
    return BrokenImage(f"This {name} {what}.", "Check that the file opens in a viewer and is sent whole.")


def decode_with_opencv(raw: bytes, flags: int, name: str) -> Samples:
    """Decode without the GIL. Raises BrokenImage."""
    samples = try_opencv(raw, flags)
    if samples is None:
        raise broken(name, "is cut off or damaged: its pixels cannot be decoded")
    return samples


def try_opencv(raw: bytes, flags: int) -> Samples | None:
    """Like `decode_with_opencv`, but None if that fails."""
    try:
        return cv2.imdecode(np.frombuffer(raw, np.uint8), flags)
    except cv2.error:
        return None


def turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """The image as its EXIF orientation means it: `pixels` itself for 1, else a turned or mirrored copy."""
    if orientation in _MIRRORED:
        pixels = _u8(cv2.flip(pixels, 1))
    turn = _TURNS.get(orientation)
    return pixels if turn is None else _u8(cv2.rotate(pixels, turn))


def bands(height: int, width: int) -> Iterator[slice]:
    """The rows of a page, BAND_PIXELS at a time."""
    rows = max(1, BAND_PIXELS // max(1, width))
    return (slice(top, min(top + rows, height)) for top in range(0, height, rows))


def flatten(samples: Samples, *, gray: bool) -> Pixels:
    """Eight bits, no transparency: (H, W) where `samples` has one channel or `gray` asks for it, else (H, W, 3) BGR."""
    if samples.ndim == 3 and samples.shape[2] == 4:
        return _composite(samples, gray=gray)
    if samples.dtype == np.uint8 and (samples.ndim == 2 or not gray):
        return np.ascontiguousarray(samples, np.uint8)
    flat = _empty(samples, gray=gray)
    for rows in bands(*samples.shape[:2]):
        eight = _to_8_bits(samples[rows])
        flat[rows] = cv2.cvtColor(eight, cv2.COLOR_BGR2GRAY) if gray and eight.ndim == 3 else eight
    return flat


def stretch(values: NDArray[Any]) -> Pixels:
    """8-bit gray from (H, W) float or 32-bit samples, whose white is in no header.

    Up to 1 they are read as fractions, up to 255 as they are, and anything else from its darkest to its lightest value.
    """
    ends = [(levels.min(), levels.max()) for rows in bands(*values.shape) for levels in (_finite(values[rows]),)]
    low, high = float(min(low for low, _ in ends)), float(max(high for _, high in ends))
    if low >= 0 and high <= OPAQUE:
        low, high = 0.0, 1.0 if high <= 1 else float(OPAQUE)
    eight = np.empty(values.shape, np.uint8)
    for rows in bands(*values.shape):
        scaled = (_finite(values[rows]) - low) * (OPAQUE / max(high - low, 1e-30))
        eight[rows] = scaled.round().clip(0, OPAQUE)
    return eight


def _finite(values: NDArray[Any]) -> NDArray[np.float32]:
    return np.nan_to_num(values.astype(np.float32), posinf=0.0, neginf=0.0)


def _empty(samples: Samples, *, gray: bool) -> Pixels:
    return np.empty(samples.shape[:2] if gray or samples.ndim == 2 else (*samples.shape[:2], 3), np.uint8)


def _to_8_bits(samples: Samples) -> Pixels:
    if samples.dtype == np.uint16:
        return (samples >> 8).astype(np.uint8)
    return samples.astype(np.uint8, copy=False)


def _composite(bgra: Samples, *, gray: bool) -> Pixels:
    """Composite over white; over black where white would hide the page, as it does white letters."""
    flat, is_opaque = _empty(bgra, gray=gray), True
    for rows in bands(*bgra.shape[:2]):
        colour, alpha = _split_alpha(bgra[rows], gray=gray)
        if int(alpha.min()) < OPAQUE:
            is_opaque = False
            on_black = _over_black(colour, alpha)
            colour = _u8(cv2.add(on_black, cv2.bitwise_not(_with_channels_of(alpha, colour))))
        flat[rows] = colour
    if is_opaque:
        return flat

    def band_on_black(rows: slice) -> Pixels:
        return _over_black(*_split_alpha(bgra[rows], gray=gray))

    parts = list(bands(*flat.shape[:2]))
    contrast = _contrast(flat[rows] for rows in parts)
    if contrast < FLAT_LEVELS and _contrast(map(band_on_black, parts)) > 2 * contrast:
        for rows in parts:
            flat[rows] = band_on_black(rows)
    return flat


def _split_alpha(bgra: Samples, *, gray: bool) -> tuple[Pixels, Pixels]:
    eight = _to_8_bits(bgra)
    colour = cv2.cvtColor(eight, cv2.COLOR_BGRA2GRAY if gray else cv2.COLOR_BGRA2BGR)
    return _u8(colour), _u8(cv2.extractChannel(eight, 3))


def _over_black(colour: Pixels, alpha: Pixels) -> Pixels:
    return _u8(cv2.multiply(colour, _with_channels_of(alpha, colour), scale=1 / OPAQUE))


def _with_channels_of(alpha: Pixels, colour: Pixels) -> Pixels:
    return alpha if colour.ndim == 2 else _u8(cv2.merge([alpha, alpha, alpha]))


def _contrast(parts: Iterable[Pixels]) -> int:
    """Gray levels between the darkest and the lightest pixel of a page in bands."""
    low, high = OPAQUE, 0
    for pixels in parts:
        gray = pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
        darkest, lightest, _, _ = cv2.minMaxLoc(gray)
        low, high = min(low, int(darkest)), max(high, int(lightest))
    return high - low


def _u8(array: object) -> Pixels:
    return np.asarray(array, np.uint8)
