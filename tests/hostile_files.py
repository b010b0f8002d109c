"""Hostile image files and PDFs by name, each made for a number of pixels, frames, pages, bytes or characters."""

import io
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import cv2
import numpy as np
from documents import assemble
from image_support import encoded
from PIL import Image

MakeFile = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class HostileFile:
    """One kind of file: `amount` is its size for a full run, `short` for a quick test."""

    make: MakeFile
    amount: int
    short: int


def jpeg(width: int = 64, height: int = 32) -> bytes:
    """Return a small valid gray JPEG."""
    return encoded(np.full((height, width), 200, np.uint8), ".jpg")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, chunks: bytes = b"", colour: int = 0) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    samples = {0: 1, 2: 3, 6: 4}[colour]
    pixels = deflated(bytes(width * samples + 1), height)
    return b"\x89PNG\r\n\x1a\n" + header + chunks + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def deflated(piece: bytes, times: int) -> bytes:
    packer = zlib.compressobj(9)
    return b"".join([packer.compress(piece) for _ in range(times)]) + packer.flush()


def _packed_zeros(unpacked: int) -> bytes:
    return deflated(bytes(1 << 20), max(1, unpacked >> 20))


def png_of_zeros(pixels: int, colour: int = 0) -> bytes:
    side = int(pixels**0.5)
    return _png(side, side, colour=colour)


def _gif_of_frames(count: int) -> bytes:
    screen = b"GIF89a" + struct.pack("<HHBBB", 64, 32, 0x80, 0, 0) + bytes(6)
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return screen + frame * count + b";"


def _tiff_of_directories(entries: Sequence[tuple[int, int, int, int]], count: int, *, loop: bool = False) -> bytes:
    """Return a little-endian TIFF of consecutive directories; with `loop` the last links to the first."""
    length = 2 + 12 * len(entries) + 4
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    pages = []
    for number in range(1, count + 1):
        end = 8 if loop else 0
        following = 8 + number * length if number < count else end
        pages.append(struct.pack("<H", len(entries)) + body + struct.pack("<I", following))
    return b"II*\0" + struct.pack("<I", 8) + b"".join(pages)


_ONE_PIXEL: Final = ((256, 3, 1, 1), (257, 3, 1, 1), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 0),
                     (278, 3, 1, 1), (279, 4, 1, 1))  # fmt: skip


def _tiff_of_strips(count: int) -> bytes:
    """Return a TIFF one pixel wide with one strip per row."""
    entries = [(256, 3, 1, 1), (257, 4, 1, count), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    offsets = 8 + 2 + 12 * 8 + 4
    entries += [(273, 4, count, offsets), (278, 3, 1, 1), (279, 4, count, offsets + 4 * count)]
    file = _tiff_of_directories(entries, 1)
    return file + struct.pack("<I", 8) * count + struct.pack("<I", 1) * count


@lru_cache(maxsize=2)
def _progressive_jpeg(side: int) -> bytes:
    pixels = np.full((side, side), 200, np.uint8)
    return encoded(pixels, ".jpg", (cv2.IMWRITE_JPEG_PROGRESSIVE, 1))


def _jpeg_of_scans(side: int, count: int) -> bytes:
    """Return a progressive JPEG that repeats its last scan; each scan passes over all pixels."""
    file = _progressive_jpeg(side)
    at = file.rindex(b"\xff\xda")
    return file[:at] + file[at:-2] * count + file[-2:]


def _jpeg_with(segment: bytes, size: int) -> bytes:
    good = jpeg()
    return good[:2] + segment * max(1, size // len(segment)) + good[2:]


def _webp_of_frames(count: int) -> bytes:
    file = io.BytesIO()
    frames = [Image.new("RGB", (16, 16), (number & 255, number >> 8, 0)) for number in range(count)]
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], lossless=True, method=0)
    return file.getvalue()


def pdf_of(objects: Iterable[bytes]) -> bytes:
    """Return a PDF of these objects, numbered from 1."""
    return assemble(dict(enumerate(objects, start=1)))


def stream(members: bytes, data: bytes) -> bytes:
    return b"<<%b/Length %d>>stream\n%b\nendstream" % (members, len(data), data)


def pdf_of_pages(count: int, page: bytes = b"", *more: bytes) -> bytes:
    """Return a PDF of pages with the same entries; `more` are its objects from number 3 on."""
    first = 3 + len(more)
    kids = b" ".join(b"%d 0 R" % number for number in range(first, first + count))
    pages = b"<</Type/Pages/Count %d/Kids[%b]>>" % (count, kids)
    leaf = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]%b>>" % page
    return pdf_of([b"<</Type/Catalog/Pages 2 0 R>>", pages, *more, *[leaf] * count])


def small_pdf(pages: int = 1) -> bytes:
    """Return a minimal PDF of empty pages."""
    return pdf_of_pages(pages)


def _noise_side(size: int) -> int:
    return max(16, int(size**0.5))


def noise(size: int) -> bytes:
    """Return an incompressible gray JPEG of about `size` bytes."""
    side = _noise_side(size)
    pixels = np.random.default_rng(10).integers(0, 256, (side, side), np.uint8)
    return encoded(pixels, ".jpg", (cv2.IMWRITE_JPEG_QUALITY, 95))


def pdf_of_noise(size: int, pages: int = 10) -> bytes:
    """Return a PDF whose pages share one noise JPEG of `size` bytes; the rendered pages compress badly."""
    side, data = _noise_side(size), noise(size)
    head = b"/Type/XObject/Subtype/Image/Width %d/Height %d/ColorSpace/DeviceGray/BitsPerComponent 8/Filter/DCTDecode"
    content = stream(b"", b"595 0 0 842 0 0 cm /I Do")
    page = b"/Resources<</XObject<</I 3 0 R>>>>/Contents 4 0 R"
    return pdf_of_pages(pages, page, stream(head % (side, side), data), content)


def _pdf_with_a_content_bomb(unpacked: int) -> bytes:
    packed = deflated(b"0 0 m 9 9 l S\n" * 1000, max(1, unpacked // 14_000))
    return pdf_of_pages(1, b"/Contents 3 0 R", stream(b"/Filter/FlateDecode", packed))


def _pdf_with_nested_bombs(unpacked: int) -> bytes:
    packed = zlib.compress(zlib.compress(_packed_zeros(unpacked), 9), 9)
    filters = b"/Filter[/FlateDecode/FlateDecode/FlateDecode]"
    return pdf_of_pages(1, b"/Contents 3 0 R", stream(filters, packed))


def _pdf_with_an_object_stream(unpacked: int) -> bytes:
    packed = deflated(b" " * (1 << 20), max(1, unpacked >> 20))
    members = b"/Type/ObjStm/N 1000000/First 16000000/Filter/FlateDecode"
    return pdf_of_pages(1, b"/Contents 3 0 R", stream(members, packed))


def _pdf_in_a_circle(count: int) -> bytes:
    kids = b"2 0 R " * count
    return pdf_of([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count %d/Kids[%b]>>" % (count, kids)])


_END: Final = _chunk(b"IEND", b"")
_FREE: Final = b"0000000000 65535 f \n"
_MARKER: Final = b"\xff\xe5" + struct.pack(">H", 65535) + bytes(65533)


def _png_of_finders(pixels: int) -> bytes:
    """Return a grid of QR finder patterns, any three of which may be a code."""
    pattern = np.full((9, 9), 255, np.uint8)
    for inset, shade in ((1, 0), (2, 255), (3, 0)):
        pattern[inset:-inset, inset:-inset] = shade
    side = int(pixels**0.5) // 9
    return encoded(np.tile(pattern, (side, side)), ".png")


def _png_of_stripes(pixels: int) -> bytes:
    side = int(pixels**0.5)
    return encoded(np.tile((np.arange(side) % 2 * 255).astype(np.uint8), (side, 1)), ".png")


def _png_of_squares(pixels: int) -> bytes:
    line = (np.arange(int(pixels**0.5)) % 2).astype(np.uint8)
    return encoded((line[:, None] ^ line) * np.uint8(255), ".png")


def _avif_of_another_size(pixels: int) -> bytes:
    """Return a large black AVIF of a few kilobytes that declares 64 x 32 pixels."""
    side, file = int(pixels**0.5), io.BytesIO()
    Image.new("L", (side, side)).save(file, "AVIF", speed=10)
    return file.getvalue().replace(struct.pack(">II", side, side), struct.pack(">II", 64, 32))


CODES: Final[Mapping[str, HostileFile]] = {
    "png_finders": HostileFile(_png_of_finders, 4_000_000, 90_000),
    "png_stripes": HostileFile(_png_of_stripes, 49_000_000, 250_000),
    "png_squares": HostileFile(_png_of_squares, 49_000_000, 250_000),
}
"""Images that take long to search for bar codes and QR codes."""

FILES: Final[Mapping[str, HostileFile]] = {
    "png_zeros_50_mp": HostileFile(png_of_zeros, 49_900_000, 250_000),
    "png_colour_zeros_50_mp": HostileFile(partial(png_of_zeros, colour=6), 49_900_000, 250_000),
    "png_too_many_pixels": HostileFile(png_of_zeros, 400_000_000, 50_100_000),
    "png_chunks": HostileFile(lambda count: _png(64, 32, _chunk(b"tEXt", b"a\0b") * count), 100_000, 5_000),
    "png_data_chunks": HostileFile(
        lambda count: _png(64, 32).replace(_END, _chunk(b"IDAT", b"") * count + _END), 100_000, 5_000
    ),
    "png_packed_text": HostileFile(
        lambda size: _png(64, 32, _chunk(b"zTXt", b"a\0\0" + _packed_zeros(size)) * 4), 1 << 28, 1 << 22
    ),
    "png_packed_profile": HostileFile(
        lambda size: _png(64, 32, _chunk(b"iCCP", b"a\0\0" + _packed_zeros(size))), 1 << 28, 1 << 22
    ),
    "gif_frames": HostileFile(_gif_of_frames, 10_000, 1_000),
    "gif_comments": HostileFile(
        lambda size: _gif_of_frames(1)[:-1] + b"\x21\xfe" + b"\x01a" * (size // 2) + b"\0;", 60_000_000, 100_000
    ),
    "tiff_pages": HostileFile(partial(_tiff_of_directories, _ONE_PIXEL), 10_000, 1_000),
    "tiff_circle": HostileFile(partial(_tiff_of_directories, _ONE_PIXEL, loop=True), 10_000, 1_000),
    "tiff_strips": HostileFile(_tiff_of_strips, 60_000, 1_000),
    "jpeg_scans": HostileFile(partial(_jpeg_of_scans, 512), 1_000, 600),
    "jpeg_scans_50_mp": HostileFile(lambda pixels: _jpeg_of_scans(int(pixels**0.5), 480), 49_000_000, 250_000),
    "jpeg_segments": HostileFile(partial(_jpeg_with, _MARKER), 60_000_000, 1_000_000),
    "jpeg_small_segments": HostileFile(partial(_jpeg_with, b"\xff\xfe\0\2"), 60_000_000, 100_000),
    "jpeg_fill_bytes": HostileFile(partial(_jpeg_with, b"\xff"), 60_000_000, 100_000),
    "webp_frames": HostileFile(_webp_of_frames, 1_000, 50),
    "avif_other_size": HostileFile(_avif_of_another_size, 49_000_000, 250_000),
    "heic_boxes": HostileFile(
        lambda count: b"\0\0\0\x10ftypheic\0\0\0\0" + b"\0\0\0\x08free" * count, 7_500_000, 20_000
    ),
    "pnm_comment": HostileFile(lambda size: b"P5 #" + b"a" * size + b"\n1 1 255 \0", 60_000_000, 100_000),
    "pnm_blanks": HostileFile(lambda size: b"P5 " + b" " * size + b"1 1 255 \0", 60_000_000, 100_000),
    "pnm_digits": HostileFile(lambda size: b"P5 " + b"1" * size + b" 1 255 \0", 60_000_000, 100_000),
    "svg_comment": HostileFile(lambda size: b"<!--" + b"-" * size, 60_000_000, 100_000),
}

PDFS: Final[Mapping[str, HostileFile]] = {
    "pdf_circle": HostileFile(_pdf_in_a_circle, 100_000, 100),
    "pdf_pages": HostileFile(small_pdf, 10_000, 3),
    "pdf_says_many_pages": HostileFile(
        lambda count: small_pdf().replace(b"/Count 1", b"/Count %d" % count), 2**31 - 1, 2**31 - 1
    ),
    "pdf_large_page": HostileFile(
        lambda side: small_pdf().replace(b"[0 0 595 842]", b"[0 0 %d %d]" % (side, side)), 10**9, 10**9
    ),
    "pdf_content": HostileFile(_pdf_with_a_content_bomb, 500_000_000, 100_000),
    "pdf_nested_filters": HostileFile(_pdf_with_nested_bombs, 1 << 29, 1 << 22),
    "pdf_object_stream": HostileFile(_pdf_with_an_object_stream, 1 << 28, 1 << 22),
    "pdf_arrays": HostileFile(
        lambda size: pdf_of_pages(1, b"/Resources 3 0 R", b"[" * (size // 2) + b"]" * (size // 2)), 10_000_000, 100_000
    ),
    "pdf_xref_entries": HostileFile(lambda count: small_pdf().replace(_FREE, _FREE * count), 1_000_000, 1_000),
}

_LETTERS: Final = b"/Resources<</Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"


def pdf_of_text(letters: int) -> bytes:
    """Return a PDF page with about `letters` characters of text, thousands of them overlapping."""
    line = b"(" + b"a b, " * 40 + b")Tj 0 -1 Td\n"
    again = b"BT /F 8 Tf 1 0 0 1 20 820 Tm\n" + line * 800 + b"ET\n"
    content = deflated(again, max(1, letters // 160_000))
    return pdf_of_pages(1, _LETTERS + b"/Contents 3 0 R", stream(b"/Filter/FlateDecode", content))


def _pdf_of_tiny_text(letters: int) -> bytes:
    """Return a PDF page of characters 0.001 points high, each positioned separately."""
    content = b"BT /F .001 Tf 20 820 Td\n" + b"(a)Tj .01 -.01 Td\n" * letters + b"ET\n"
    return pdf_of_pages(1, _LETTERS + b"/Contents 3 0 R", stream(b"/Filter/FlateDecode", zlib.compress(content)))


def _pdf_of_nested_forms(depth: int) -> bytes:
    """Return a PDF of nested forms that each draw the next one ten times; the last has text."""
    form = b"/Type/XObject/Subtype/Form/BBox[0 0 595 842]"
    own = form + b"/Resources<</XObject<</X %d 0 R>>>>"
    inner = [stream(own % (5 + at), b"/X Do\n" * 10) for at in range(depth - 1)]
    last = stream(form + _LETTERS, b"BT /F 9 Tf 50 50 Td(letters)Tj ET")
    page = b"/Resources<</XObject<</X 4 0 R>>>>/Contents 3 0 R"
    return pdf_of_pages(1, page, stream(b"", b"/X Do"), *inner, last)


TEXT_LAYERS: Final[Mapping[str, HostileFile]] = {
    "pdf_text": HostileFile(pdf_of_text, 10_000_000, 1_000),
    "pdf_tiny_text": HostileFile(_pdf_of_tiny_text, 1_000_000, 1_000),
    "pdf_nested_forms": HostileFile(_pdf_of_nested_forms, 7, 3),
}
