"""Reads the resolution that an image file states: of a JPEG in its JFIF header, of a PNG in pHYs, of a TIFF in tags."""

from __future__ import annotations

import struct
from typing import Final

_JFIF: Final = b"JFIF\0"
_PHYS: Final = b"\0\0\0\x09pHYs"
# Where a header stands, before the first pixels.
_HEAD_BYTES: Final = 1 << 16
_PER_INCH, _PER_CM, _METER = 1, 2, 1
_CM_IN_INCH: Final = 2.54
_M_IN_INCH: Final = 0.0254
_ENTRY_BYTES: Final = 12
_MOST_ENTRIES: Final = 1000
_X_RESOLUTION, _Y_RESOLUTION, _UNIT = 282, 283, 296
_TIFF_INCH, _TIFF_CM = 2, 3


def read_resolution(raw: bytes, directory: int | None = None) -> tuple[float, float] | None:
    """Pixels an inch across and down; None where the file states none, or none that is sound. Never raises.

    Args:
        raw: The whole file.
        directory: Where a TIFF's page has its directory; None is the first.
    """
    try:
        if raw.startswith(b"\xff\xd8"):
            return _of_jpeg(raw)
        if raw.startswith(b"\x89PNG"):
            return _of_png(raw)
        order = {b"II*\0": "<", b"MM\0*": ">"}.get(raw[:4])
        return _of_tiff(raw, order, directory) if order else None
    except (struct.error, ZeroDivisionError):
        return None


def _of_jpeg(raw: bytes) -> tuple[float, float] | None:
    at = raw.find(_JFIF, 0, 64)
    if at < 0:
        return None
    unit, across, down = struct.unpack_from(">BHH", raw, at + len(_JFIF) + 2)
    scale = {_PER_INCH: 1.0, _PER_CM: _CM_IN_INCH}.get(unit)
    return (across * scale, down * scale) if scale else None


def _of_png(raw: bytes) -> tuple[float, float] | None:
    at = raw.find(_PHYS, 0, _HEAD_BYTES)
    if at < 0:
        return None
    across, down, unit = struct.unpack_from(">IIB", raw, at + len(_PHYS))
    return (across * _M_IN_INCH, down * _M_IN_INCH) if unit == _METER else None


def _of_tiff(raw: bytes, order: str, directory: int | None) -> tuple[float, float] | None:
    if directory is None:
        (directory,) = struct.unpack_from(order + "I", raw, 4)
    (entries,) = struct.unpack_from(order + "H", raw, directory)
    found: dict[int, float] = {_UNIT: _TIFF_INCH}
    for index in range(min(entries, _MOST_ENTRIES)):
        tag, _, _, place = struct.unpack_from(order + "HHII", raw, directory + 2 + index * _ENTRY_BYTES)
        if tag in (_X_RESOLUTION, _Y_RESOLUTION):
            above, below = struct.unpack_from(order + "II", raw, place)
            found[tag] = above / below
        elif tag == _UNIT:
            (found[tag],) = struct.unpack_from(order + "H", raw, directory + 2 + index * _ENTRY_BYTES + 8)
    scale = {_TIFF_INCH: 1.0, _TIFF_CM: _CM_IN_INCH}.get(int(found[_UNIT]))
    if scale is None or _X_RESOLUTION not in found or _Y_RESOLUTION not in found:
        return None
    return found[_X_RESOLUTION] * scale, found[_Y_RESOLUTION] * scale
