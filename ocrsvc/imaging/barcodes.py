"""Finds and decodes bar codes and QR codes on an image, and draws them, with zxing-cpp.

OpenCV's own detectors were tried first: its better one for QR codes needs 3 s for a page with 100 of them and 99 s for
400. zxing-cpp's time grows with the pixels; and with the corners of QR codes that an image shows, nearly with their
square: 2.3 s of CPU for 48,400 of them in 2000x2000 pixels, 10 s for 108,900 in 3000x3000. It cannot be ended: the
request is answered at its deadline all the same, and where engines are isolated in processes, that one is ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ocrsvc.errors import BadOption
from ocrsvc.records import Barcode, Box, Pixels

if TYPE_CHECKING:
    from zxingcpp import Position

MOST_TEXT: Final = 4096
"""Characters of the text of a code that is drawn."""


def find_barcodes(pixels: Pixels) -> tuple[Barcode, ...]:
    """The codes on an image, from top to bottom; those whose check digits are wrong are left out.

    Args:
        pixels: (H, W) or (H, W, 3), uint8.
    """
    # Loaded when it is first needed: few requests ask for codes.
    import zxingcpp

    found = [
        Barcode(code.format.name, code.text, _box_of(code.position))
        for code in zxingcpp.read_barcodes(np.ascontiguousarray(pixels))
    ]
    return tuple(sorted(found, key=lambda code: (code.box[0][1], code.box[0][0])))


def draw_barcode(text: str, kind: str = "QRCode", *, level: str | None = None, quiet_zone: bool = True) -> Pixels:
    """A code as an image (H, W), uint8, as small as can be: a pixel for each module of a matrix.

    Args:
        text: What it says.
        kind: Its format, as Barcode.type names it.
        level: Of error correction, L, M, Q or H, for QRCode, Aztec and PDF417; None chooses.
        quiet_zone: Leave the white margin around it that its format asks for.

    Raises:
        BadOption: The format is unknown or cannot be drawn, or it cannot hold the text.
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


def _box_of(position: Position) -> Box:
    corners = (position.top_left, position.top_right, position.bottom_right, position.bottom_left)
    a, b, c, d = ((float(corner.x), float(corner.y)) for corner in corners)
    return a, b, c, d
