"""Reads the EXIF orientation of an image, and turns its pixels upright."""

from __future__ import annotations

import struct

import cv2
import numpy as np

from ocrsvc.records import Pixels

ORIENTATION_TAG = 0x0112
SHORT_TYPE = 3
ENTRY_BYTES = 12


def read_orientation(exif: bytes) -> int:
    r"""The EXIF orientation, 1 to 8; 1 where the block is broken, silent or holds an illegal value. Never raises.

    Args:
        exif: A TIFF structure ("II*\0..." or "MM\0*..."), with or without "Exif\0\0" in front. Only the first
            directory is read, entry by entry, so that loops and huge counts cost nothing.
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        value = _find_orientation(tiff, order)
    except struct.error:
        return 1
    return value if 1 <= value <= 8 else 1


def _find_orientation(tiff: bytes, order: str) -> int:
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    (entries,) = struct.unpack_from(order + "H", tiff, start)
    entry = struct.Struct(order + "HHIH")
    for index in range(entries):
        tag, kind, _, value = entry.unpack_from(tiff, start + 2 + index * ENTRY_BYTES)
        if tag == ORIENTATION_TAG:
            return int(value) if kind == SHORT_TYPE else 1
    return 1


def turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """The image as it is meant to be seen: `pixels` itself for orientation 1, else a turned or mirrored copy."""
    if orientation in MIRRORED:
        pixels = np.asarray(cv2.flip(pixels, 1), np.uint8)
    turn = CLOCKWISE.get(orientation)
    return pixels if turn is None else np.asarray(cv2.rotate(pixels, turn), np.uint8)


# A mirrored image is mirrored left to right first and turned clockwise afterwards.
MIRRORED = frozenset({2, 4, 5, 7})
CLOCKWISE = {
    3: cv2.ROTATE_180,
    4: cv2.ROTATE_180,
    5: cv2.ROTATE_90_COUNTERCLOCKWISE,
    6: cv2.ROTATE_90_CLOCKWISE,
    7: cv2.ROTATE_90_CLOCKWISE,
    8: cv2.ROTATE_90_COUNTERCLOCKWISE,
}
