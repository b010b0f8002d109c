"""Converts an image file for a PDF page: copies JPEG and most PNG data unchanged, stores others losslessly."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np

from ocrsvc.errors import BrokenImage
from ocrsvc.imaging.codecs.decode import PixelLimits, decode_pixels, open_encoded_image, open_without_pillow
from ocrsvc.imaging.codecs.encoded_image import EncodedImage, Resolution
from ocrsvc.imaging.codecs.gif_and_tiff import open_tiff
from ocrsvc.imaging.codecs.jpeg import read_header
from ocrsvc.imaging.codecs.png import PALETTE, RGB, Png, read_png

_JPEG_COLOURS: Final = {1: b"/DeviceGray", 3: b"/DeviceRGB", 4: b"/DeviceCMYK"}
_PACKING: Final = 6
_MIN_DPI, _MAX_DPI = 100.0, 2400.0
_USUAL_DPI: Final = 200.0  # assumed for images without a resolution, or with that of a screen
_TURNED: Final = frozenset({5, 6, 7, 8})


@dataclass(frozen=True, slots=True)
class PageImage:
    """An image ready for a PDF; `width` and `height` are in pixels as stored, before the orientation is applied.

    `orientation` is the EXIF orientation, 1 to 8, that the PDF applies for display; `dpi` is as displayed; `head` has
    the entries of the PDF image's dictionary that describe the samples.
    """

    width: int
    height: int
    orientation: int
    dpi: Resolution
    head: bytes
    content: Sequence[bytes | memoryview]

    @property
    def size_points(self) -> tuple[float, float]:
        """Width and height of the page as displayed, in points."""
        shown = (self.height, self.width) if self.orientation in _TURNED else (self.width, self.height)
        return shown[0] * 72 / self.dpi[0], shown[1] * 72 / self.dpi[1]


def page_image(raw: bytes, limits: PixelLimits, directory: int | None = None, *, decodes: bool = True) -> PageImage:
    """Convert an image file for a PDF.

    `directory` is the offset of a TIFF page; None means the file's first page. Unless `decodes`, an image that must be
    decoded is refused. Raises UnsupportedImage, ImageTooLarge and BrokenImage as `imaging.codecs.decode.decode` does.
    """
    if directory is not None:
        return _of_pixels(open_tiff(raw, directory))
    encoded = open_encoded_image(raw, limits) if decodes else open_without_pillow(raw, limits)
    head = _jpeg_head(raw) if encoded and encoded.format == "jpeg" else None
    if encoded and head:
        return PageImage(encoded.width, encoded.height, encoded.orientation, _dpi_of(encoded), head, [raw])
    png = read_png(raw) if encoded and encoded.format == "png" else None
    if encoded and png and not (png.is_transparent or png.has_alpha or png.is_interlaced):
        return _of_png(png, raw, encoded.orientation, _dpi_of(encoded))
    if not decodes or encoded is None:
        raise BrokenImage(
            "This image could not be read, and a PDF cannot hold it unchanged.", "Check that it opens in a viewer."
        )
    return _of_pixels(encoded)


def _jpeg_head(raw: bytes) -> bytes | None:
    header = read_header(raw)
    space = _JPEG_COLOURS.get(header.components)
    if space is None:
        return None
    inverted = b" /Decode [1 0 1 0 1 0 1 0]" if header.components == 4 and header.is_adobe else b""
    return b"/ColorSpace %b /BitsPerComponent 8 /Filter /DCTDecode%b" % (space, inverted)


def _of_png(png: Png, raw: bytes, orientation: int, dpi: Resolution) -> PageImage:
    colours = 3 if png.kind == RGB else 1
    space = b"/DeviceRGB" if png.kind == RGB else b"/DeviceGray"
    if png.kind == PALETTE:
        last = len(png.palette) // 3 - 1
        space = b"[/Indexed /DeviceRGB %d <%b>]" % (last, png.palette.hex().encode())
    head = (
        b"/ColorSpace %b /BitsPerComponent %d /Filter /FlateDecode "
        b"/DecodeParms << /Predictor 15 /Colors %d /BitsPerComponent %d /Columns %d >>"
        % (space, png.depth, colours, png.depth, png.width)
    )
    packed = [memoryview(raw)[part] for part in png.packed]
    return PageImage(png.width, png.height, orientation, dpi, head, packed)


def _of_pixels(encoded: EncodedImage) -> PageImage:
    """Decode an image of a format that PDF does not have, turn it upright, and compress it like a PNG."""
    pixels = decode_pixels(encoded, gray=False).pixels
    how = [cv2.IMWRITE_PNG_COMPRESSION, _PACKING]
    if pixels.ndim == 2 and not np.any((pixels != 0) & (pixels != 255)):
        how += [cv2.IMWRITE_PNG_BILEVEL, 1]
    done, packed = cv2.imencode(".png", pixels, how)
    assert done, "OpenCV writes a PNG of any pixels"
    file = packed.tobytes()
    return _of_png(read_png(file), file, 1, _dpi_of(encoded))


def _dpi_of(encoded: EncodedImage) -> Resolution:
    stated = encoded.dpi
    if stated is None or not all(_MIN_DPI <= dpi <= _MAX_DPI for dpi in stated):
        return _USUAL_DPI, _USUAL_DPI
    return (stated[1], stated[0]) if encoded.orientation in _TURNED else stated
