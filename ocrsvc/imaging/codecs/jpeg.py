"""Reads the header of a JPEG, and decodes its pixels."""

import struct
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np

from ocrsvc.errors import UnsupportedImage
from ocrsvc.imaging.codecs.encoded_image import EncodedImage, Samples, broken, decode_with_opencv, try_opencv
from ocrsvc.imaging.codecs.tiff_directories import read_orientation
from ocrsvc.results import Check

MAGIC = b"\xff\xd8"
END_OF_IMAGE = b"\xff\xd9"
START_OF_SCAN = 0xDA
APP0, APP1, APP14 = 0xE0, 0xE1, 0xEE
DENSITY = struct.Struct(">BHH")
UNITS_IN_INCH = {1: 1.0, 2: 2.54}
BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without length and body
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE_MARKERS = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
FRAME_BYTES = 6  # bytes of a frame header before its component list: depth, height, width, component count

MAX_SEGMENTS = 10_000
MAX_SCANS = 500  # ordinary progressive files have about ten; a scan of a hundred bytes costs a pass over all pixels
MAX_SCANNED_PIXELS = 1_500_000_000  # most pixels times scans, a few seconds of decoding: 30 scans of the largest page


@dataclass(slots=True)
class JpegHeader:
    """What a JPEG's markers before the first scan say. `is_adobe`: has Adobe's marker, so CMYK values are inverted."""

    width: int = 0
    height: int = 0
    components: int = 0
    has_scans: bool = False  # more than one scan
    coefficient_bytes: int = 0  # memory of the DCT coefficients per pixel, rounded up
    exif: bytes = b""
    dpi: tuple[float, float] | None = None
    scan_offset: int = 0
    is_adobe: bool = False


def open_jpeg(raw: bytes) -> EncodedImage:
    """Read the markers up to the first scan. Raises BrokenImage, UnsupportedImage."""
    header = read_header(raw)
    if not header.components:
        raise broken("JPEG", "ends before it declares its size")
    scans = 1 + raw.count(b"\xff\xda", header.scan_offset) if header.has_scans else 1
    max_scans = min(MAX_SCANS, MAX_SCANNED_PIXELS // max(1, header.width * header.height))
    if scans > max(1, max_scans):
        size = f"{header.width} x {header.height} pixels"
        raise broken("JPEG", f"has {scans} scans; the limit at {size} is {max_scans}")
    orientation, colourless, read = read_orientation(header.exif), header.components == 1, partial(_decode, raw, header)
    # With several scans libjpeg holds the coefficients of the whole image until the last scan.
    coefficient_bytes = header.coefficient_bytes if header.has_scans else 0
    need = (max(2, 1 + coefficient_bytes), max(6, 3 + coefficient_bytes))
    return EncodedImage("jpeg", header.width, header.height, read, orientation, colourless, need, dpi=header.dpi)


def read_header(raw: bytes) -> JpegHeader:
    """Read the markers up to the first scan. Raises BrokenImage, UnsupportedImage."""
    header, position = JpegHeader(), len(MAGIC)
    for _ in range(MAX_SEGMENTS):
        position = raw.find(b"\xff", position) + 1
        if not 0 < position < len(raw):
            raise broken("JPEG", "ends before its first scan")
        marker = raw[position]
        if marker in (0x00, 0xFF) or marker in BARE_MARKERS:
            continue
        length = int.from_bytes(raw[position + 1 : position + 3], "big")
        if length < 2 or position + 1 + length > len(raw):
            raise broken("JPEG", f"is truncated inside the segment with marker FF{marker:02X}")
        _note_segment(header, marker, raw[position + 3 : position + 1 + length])
        position += 1 + length
        if marker == START_OF_SCAN:
            header.scan_offset = position
            return header
    raise broken("JPEG", f"has more than {MAX_SEGMENTS} segments before its first scan")


def _note_segment(header: JpegHeader, marker: int, body: bytes) -> None:
    if marker in FRAME_MARKERS:
        _note_frame(header, marker, body)
    elif marker == START_OF_SCAN:
        # A first scan with fewer components than the image means that more scans follow.
        header.has_scans = header.has_scans or (bool(body) and body[0] < header.components)
    elif marker == APP1 and body.startswith(b"Exif\0\0") and not header.exif:
        header.exif = body
    elif marker == APP0 and body.startswith(b"JFIF\0") and len(body) >= 7 + DENSITY.size:
        unit, across, down = DENSITY.unpack_from(body, 7)
        scale = UNITS_IN_INCH.get(unit, 0.0)
        header.dpi = across * scale, down * scale
    elif marker == APP14 and body.startswith(b"Adobe"):
        header.is_adobe = True


def _note_frame(header: JpegHeader, marker: int, body: bytes) -> None:
    try:
        depth, header.height, header.width, header.components = struct.unpack_from(">BHHB", body)
    except struct.error as cause:
        raise broken("JPEG", "has a frame header that is too short") from cause
    header.has_scans = marker in PROGRESSIVE_MARKERS
    if depth != 8:
        raise UnsupportedImage(f"This JPEG has {depth} bits per sample.", "Send a JPEG of 8 bits, or a PNG.")
    # Three bytes per component: name, sampling factors (across, down), table. libjpeg needs two bytes per coefficient.
    components = body[FRAME_BYTES : FRAME_BYTES + 3 * header.components]
    sides = [(sampling >> 4, sampling & 15) for sampling in components[1::3]]
    finest = max((across for across, _ in sides), default=1) * max((down for _, down in sides), default=1)
    header.coefficient_bytes = -(-2 * sum(across * down for across, down in sides) // max(1, finest))


def _decode(raw: bytes, header: JpegHeader, gray: bool, _check: Check) -> Samples:  # noqa: FBT001  as EncodedImage asks for it
    flags = (cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR) | cv2.IMREAD_IGNORE_ORIENTATION
    # Search from the end: from the front it would scan the whole file while holding the GIL.
    if raw.rfind(END_OF_IMAGE, header.scan_offset) >= 0:
        return decode_with_opencv(raw, flags, "JPEG")
    samples = None if header.has_scans else try_opencv(raw + END_OF_IMAGE, flags)
    # libjpeg fills missing data with mid gray: a gray last corner shows that the file is truncated.
    if samples is None or np.all(samples[-8:, -8:] == 128):
        raise broken("JPEG", "is truncated: its pixels end before the last row")
    return samples
