"""Reads the header of a GIF or TIFF, and decodes its first frame or page with Pillow.

Uses Pillow's plugin classes directly: `PIL.Image.open` has a process-wide pixel limit and tries all formats. Pillow
takes 3 MB, so it is imported with the first such file.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np

from ocrsvc.errors import ImageTooLarge
from ocrsvc.imaging.codecs.encoded_image import EncodedImage, Samples, bands, broken, stretch
from ocrsvc.imaging.codecs.tiff_directories import begin_with
from ocrsvc.results import Check

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage
    from PIL.TiffImagePlugin import TiffImageFile

PHOTOMETRIC, ORIENTATION, TILE_WIDTH, TILE_LENGTH = 262, 274, 322, 323
WHITE_IS_ZERO = 0

# Pillow's parsers raise these for damaged files. MemoryError is left out, as it is not the file's fault.
_BY_VALUE = (ArithmeticError, LookupError, TypeError, ValueError, struct.error)
_BY_STATE = (AssertionError, AttributeError, EOFError, OSError, RuntimeError, SyntaxError, Warning)
PARSER_FAILURES = (*_BY_VALUE, *_BY_STATE)


def open_gif(raw: bytes) -> EncodedImage:
    """Read the blocks up to the first frame. Raises BrokenImage, ImageTooLarge."""
    from PIL.GifImagePlugin import GifImageFile

    with _failures_translated("GIF"):
        width, height = GifImageFile(io.BytesIO(raw)).size

    @_failures_translated("GIF")
    def read(_gray: bool, _check: Check) -> Samples:  # noqa: FBT001  as EncodedImage asks for it
        return _read_colours(GifImageFile(io.BytesIO(raw)))

    return EncodedImage("gif", width, height, read, bytes_per_pixel=(8, 8))


def open_tiff(raw: bytes, page: int | None = None) -> EncodedImage:
    """Read the page whose directory is at byte `page`, by default the first; Pillow applies its orientation.

    Raises BrokenImage, ImageTooLarge.
    """
    from PIL.TiffImagePlugin import TiffImageFile

    def open_image() -> TiffImageFile:
        return TiffImageFile(io.BytesIO(raw if page is None else begin_with(raw, page)))

    @_failures_translated("TIFF")
    def read(_gray: bool, _check: Check) -> Samples:  # noqa: FBT001  as EncodedImage asks for it
        image = open_image()
        if not image.mode.startswith(("I", "F")):
            return _read_colours(image)
        levels = np.asarray(image)
        samples: Samples = stretch(levels) if image.mode in ("I", "F") else levels.astype(np.uint16)
        # If 0 is white, Pillow inverts one-byte samples only, so wider samples are inverted here.
        return np.invert(samples) if image.tag_v2.get(PHOTOMETRIC) == WHITE_IS_ZERO else samples

    with _failures_translated("TIFF"):
        image = open_image()
        tile_width, tile_length = image.tag_v2.get(TILE_WIDTH, 0), image.tag_v2.get(TILE_LENGTH, 0)
        # The decoder holds a whole tile in memory, which may be larger than the image.
        width, height = max(image.width, int(tile_width)), max(image.height, int(tile_length))
        need, dpi = _bytes_per_pixel(image), None
        with suppress(KeyError, TypeError, ValueError):
            across, down = map(float, image.info["dpi"])
            dpi = across, down
    # Pillow copies the file; if `page` is given, `begin_with` makes another copy.
    copied = len(raw) * (1 if page is None else 2)
    return EncodedImage("tiff", width, height, read, bytes_per_pixel=(need, need), copied_bytes=copied, dpi=dpi)


def _bytes_per_pixel(image: TiffImageFile) -> int:
    """Peak bytes per pixel: Pillow's samples (two copies while it turns the page), and the samples made from them."""
    if image.mode in ("I", "F"):
        return 3 * 4 + 1
    if image.mode.startswith("I;16"):
        return 4 * 2
    loaded = 1 if image.mode in ("1", "L", "P") else 4
    made = 4 if image.has_transparency_data else 3
    return max(loaded + made, 3 + made, 2 * loaded if ORIENTATION in image.tag_v2 else 0)


@contextmanager
def _failures_translated(name: str) -> Iterator[None]:
    from PIL.Image import DecompressionBombError, DecompressionBombWarning

    try:
        yield
    except (DecompressionBombError, DecompressionBombWarning) as cause:
        raise ImageTooLarge(f"This {name} declares too many pixels: {cause}", "Send a smaller image.") from cause
    except PARSER_FAILURES as cause:
        reason = str(cause).rstrip(" .\n")
        raise broken(name, f"is truncated, damaged or of an unsupported kind ({reason})") from cause


def _read_colours(image: PillowImage) -> Samples:
    image.load()
    palette = image.getpalette("RGB") or []
    is_gray = image.mode in ("1", "L") or (image.mode == "P" and palette[0::3] == palette[1::3] == palette[2::3])
    mode = "RGBA" if image.has_transparency_data else "L" if is_gray else "RGB"
    samples = np.empty((image.height, image.width, len(mode)), np.uint8)
    for rows in bands(image.height, image.width):
        part = np.asarray(image.crop((0, rows.start, image.width, rows.stop)).convert(mode))
        samples[rows] = part.reshape(*part.shape[:2], -1)
        # RGB to BGR in place.
        samples[rows, :, :3] = samples[rows, :, 2::-1]
    return samples[..., 0] if mode == "L" else samples
