"""Reads the header of a PNG, and decodes its pixels.

OpenCV gets only the critical chunks: others may inflate to any size, be damaged, or make libpng print warnings.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import cv2

from ocrsvc.imaging.codecs.encoded_image import EncodedImage, Samples, broken, decode_with_opencv
from ocrsvc.imaging.codecs.tiff_directories import read_orientation
from ocrsvc.results import Check

MAGIC = b"\x89PNG\r\n\x1a\n"
IHDR = struct.Struct(">IIBBBBB")
PHYS = struct.Struct(">IIB")
METER, INCH_M = 1, 0.0254
FRAME_BYTES = 12  # length, type and checksum around a chunk's body
END_CHUNK = b"\0\0\0\0IEND\xaeB`\x82"
CRITICAL_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
NOTED_CHUNKS = frozenset({b"PLTE", b"tRNS", b"eXIf", b"pHYs", b"IEND"})
MAX_CHUNKS = 100_000

GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GRAY_ALPHA: (8, 16), RGB_ALPHA: (8, 16)}


@dataclass(frozen=True, slots=True)
class Png:
    """The header and chunks of a PNG; nothing is decompressed. `kind` is GRAY, RGB, PALETTE, GRAY_ALPHA or RGB_ALPHA.

    `palette` has red, green and blue of each colour; `packed` are the slices of the file that form the zlib stream.
    """

    width: int
    height: int
    depth: int
    kind: int
    is_interlaced: bool
    packed: list[slice]
    critical: list[slice]
    palette: bytes
    exif: bytes
    phys: bytes
    is_transparent: bool
    has_end: bool

    @property
    def has_alpha(self) -> bool:
        """Whether pixels may be transparent; a gray image with one transparent level does not count."""
        return self.kind in (GRAY_ALPHA, RGB_ALPHA) or (self.kind in (RGB, PALETTE) and self.is_transparent)

    @property
    def is_only_critical(self) -> bool:
        """Whether the file is complete (has an IEND chunk) and has only critical chunks."""
        return len(self.critical) == 1 and self.has_end


def open_png(raw: bytes) -> EncodedImage:
    """Read the header and list the chunks. Raises BrokenImage."""
    png = read_png(raw)
    if not png.packed:
        raise broken("PNG", "holds no pixels: its IDAT chunk is missing")
    if png.kind == PALETTE and not png.palette:
        raise broken("PNG", "has no palette")

    def read(gray: bool, _check: Check) -> Samples:  # noqa: FBT001  as EncodedImage asks for it
        opaque = cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR
        critical = raw
        if not png.is_only_critical:
            view = memoryview(raw)
            critical = b"".join([*(view[part] for part in png.critical), b"" if png.has_end else END_CHUNK])
        return decode_with_opencv(critical, cv2.IMREAD_UNCHANGED if png.has_alpha else opaque, "PNG")

    # With alpha all four channels are decoded and copied by OpenCV before they are flattened.
    samples = 2 * 4 * (2 if png.depth == 16 else 1)
    need = (samples, samples) if png.has_alpha else (2, 6)
    copied = 0 if png.is_only_critical else len(raw)
    reds, greens, blues = (png.palette[at::3] for at in range(3))
    is_gray = png.kind in (GRAY, GRAY_ALPHA) or (png.kind == PALETTE and reds == greens == blues)
    across, down, unit = PHYS.unpack_from(png.phys) if len(png.phys) >= PHYS.size else (0, 0, 0)
    dpi = (across * INCH_M, down * INCH_M) if unit == METER else None
    return EncodedImage("png", png.width, png.height, read, read_orientation(png.exif), is_gray, need, copied, dpi)


def read_png(raw: bytes) -> Png:
    """Parse the header and chunks of a PNG. Raises BrokenImage."""
    if len(raw) < 33 or raw[8:16] != b"\0\0\0\rIHDR":
        raise broken("PNG", "does not begin with a header")
    width, height, depth, kind, *_, interlaced = IHDR.unpack_from(raw, 16)
    if depth not in DEPTHS.get(kind, ()):
        raise broken("PNG", f"declares colour type {kind} with {depth} bits, which does not exist")
    packed, critical, found = list[slice](), [slice(0, len(MAGIC))], dict[bytes, bytes]()
    for name, start, stop in _walk(raw):
        body = slice(start + 8, stop - 4)
        if name in CRITICAL_CHUNKS and critical[-1].stop == start:
            critical[-1] = slice(critical[-1].start, stop)
        elif name in CRITICAL_CHUNKS:
            critical.append(slice(start, stop))
        if name == b"IDAT":
            packed.append(body)
        elif name in NOTED_CHUNKS:
            found.setdefault(name, raw[body])
    palette, exif, phys = (found.get(name, b"") for name in (b"PLTE", b"eXIf", b"pHYs"))
    flags = b"tRNS" in found, b"IEND" in found
    return Png(width, height, depth, kind, bool(interlaced), packed, critical, palette, exif, phys, *flags)


def _walk(raw: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and end offset of each chunk, up to IEND or the end of the file. Raises BrokenImage."""
    position, name = len(MAGIC), b""
    for _ in range(MAX_CHUNKS):
        if name == b"IEND" or position == len(raw):
            return
        start, position = position, position + FRAME_BYTES + int.from_bytes(raw[position : position + 4], "big")
        name = raw[start + 4 : start + 8]
        if position > len(raw):
            raise broken("PNG", f"is truncated at byte {len(raw)}, inside a chunk that ends at byte {position}")
        yield name, start, position
    raise broken("PNG", f"has more than {MAX_CHUNKS} chunks")
