"""What does a GIF or TIFF declare, and what are its pixels? Of several frames or pages: the first.

Pillow reads these two. Its classes are opened directly, because `PIL.Image.open` also applies a pixel limit that is
global to the process, prints a warning near it, and tries every other format it knows.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cv2
import numpy as np
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import DecompressionBombError, DecompressionBombWarning
from PIL.Image import Image as PillowImage
from PIL.TiffImagePlugin import TiffImageFile

from ocrsvc.errors import ImageTooLarge
from ocrsvc.imaging.picture import Picture, Read, Samples, broken
from ocrsvc.imaging.tones import stretch

PHOTOMETRIC, TILE_WIDTH, TILE_LENGTH = 262, 322, 323
WHITE_IS_ZERO = 0

# Whatever Pillow's parsers stumble over in a damaged file; MemoryError is not among them, since it is nobody's file.
PARSER_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    Warning,
    struct.error,
)


def open_gif(raw: bytes) -> Picture:
    """Read the blocks up to the first frame. Raises BrokenImage, ImageTooLarge."""
    with _failures_translated("GIF"):
        image = GifImageFile(io.BytesIO(raw))
    return Picture("gif", *image.size, _reader(image, "GIF", _read_colours))


def open_tiff(raw: bytes) -> Picture:
    """Read the first directory. Pillow turns the pixels upright itself. Raises BrokenImage, ImageTooLarge."""
    with _failures_translated("TIFF"):
        image = TiffImageFile(io.BytesIO(raw))
        tile_width, tile_length = image.tag_v2.get(TILE_WIDTH, 0), image.tag_v2.get(TILE_LENGTH, 0)
        # A decoder holds one whole tile, which may be declared larger than the picture.
        width, height = max(image.width, int(tile_width)), max(image.height, int(tile_length))
    return Picture("tiff", width, height, _reader(image, "TIFF", _read_tiff))


def _reader(image: PillowImage, name: str, convert: Callable[[PillowImage], Samples]) -> Read:
    def read(*, gray: bool) -> Samples:
        del gray
        with _failures_translated(name):
            image.load()
            return convert(image)

    return read


@contextmanager
def _failures_translated(name: str) -> Iterator[None]:
    try:
        yield
    except (DecompressionBombError, DecompressionBombWarning) as cause:
        raise ImageTooLarge(f"This {name} declares too many pixels: {cause}", "Send a smaller image.") from cause
    except PARSER_FAILURES as cause:
        reason = str(cause).rstrip(" .\n")
        raise broken(name, f"is cut off, damaged or of a kind that is not read ({reason})") from cause


def _read_tiff(image: PillowImage) -> Samples:
    if not image.mode.startswith(("I", "F")):
        return _read_colours(image)
    levels = np.array(image)
    if image.mode in ("I", "F"):
        samples: Samples = stretch(levels)
    else:
        samples = levels.astype(np.uint16)
    # For one byte a sample Pillow turns white-is-zero round itself, for more it does not.
    return np.invert(samples) if _is_white_zero(image) else samples


def _is_white_zero(image: PillowImage) -> bool:
    return isinstance(image, TiffImageFile) and image.tag_v2.get(PHOTOMETRIC) == WHITE_IS_ZERO


def _read_colours(image: PillowImage) -> Samples:
    if image.has_transparency_data:
        return np.asarray(cv2.cvtColor(np.asarray(image.convert("RGBA")), cv2.COLOR_RGBA2BGRA))
    if image.mode in ("1", "L") or (image.mode == "P" and _is_gray(image)):
        return np.array(image.convert("L"))
    return np.asarray(cv2.cvtColor(np.asarray(image.convert("RGB")), cv2.COLOR_RGB2BGR))


def _is_gray(image: PillowImage) -> bool:
    palette = image.getpalette("RGB") or []
    return palette[0::3] == palette[1::3] == palette[2::3]
