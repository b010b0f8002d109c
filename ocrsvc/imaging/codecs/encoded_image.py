"""An image file whose header was read, and the conversion of its samples to upright 8-bit gray or BGR for engines."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.errors import BrokenImage
from ocrsvc.imaging.geometry import turn
from ocrsvc.results import Check, Pixels

Samples = NDArray[Any]  # (H, W) gray, (H, W, 3) BGR or (H, W, 4) BGRA with straight alpha; uint8 or uint16, full range

Resolution = tuple[float, float]  # pixels per inch, across and down

FLAT_LEVELS = 48  # a page whose gray levels span fewer counts as one flat colour
OPAQUE = 255
BAND_PIXELS: Final = 1 << 18  # pixels converted per step, so that intermediate arrays do not grow with the page

# EXIF orientations that mirror the image left to right, before it is turned by the clockwise degrees in _TURNS.
_MIRRORED: Final = frozenset({2, 4, 5, 7})
_TURNS: Final = {3: 180, 4: 180, 6: 90, 7: 90, 5: 270, 8: 270}


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The header of an image file: lower-case format name; size and `dpi` before the EXIF `orientation` is applied.

    `read(gray, check)` decodes the samples; with `gray` it may omit colour. It raises BrokenImage. While a child
    process decodes, it calls `check`, which may raise. The field `gray` says that the file has no colour.
    Peak memory of decoding is `bytes_per_pixel` (for gray and colour output; includes the flattened image and OpenCV's
    second copy of all samples) plus `copied_bytes` for copies of the file.
    """

    format: str
    width: int
    height: int
    read: Callable[[bool, Check], Samples]
    orientation: int = 1
    gray: bool = False
    bytes_per_pixel: tuple[int, int] = (2, 6)
    copied_bytes: int = 0
    dpi: Resolution | None = None

    def flat_bytes(self, *, gray: bool) -> int:
        """Size of the decoded image in bytes."""
        return self.width * self.height * (1 if gray or self.gray else 3)

    def peak_bytes(self, *, gray: bool) -> int:
        """Peak memory in bytes of decoding and turning upright."""
        decoding = self.width * self.height * self.bytes_per_pixel[not (gray or self.gray)] + self.copied_bytes
        return max(decoding, self.flat_bytes(gray=gray) * (1 if self.orientation == 1 else 2))


def broken(name: str, problem: str) -> BrokenImage:
    """Make the error for a damaged file of the format `name`; `problem` completes "This PNG ..."."""
    return BrokenImage(f"This {name} {problem}.", "Check that the file opens in a viewer and is sent whole.")


def decode_with_opencv(raw: bytes, flags: int, name: str) -> Samples:
    """Decode an image with OpenCV, which releases the GIL. Raises BrokenImage."""
    samples = try_opencv(raw, flags)
    if samples is None:
        raise broken(name, "is truncated or damaged: its pixels cannot be decoded")
    return samples


def try_opencv(raw: bytes, flags: int) -> Samples | None:
    """Like `decode_with_opencv`, but returns None on failure."""
    try:
        return cv2.imdecode(np.frombuffer(raw, np.uint8), flags)
    except cv2.error:
        return None


def turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """Apply an EXIF orientation: returns `pixels` itself for orientation 1, else a turned or mirrored copy."""
    if orientation in _MIRRORED:
        pixels = _u8(cv2.flip(pixels, 1))
    return turn(pixels, _TURNS.get(orientation, 0))


def bands(height: int, width: int) -> Iterator[slice]:
    """Divide the rows of a page into slices of about BAND_PIXELS pixels."""
    rows = max(1, BAND_PIXELS // max(1, width))
    return (slice(top, min(top + rows, height)) for top in range(0, height, rows))


def flatten(samples: Samples, *, gray: bool) -> Pixels:
    """Convert to opaque 8-bit pixels: (H, W) for one channel or with `gray`, else (H, W, 3) BGR."""
    if samples.ndim == 3 and samples.shape[2] == 4:
        return _composite(samples, gray=gray)
    if samples.dtype == np.uint8 and (samples.ndim == 2 or not gray):
        return np.ascontiguousarray(samples, np.uint8)
    flat = np.empty(samples.shape[:2] if gray or samples.ndim == 2 else (*samples.shape[:2], 3), np.uint8)
    for rows in bands(*samples.shape[:2]):
        eight = _to_8_bits(samples[rows])
        flat[rows] = cv2.cvtColor(eight, cv2.COLOR_BGR2GRAY) if gray and eight.ndim == 3 else eight
    return flat


def stretch(values: NDArray[Any]) -> Pixels:
    """Convert (H, W) float or 32-bit samples, whose header states no white level, to 8-bit gray.

    If all values lie in 0 to 1, 1 is white; else if all lie in 0 to 255, 255 is white; other ranges are stretched.
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


def _to_8_bits(samples: Samples) -> Pixels:
    return (samples >> 8 if samples.dtype == np.uint16 else samples).astype(np.uint8, copy=False)


def _composite(bgra: Samples, *, gray: bool) -> Pixels:
    """Composite over white, or over black if white would hide the content, such as white letters."""
    flat, parts = np.empty(bgra.shape[:2] if gray else (*bgra.shape[:2], 3), np.uint8), list(bands(*bgra.shape[:2]))

    def on_black(rows: slice) -> tuple[Pixels, Pixels]:
        """Composite rows over black. Returns their pixels and their alpha, both with the same number of channels."""
        eight = _to_8_bits(bgra[rows])
        colour = cv2.cvtColor(eight, cv2.COLOR_BGRA2GRAY if gray else cv2.COLOR_BGRA2BGR)
        alpha = cv2.extractChannel(eight, 3)
        alpha = alpha if gray else cv2.merge([alpha, alpha, alpha])
        is_opaque = int(eight[..., 3].min()) == OPAQUE
        return _u8(colour if is_opaque else cv2.multiply(colour, alpha, scale=1 / OPAQUE)), _u8(alpha)

    for rows in parts:
        colour, alpha = on_black(rows)
        flat[rows] = cv2.add(colour, cv2.bitwise_not(alpha))
    contrast = _contrast(flat[rows] for rows in parts)
    if contrast < FLAT_LEVELS and _contrast(on_black(rows)[0] for rows in parts) > 2 * contrast:
        for rows in parts:
            flat[rows] = on_black(rows)[0]
    return flat


def _contrast(parts: Iterable[Pixels]) -> int:
    """Difference in gray levels between the darkest and lightest pixel of a page, given in bands of rows."""
    low, high = OPAQUE, 0
    for pixels in parts:
        gray = pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
        darkest, lightest, _, _ = cv2.minMaxLoc(gray)
        low, high = min(low, int(darkest)), max(high, int(lightest))
    return high - low


def _u8(array: object) -> Pixels:
    return np.asarray(array, np.uint8)
