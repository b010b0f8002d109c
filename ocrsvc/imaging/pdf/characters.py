"""Copies the characters of a PDF's page into memory that a parent reads: what they are, where they stand, how drawn.

For the program `ocrsvc.imaging.pdf.child`, in which numpy is not loaded. The functions of pdfium are called with
addresses, several times for each character: checked arguments take longer.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint, c_void_p
from typing import Any, Final

from ocrsvc.imaging.pdf.page_objects import COVER_NUMBERS, MOST_COVERS, displayed, look_at_objects

CHARACTER_NUMBERS: Final = 9
"""Of a character, as doubles: left, right, bottom and top of its ink, and its origin, in the page's own points; its
code point, the number of its text object, and flags."""
OBJECT_NUMBERS: Final = 8
"""Of a text object, as doubles: matrix a b c d, font size, font, render mode, place among what the page draws."""
UNMAPPED, ADDED = 1, 2
"""Flags of a character: its font has no Unicode for it; it is a blank that pdfium adds, for the white that is there."""

_DOUBLE_BYTES: Final = 8
_BLANK: Final = 0x20
_DEVICE_SCALE: Final = 16
_LONG_POINTS: Final = 1000.0


def room_bytes(count: int) -> int:
    """What so many characters take at most, with their objects and covers."""
    return _DOUBLE_BYTES * ((CHARACTER_NUMBERS + OBJECT_NUMBERS) * count + COVER_NUMBERS * MOST_COVERS)


class CharacterCopier:
    """The text of one loaded page; `close` it before the page."""

    def __init__(self, pdfium: Any, page: Any) -> None:
        self._pdfium, self._page = pdfium, page
        self._text = pdfium.FPDFText_LoadPage(page)
        self.count: int = max(0, pdfium.FPDFText_CountChars(self._text)) if self._text else 0

    def close(self) -> None:
        """Give everything back."""
        if self._text:
            self._pdfium.FPDFText_ClosePage(self._text)

    def copy(self, memory: Any) -> tuple[int, int]:
        """Write the numbers of all characters, text objects and covers into memory of `room_bytes`.

        Returns how many objects and covers there are.
        """
        places, covers = look_at_objects(self._pdfium, self._page)
        numbers: Any = (ctypes.c_double * (room_bytes(self.count) // _DOUBLE_BYTES)).from_buffer(memory)
        firsts = self._copy_characters(numbers)
        rest = [self._numbers_of(pointer, first, places.get(pointer, -1)) for pointer, first in firsts.items()] + covers
        flat = [number for several in rest for number in several]
        begin = CHARACTER_NUMBERS * self.count
        numbers[begin : begin + len(flat)] = flat
        return len(firsts), len(covers)

    def to_pixels(self, width: int, height: int) -> tuple[float, ...]:
        """Six numbers that turn points into pixels of the page as it is drawn: x = a x + c y + e, y = b x + d y + f."""
        points = ((0.0, 0.0), (_LONG_POINTS, 0.0), (0.0, _LONG_POINTS))
        (x, y), *ends = (displayed(self._pdfium, self._page, (width, height), at, _DEVICE_SCALE) for at in points)
        return (
            *(side for right, down in ends for side in ((right - x) / _LONG_POINTS, (down - y) / _LONG_POINTS)),
            x,
            y,
        )

    def _copy_characters(self, numbers: Any) -> dict[int, int]:
        """Copies all characters; the first one of each text object, by its address."""
        unicode_of, object_of, box_of, origin_of, error_of, is_added = _functions(self._pdfium)
        text, start = ctypes.cast(self._text, c_void_p).value, ctypes.addressof(numbers)
        firsts, owners = dict[int, int](), dict[int, int]()
        for index in range(self.count):
            pointer = object_of(text, index) or 0
            if pointer not in owners:
                owners[pointer], firsts[pointer] = len(owners), index
            code, at = unicode_of(text, index), CHARACTER_NUMBERS * index
            flags = ADDED * (is_added(text, index) == 1) if code == _BLANK else UNMAPPED * (error_of(text, index) == 1)
            place = start + _DOUBLE_BYTES * at
            if not box_of(text, index, place, place + 8, place + 16, place + 24):
                ctypes.memset(place, 0, 32)
            origin_of(text, index, place + 32, place + 40)
            numbers[at + 6], numbers[at + 7], numbers[at + 8] = code, owners[pointer], flags
        return firsts

    def _numbers_of(self, pointer: int, first: int, place: int) -> list[float]:
        """See OBJECT_NUMBERS; zeros for what belongs to no object, such as blanks that pdfium adds."""
        if not pointer:
            return [0.0] * OBJECT_NUMBERS
        pdfium = self._pdfium
        item = ctypes.cast(pointer, pdfium.FPDF_PAGEOBJECT)
        matrix = pdfium.FS_MATRIX()
        pdfium.FPDFText_GetMatrix(self._text, first, matrix)
        size, mode = pdfium.FPDFText_GetFontSize(self._text, first), pdfium.FPDFTextObj_GetTextRenderMode(item)
        # An address: all that is asked of it is whether it is the same.
        font = ctypes.cast(pdfium.FPDFTextObj_GetFont(item), c_void_p).value or 0
        return [matrix.a, matrix.b, matrix.c, matrix.d, size, float(font), float(mode), float(place)]


def _functions(pdfium: Any) -> tuple[Any, ...]:
    """What is called for each character: code, text object, box, origin, whether it has no Unicode, or was added."""
    return (
        _unchecked(pdfium.FPDFText_GetUnicode, c_uint, c_void_p, c_int),
        _unchecked(pdfium.FPDFText_GetTextObject, c_void_p, c_void_p, c_int),
        _unchecked(pdfium.FPDFText_GetCharBox, c_int, c_void_p, c_int, *[c_void_p] * 4),
        _unchecked(pdfium.FPDFText_GetCharOrigin, c_int, c_void_p, c_int, *[c_void_p] * 2),
        _unchecked(pdfium.FPDFText_HasUnicodeMapError, c_int, c_void_p, c_int),
        _unchecked(pdfium.FPDFText_IsGenerated, c_int, c_void_p, c_int),
    )


def _unchecked(function: Any, result: Any, *arguments: Any) -> Any:
    """The same function, whose pointers are numbers."""
    address = ctypes.cast(function, c_void_p).value
    assert address is not None, "pdfium has it"
    return ctypes.PYFUNCTYPE(result, *arguments)(address)
