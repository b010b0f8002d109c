"""Finds and decodes bar codes and QR codes on an image, and draws them, with zxing-cpp.

OpenCV's own detectors were tried first: its better one for QR codes needs 3 s for a page with 100 of them and 99 s for
400. zxing-cpp's time grows with the pixels; and with the corners of QR codes that an image shows, nearly with their
square: 2.3 s of CPU for 48,400 of them in 2000 x 2000 pixels, 10 s for 108,900 in 3000 x 3000. It cannot be ended
meanwhile. So large images are read in tiles, between which the request may end, and once as a whole, shrunk to a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from ocrsvc.errors import BadOption
from ocrsvc.imaging.geometry import shrink
from ocrsvc.results import Barcode, Box, Check, Pixels, Point, no_check

if TYPE_CHECKING:
    from zxingcpp import Position

MOST_TEXT: Final = 4096  # characters of the text of a code that is drawn
ONE_TILE_PX: Final = 2048  # an image whose longest side is no longer is read at once
OVERLAP_PX: Final = 512
_TILE_PX: Final = 1536
_LOOSE_PX: Final = 8.0


def find_barcodes(pixels: Pixels, check: Check = no_check) -> tuple[Barcode, ...]:
    """The codes on an image, from top to bottom; those whose check digits are wrong are left out.

    A code on an image of more than ONE_TILE_PX is found in one of its tiles where it is smaller than their overlap, and
    on the whole image, shrunk, where it is large. `check` is called between tiles; what it raises ends the search.
    """
    found: list[Barcode] = []
    for tile, scale, offset in _views(pixels):
        check()
        found += [code for code in _read(tile, scale, offset) if not any(_is_same(code, other) for other in found)]
    return tuple(sorted(found, key=lambda code: (code.box[0][1], code.box[0][0])))


def _views(pixels: Pixels) -> Iterator[tuple[Pixels, float, tuple[int, int]]]:
    """What is read of an image, each with its scale and the place of its corner (x, y) on the image."""
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
    # Loaded when it is first needed: few requests ask for codes.
    import zxingcpp

    codes = zxingcpp.read_barcodes(np.ascontiguousarray(tile))
    return [Barcode(code.format.name, code.text, _box_of(code.position, scale, offset)) for code in codes]


def _is_same(code: Barcode, other: Barcode) -> bool:
    """Whether two views show one code: of the same content, and the middle of each inside the other's frame."""
    if (code.type, code.text) != (other.type, other.text):
        return False
    return _is_inside(_middle(code.box), other.box) and _is_inside(_middle(other.box), code.box)


def _middle(box: Box) -> Point:
    return sum(x for x, _ in box) / 4, sum(y for _, y in box) / 4


def _is_inside(point: Point, box: Box) -> bool:
    x, y = point
    xs, ys = zip(*box, strict=True)
    # The codes of one line have frames that are nearly flat.
    return min(xs) - _LOOSE_PX <= x <= max(xs) + _LOOSE_PX and min(ys) - _LOOSE_PX <= y <= max(ys) + _LOOSE_PX


def draw_barcode(text: str, kind: str = "QRCode", *, level: str | None = None, quiet_zone: bool = True) -> Pixels:
    """A code of a format, as Barcode.type names it, as small as can be: a pixel for each module of a matrix.

    The level of error correction is L, M, Q or H, for QRCode, Aztec and PDF417; None chooses. The quiet zone is the
    white margin that the format asks for. Raises BadOption for a format that is unknown or cannot hold the text.
    """
    import zxingcpp

    # No format holds more; what is longer need not be tried.
    if len(text) > MOST_TEXT:
        raise BadOption(f"The text has {len(text)} characters, and a code holds {MOST_TEXT} at most.")
    levels = {} if level is None else {"ec_level": level}
    try:
        code = zxingcpp.create_barcode(text, zxingcpp.barcode_format_from_str(kind), **levels)
        return np.array(code.to_image(add_quiet_zones=quiet_zone))
    except (ValueError, RuntimeError) as error:
        raise BadOption(f"The text cannot be drawn as {kind[:40]!r}: {error}.") from error


def _box_of(position: Position, scale: float, offset: tuple[int, int]) -> Box:
    corners = (position.top_left, position.top_right, position.bottom_right, position.bottom_left)
    left, top = offset
    a, b, c, d = ((corner.x / scale + left, corner.y / scale + top) for corner in corners)
    return a, b, c, d
