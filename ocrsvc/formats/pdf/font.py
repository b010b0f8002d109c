"""The font of invisible text: the same block glyph for all letters, and the map from codes to Unicode."""

import struct
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

ADVANCE: Final = 0.5  # width of each letter, in ems
DESCENT: Final = 0.2  # extent of each letter below the baseline, in ems

_EM: Final = 1000
_ASCENT: Final = 800
_ROWS_AT_ONCE: Final = 100
_CODES: Final = 1 << 16
_FIRST_SURROGATE, _LAST_SURROGATE = 0xD800, 0xDFFF
_UNKNOWN: Final = ord("?")


class FontCodes:
    """Assigns two-byte codes to letters: up to U+FFFF the code is the code point.

    Letters above U+FFFF get codes of the surrogate range, which no letter uses: at most 2,048 per document.
    """

    def __init__(self) -> None:
        self._others: dict[str, int] = {}

    def codes_of(self, text: str) -> bytes:
        """Encode a text with two bytes per letter; letters for which no code is left become question marks."""
        return struct.pack(f">{len(text)}H", *map(self._code_of, text))

    def to_unicode(self) -> bytes:
        """The ToUnicode map, which lets PDF viewers extract the text."""
        rows = [b"<%02X00> <%02XFF> <%02X00>" % (high, high, high) for high in range(256) if high not in _SURROGATES]
        rows += [
            b"<%04X> <%04X> <%b>" % (code, code, letter.encode("utf-16-be").hex().upper().encode())
            for letter, code in self._others.items()
        ]
        blocks = [rows[at : at + _ROWS_AT_ONCE] for at in range(0, len(rows), _ROWS_AT_ONCE)]
        ranges = b"".join(b"%d beginbfrange\n%b\nendbfrange\n" % (len(block), b"\n".join(block)) for block in blocks)
        return _MAP_BEGIN + ranges + _MAP_END

    def _code_of(self, letter: str) -> int:
        code = ord(letter)
        if _FIRST_SURROGATE <= code <= _LAST_SURROGATE:
            return _UNKNOWN
        if code <= 0xFFFF:
            return code
        free = _FIRST_SURROGATE + len(self._others)
        return self._others.setdefault(letter, free) if free <= _LAST_SURROGATE else self._others.get(letter, _UNKNOWN)


_SURROGATES: Final = range(_FIRST_SURROGATE >> 8, (_LAST_SURROGATE >> 8) + 1)
_MAP_BEGIN: Final = (
    b"/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap\n"
    b"/CIDSystemInfo << /Registry (Adobe) /Ordering (UCS) /Supplement 0 >> def\n"
    b"/CMapName /Adobe-Identity-UCS def\n/CMapType 2 def\n"
    b"1 begincodespacerange\n<0000> <FFFF>\nendcodespacerange\n"
)
_MAP_END: Final = b"endcmap\nCMapName currentdict /CMap defineresource pop\nend\nend\n"


class FontParts(NamedTuple):
    """The PDF objects of the font: dictionaries without references to each other, and Flate-compressed streams.

    References to add: in `font` /DescendantFonts (an array of `letters`) and /ToUnicode; in `letters` /FontDescriptor
    (`description`) and /CIDToGIDMap; in `description` /FontFile2 (`file`, with `file_bytes` uncompressed).
    """

    font: bytes
    letters: bytes
    description: bytes
    to_unicode: bytes
    to_glyph: bytes
    file: bytes
    file_bytes: int


def font_parts(codes: FontCodes) -> FontParts:
    """Make the font objects of a document whose text uses these codes."""
    wide, descent, file = round(_EM * ADVANCE), round(_EM * DESCENT), block_font()
    return FontParts(
        b"<< /Type /Font /Subtype /Type0 /BaseFont /Invisible /Encoding /Identity-H >>",
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Invisible /DW %d /CIDSystemInfo << /Registry (Adobe) "
        b"/Ordering (Identity) /Supplement 0 >> >>" % wide,
        b"<< /Type /FontDescriptor /FontName /Invisible /Flags 4 /FontBBox [0 %d %d %d] /ItalicAngle 0 /Ascent %d "
        b"/Descent %d /CapHeight %d /StemV 80 >>" % (-descent, wide, _ASCENT, _ASCENT, -descent, _ASCENT),
        zlib.compress(codes.to_unicode(), 9),
        zlib.compress(bytes(2 * _CODES), 9),
        zlib.compress(file, 9),
        len(file),
    )


def block_font() -> bytes:
    """A TrueType font of one glyph, a block as large as a letter: only the position of invisible text matters.

    The glyph has an outline: without one, pdfium would treat a line of a single letter as empty.
    """
    advance, descent = round(_EM * ADVANCE), round(_EM * DESCENT)
    frame = (0, -descent, advance, _ASCENT)
    steps = (0, advance, 0, -advance, -descent, 0, _EM, 0)
    glyph = struct.pack(">h4hHH4B8h2x", 1, *frame, 3, 0, 1, 1, 1, 1, *steps)
    head = (1 << 16, 1 << 16, 0, 0x5F0F3CF5, 0, _EM, 0, 0, *frame, 0, 8, 2, 1, 0)
    hhea = (1 << 16, _ASCENT, -descent, 0, advance, 0, 0, advance, 1, *[0] * 7, 1)
    return _font_file(
        {
            b"cmap": struct.pack(">HHHHIHHHHHH", 0, 1, 3, 1, 12, 6, 12, 0, 0, 1, 0),
            b"glyf": glyph,
            b"head": struct.pack(">IIIIHHqqhhhhHHhhh", *head),
            b"hhea": struct.pack(">IhhhH11hH", *hhea),
            b"hmtx": struct.pack(">Hh", advance, 0),
            b"loca": struct.pack(">II", 0, len(glyph)),
            b"maxp": struct.pack(">I14H", 1 << 16, 1, 4, 1, 0, 0, 1, *[0] * 8),
            b"name": struct.pack(">HHH", 0, 0, 6),
            b"post": struct.pack(">I28x", 3 << 16),
        }
    )


def _font_file(tables: Mapping[bytes, bytes]) -> bytes:
    """Assemble a font file from its tables, which TrueType requires to be sorted by tag."""
    at = 12 + 16 * len(tables)
    directory, body = b"", b""
    for tag, table in tables.items():
        padded = table + bytes(-len(table) % 4)
        checksum = sum(struct.unpack(f">{len(padded) // 4}I", padded)) & 0xFFFFFFFF
        directory += struct.pack(">4sIII", tag, checksum, at + len(body), len(table))
        body += padded
    return struct.pack(">IHHHH", 1 << 16, len(tables), 128, 3, 16 * len(tables) - 128) + directory + body
