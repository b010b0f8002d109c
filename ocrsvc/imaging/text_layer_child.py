"""The program that lays recognised text over the pages of one PDF, in a process of its own.

    python -m ocrsvc.imaging.text_layer_child PARENT MEMORY FILE_BYTES FILE TEXT RESULT

FILE, TEXT and RESULT are numbers of open files. TEXT holds JSON: a list of pages, each [number, width, height, lines],
each line [text, x0, y0, … x3, y3], in pixels of the page as drawn. It answers `lay` with `written` when the new PDF is
in RESULT.
"""

from __future__ import annotations

import codecs
import ctypes
import json
import math
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ocrsvc.imaging.pdf_child import FONT_FOLDERS, load_pdfium
from ocrsvc.system.child_program import RequestFailed, apply_limits, pack, serve

_EM: Final = 1000
_ADVANCE: Final = 500
_ASCENT: Final = 800
_DESCENT: Final = 200
# Points on the page are asked for by whole numbers; this many of them to a pixel.
_FINE: Final = 16
_ROWS_AT_ONCE: Final = 100
_UNITS: Final = "utf-16-le"

Line = Sequence[Any]


def block_font() -> bytes:
    """A TrueType font of one glyph, a block as large as a letter: the text is invisible, and only its place counts.

    Without an outline, pdfium takes a line of one letter for empty.
    """
    frame = (0, -_DESCENT, _ADVANCE, _ASCENT)
    steps = (0, _ADVANCE, 0, -_ADVANCE, -_DESCENT, 0, _EM, 0)
    glyph = struct.pack(">h4hHH4B8h2x", 1, *frame, 3, 0, 1, 1, 1, 1, *steps)
    head = (1 << 16, 1 << 16, 0, 0x5F0F3CF5, 0, _EM, 0, 0, *frame, 0, 8, 2, 1, 0)
    hhea = (1 << 16, _ASCENT, -_DESCENT, 0, _ADVANCE, 0, 0, _ADVANCE, 1, *[0] * 7, 1)
    tables: Mapping[bytes, bytes] = {
        b"cmap": struct.pack(">HHHHIHHHHHH", 0, 1, 3, 1, 12, 6, 12, 0, 0, 1, 0),
        b"glyf": glyph,
        b"head": struct.pack(">IIIIHHqqhhhhHHhhh", *head),
        b"hhea": struct.pack(">IhhhH11hH", *hhea),
        b"hmtx": struct.pack(">Hh", _ADVANCE, 0),
        b"loca": struct.pack(">II", 0, len(glyph)),
        b"maxp": struct.pack(">I14H", 1 << 16, 1, 4, 1, 0, 0, 1, *[0] * 8),
        b"name": struct.pack(">HHH", 0, 0, 6),
        b"post": struct.pack(">I28x", 3 << 16),
    }
    at = 12 + 16 * len(tables)
    directory, body = b"", b""
    for tag, table in tables.items():
        padded = table + bytes(-len(table) % 4)
        checksum = sum(struct.unpack(f">{len(padded) // 4}I", padded)) & 0xFFFFFFFF
        directory += struct.pack(">4sIII", tag, checksum, at + len(body), len(table))
        body += padded
    return struct.pack(">IHHHH", 1 << 16, len(tables), 128, 3, 16 * len(tables) - 128) + directory + body


def to_unicode() -> bytes:
    """The map by which a reader finds text again: each code is a unit of UTF-16."""
    rows = [b"<%02X00> <%02XFF> <%02X00>" % (high, high, high) for high in range(256)]
    blocks = [rows[at : at + _ROWS_AT_ONCE] for at in range(0, len(rows), _ROWS_AT_ONCE)]
    ranges = b"".join(b"%d beginbfrange\n%b\nendbfrange\n" % (len(block), b"\n".join(block)) for block in blocks)
    return (
        b"/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap\n"
        b"/CIDSystemInfo << /Registry (Adobe) /Ordering (UCS) /Supplement 0 >> def\n"
        b"/CMapName /Adobe-Identity-UCS def\n/CMapType 2 def\n"
        b"1 begincodespacerange\n<0000> <FFFF>\nendcodespacerange\n"
        + ranges
        + b"endcmap\nCMapName currentdict /CMap defineresource pop\nend\nend\n"
    )


def codes_of(text: str) -> tuple[int, ...]:
    """The units of UTF-16; what stands alone without its other half becomes a question mark."""
    units = text.encode(_UNITS, "replace")
    return struct.unpack(f"<{len(units) // 2}H", units)


class _Layers:
    """pdfium with one open PDF that is written on."""

    def __init__(self, pdfium: Any, data: mmap.mmap) -> None:
        self._pdfium = pdfium
        self._start = ctypes.c_char.from_buffer(data)
        self._handle = pdfium.FPDF_LoadMemDocument64(ctypes.addressof(self._start), len(data), None)
        if not self._handle:
            raise RequestFailed("damaged")
        font, glyphs = block_font(), bytes(2 * 65536)
        self._font = pdfium.FPDFText_LoadCidType2Font(
            self._handle,
            (ctypes.c_uint8 * len(font)).from_buffer_copy(font),
            len(font),
            to_unicode(),
            (ctypes.c_uint8 * len(glyphs)).from_buffer_copy(glyphs),
            len(glyphs),
        )

    def lay(self, number: int, width: int, height: int, lines: Sequence[Line]) -> None:
        """The lines of one page over it."""
        pdfium = self._pdfium
        page = pdfium.FPDF_LoadPage(self._handle, number - 1)
        if not page or not lines:
            return
        for text, *corners in lines:
            xs, ys = corners[0::2], corners[1::2]
            points = [self._on_page(page, width, height, x, y) for x, y in zip(xs, ys, strict=True)]
            self._write(page, codes_of(text), points)
        if not pdfium.FPDFPage_GenerateContent(page):
            raise RequestFailed("damaged")
        pdfium.FPDF_ClosePage(page)

    def save(self, result: int) -> None:
        """Write everything into an open file."""
        pdfium = self._pdfium

        def write(_self: Any, data: Any, size: int) -> int:
            rest = memoryview(ctypes.string_at(data, size))
            while rest:
                rest = rest[os.write(result, rest) :]
            return 1

        kind = dict(pdfium.FPDF_FILEWRITE._fields_)["WriteBlock"]
        if not pdfium.FPDF_SaveAsCopy(self._handle, pdfium.FPDF_FILEWRITE(version=1, WriteBlock=kind(write)), 0):
            raise RequestFailed("damaged")

    def _on_page(self, page: Any, width: int, height: int, x: float, y: float) -> tuple[float, float]:
        """A point of the drawn page in the page's own points, however it is turned and cropped."""
        found_x, found_y = ctypes.c_double(), ctypes.c_double()
        frame = (0, 0, width * _FINE, height * _FINE, 0)
        self._pdfium.FPDF_DeviceToPage(page, *frame, round(x * _FINE), round(y * _FINE), found_x, found_y)
        return found_x.value, found_y.value

    def _write(self, page: Any, codes: tuple[int, ...], points: Sequence[tuple[float, float]]) -> None:
        """Text over a box: as wide as its lower side, as high as its left one."""
        if not codes:
            return
        pdfium, (top, _, end, start) = self._pdfium, points
        size = max(1.0, math.dist(top, start))
        wide = size * len(codes) * _ADVANCE / _EM
        along = [(one - other) / wide for one, other in zip(end, start, strict=True)]
        up = [(one - other) / size for one, other in zip(top, start, strict=True)]
        x, y = (begin + rise * size * _DESCENT / _EM for begin, rise in zip(start, up, strict=True))
        text = pdfium.FPDFPageObj_CreateTextObj(self._handle, self._font, size)
        pdfium.FPDFText_SetCharcodes(text, (ctypes.c_uint32 * len(codes))(*codes), len(codes))
        pdfium.FPDFTextObj_SetTextRenderMode(text, pdfium.FPDF_TEXTRENDERMODE_INVISIBLE)
        pdfium.FPDFPageObj_SetMatrix(text, pdfium.FS_MATRIX(*along, *up, x, y))
        pdfium.FPDFPage_InsertObject(page, text)


def main() -> None:
    """Serve one parent, until it closes the connection."""
    file, text, result = apply_limits()
    pdfium = load_pdfium()

    # Python loads it when it is first used, and then no file can be opened any more.
    codecs.lookup(_UNITS)

    def lay() -> str:
        layers = _Layers(pdfium, mmap.mmap(file, 0, access=mmap.ACCESS_COPY))
        for page in json.loads(os.pread(text, os.fstat(text).st_size, 0)):
            layers.lay(*page)
        layers.save(result)
        return pack("written")

    serve({"lay": lay}, FONT_FOLDERS)


if __name__ == "__main__":
    main()
    # Nothing is worth tidying up, and pdfium need not be asked whether it agrees.
    os._exit(0)
