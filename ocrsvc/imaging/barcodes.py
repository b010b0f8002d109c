"""Finds and decodes barcodes on an image, and draws them, with zxing-cpp.

OpenCV's better QR code detector needs 99 s for a page with 400 codes. The time of zxing-cpp grows almost with the
square of the number of QR code corners: 2.3 s of CPU for 48,400, 10 s for 108,900. It cannot be interrupted, so large
images are read in tiles, between which the request may end, and as a whole, shrunk to the size of a tile.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from ocrsvc.errors import BadOption
from ocrsvc.imaging.geometry import shrink
from ocrsvc.results import Barcode, Box, Check, Pixels, no_check

if TYPE_CHECKING:
    from zxingcpp import Position

MAX_TEXT: Final = 4096  # most characters of a barcode to draw
ONE_TILE_PX: Final = 2048  # longest side of an image that is read without tiles
OVERLAP_PX: Final = 512  # smaller codes lie wholly inside a tile; larger ones are found on the shrunk image
_TILE_PX: Final = 1536
_LOOSE_PX: Final = 8.0


def find_barcodes(pixels: Pixels, check: Check = no_check) -> tuple[Barcode, ...]:
    """Find the barcodes on an image, sorted from top to bottom; codes with wrong check digits are left out."""
    found: list[Barcode] = []
    for tile, scale, offset in _views(pixels):
        check()
        found += [code for code in _read(tile, scale, offset) if not any(_is_same(code, other) for other in found)]
    return tuple(sorted(found, key=lambda code: code.box[0][::-1]))


def _views(pixels: Pixels) -> Iterator[tuple[Pixels, float, tuple[int, int]]]:
    """Yield the shrunk image and the tiles to search, each with its scale and the (x, y) of its top left corner."""
    height, width = pixels.shape[:2]
    if max(height, width) <= ONE_TILE_PX:
        yield pixels, 1.0, (0, 0)
        return
    small, scale = shrink(pixels, _TILE_PX)
    yield small, scale, (0, 0)
    stride = _TILE_PX - OVERLAP_PX
    for top in range(0, max(1, height - OVERLAP_PX), stride):
        for left in range(0, max(1, width - OVERLAP_PX), stride):
            yield pixels[top : top + _TILE_PX, left : left + _TILE_PX], 1.0, (left, top)


def _read(tile: Pixels, scale: float, offset: tuple[int, int]) -> list[Barcode]:
    # Loaded on first use: few requests ask for barcodes.
    import zxingcpp

    def box_of(position: "Position") -> Box:
        corners = (position.top_left, position.top_right, position.bottom_right, position.bottom_left)
        a, b, c, d = ((corner.x / scale + offset[0], corner.y / scale + offset[1]) for corner in corners)
        return a, b, c, d

    codes = zxingcpp.read_barcodes(np.ascontiguousarray(tile))
    return [Barcode(code.format.name, code.text, box_of(code.position)) for code in codes]


def _is_same(code: Barcode, other: Barcode) -> bool:
    """Whether codes from two views of the image are the same: equal content, each centre in the other's frame."""
    if (code.type, code.text) != (other.type, other.text):
        return False
    boxes = np.array([code.box, other.box])
    # The frames of one-dimensional barcodes may be almost without height, so they are enlarged.
    low, high = boxes.min(axis=1) - _LOOSE_PX, boxes.max(axis=1) + _LOOSE_PX
    middles = boxes.mean(axis=1)[::-1]
    return bool(((low <= middles) & (middles <= high)).all())


def draw_barcode(text: str, kind: str = "QRCode", *, level: str | None = None, quiet_zone: bool = True) -> Pixels:
    """Draw a barcode with one pixel per module, and with the format's white margin if `quiet_zone`. Raises BadOption.

    `kind` is a format as in Barcode.type; `level` is the error correction (L, M, Q or H) of formats that have levels.
    """
    import zxingcpp

    # No barcode format can encode a longer text.
    if len(text) > MAX_TEXT:
        raise BadOption(f"The text has {len(text)} characters; a barcode holds at most {MAX_TEXT}.")
    levels = {} if level is None else {"ec_level": level}
    try:
        code = zxingcpp.create_barcode(text, zxingcpp.barcode_format_from_str(kind), **levels)
        return np.array(code.to_image(add_quiet_zones=quiet_zone))
    except (ValueError, RuntimeError) as error:
        raise BadOption(f"The text cannot be drawn as {kind[:40]!r}: {error}.") from error
