"""Reads the header of a BMP, and decodes its pixels."""

from __future__ import annotations

import struct

import cv2

from ocrsvc.imaging.codecs.encoded_image import EncodedImage, broken, decode_with_opencv

FILE_HEADER_BYTES = 14
OS2_HEADER_BYTES = 12


def open_bmp(raw: bytes) -> EncodedImage:
    """Read the size; a negative height only says that the rows come top down. Raises BrokenImage."""
    try:
        (header_bytes,) = struct.unpack_from("<I", raw, FILE_HEADER_BYTES)
        sides = "<HH" if header_bytes == OS2_HEADER_BYTES else "<ii"
        width, height = struct.unpack_from(sides, raw, FILE_HEADER_BYTES + 4)
    except struct.error as cause:
        raise broken("BMP", "ends inside its header") from cause
    return EncodedImage(
        "bmp",
        max(width, 0),
        abs(height),
        lambda _gray: decode_with_opencv(raw, cv2.IMREAD_UNCHANGED, "BMP"),
        bytes_per_pixel=(8, 8),
    )
