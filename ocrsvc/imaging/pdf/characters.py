"""Copies the characters of a PDF's page into memory that a parent reads: what they are, where they stand, how drawn.

For the program `ocrsvc.imaging.pdf.child`, in which numpy is not loaded. The functions of pdfium are called with
addresses, several times for each character: checked arguments take longer.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from ocrsvc.imaging.pdf.page_objects import COVER_NUMBERS, MOST_COVERS, look_at_objects

BOX_NUMBERS: Final = 6
"""Of a character, as doubles: left, right, bottom and top of its ink, and its origin, in the page's own points."""
OBJECT_NUMBERS: Final = 8
"""Of a text object, as doubles: matrix a b c d, font size, font, render mode, place among what the page draws."""
UNMAPPED, ADDED = 1, 2
"""Flags of a character: its font has no Unicode for it; it is a blank that pdfium adds, for the white that is there."""

_DOUBLE_BYTES: Final = 8
_BLANK: Final = 0x20
_DEVICE_SCALE: Final = 16
_LONG_POINTS: Final = 1000

_POINTER: Final = ctypes.c_void_p
_INT: Final = ctypes.c_int


def room_bytes(count: int) -> int:
    """What so many characters take at most, with their objects and covers."""
    numbers = BOX_NUMBERS * count + OBJECT_NUMBERS * count + COVER_NUMBERS * MOST_COVERS
    return numbers * _DOUBLE_BYTES + 12 * count


class CharacterCopier:
    """The text of one loaded page; `close` it before the page.

    Args:
        pdfium: Its functions.
        page: A loaded page.
    """

    def __init__(self, pdfium: Any, page: Any) -> None:
        self._pdfium, self._page = pdfium, page
        self._text = pdfium.FPDFText_LoadPage(page)
        self.count: int = max(0, pdfium.FPDFText_CountChars(self._text)) if self._text else 0

    def close(self) -> None:
        """Give everything back."""
        if self._text:
            self._pdfium.FPDFText_ClosePage(self._text)

    def copy(self, memory: Any) -> tuple[int, int]:
        """Write them into memory of `room_bytes`; how many text objects and covers follow.

        First the numbers of all characters, of objects and of covers, then a code, an object's number and flags of each
        character, as 32 bits each: UNMAPPED and ADDED.
        """
        count = self.count
        places, covers = look_at_objects(self._pdfium, self._page)
        columns_at = room_bytes(count) - 12 * count
        codes, owners, flags = (
            (ctypes.c_uint32 * count).from_buffer(memory, columns_at + 4 * column * count) for column in range(3)
        )
        numbers: Any = (ctypes.c_double * (columns_at // _DOUBLE_BYTES)).from_buffer(memory)
        objects = self._copy_characters(ctypes.addressof(numbers), (codes, owners, flags))
        at = BOX_NUMBERS * count
        for pointer, first in objects.items():
            numbers[at : at + OBJECT_NUMBERS] = self._numbers_of(pointer, first, places.get(pointer, -1))
            at += OBJECT_NUMBERS
        for cover in covers:
            numbers[at : at + COVER_NUMBERS] = cover
            at += COVER_NUMBERS
        return len(objects), len(covers)

    def to_pixels(self, width: int, height: int) -> tuple[float, ...]:
        """Six numbers that turn points into pixels of the page as it is drawn: x = a x + c y + e, y = b x + d y + f."""
        corners = [
            self._device_point(width, height, *point) for point in ((0, 0), (_LONG_POINTS, 0), (0, _LONG_POINTS))
        ]
        (x0, y0), (x1, y1), (x2, y2) = corners
        return (
            *((x1 - x0) / _LONG_POINTS, (y1 - y0) / _LONG_POINTS),
            *((x2 - x0) / _LONG_POINTS, (y2 - y0) / _LONG_POINTS),
            *(x0, y0),
        )

    def _device_point(self, width: int, height: int, x: int, y: int) -> tuple[float, float]:
        across, down = ctypes.c_int(), ctypes.c_int()
        size = (0, 0, width * _DEVICE_SCALE, height * _DEVICE_SCALE, 0)
        self._pdfium.FPDF_PageToDevice(self._page, *size, float(x), float(y), across, down)
        return across.value / _DEVICE_SCALE, down.value / _DEVICE_SCALE

    def _copy_characters(self, start: int, columns: tuple[Any, Any, Any]) -> dict[int, int]:
        """The characters' numbers from an address on, and their columns; the first character of each text object."""
        unicode_of, object_of, box_of, origin_of, error_of, is_added = _functions(self._pdfium)
        text = ctypes.cast(self._text, _POINTER).value
        codes, owners, flags = columns
        firsts, numbers = dict[int, int](), dict[int, int]()
        for index in range(self.count):
            pointer = object_of(text, index) or 0
            if pointer not in numbers:
                numbers[pointer], firsts[pointer] = len(numbers), index
            codes[index], owners[index] = unicode_of(text, index), numbers[pointer]
            if codes[index] == _BLANK:
                flags[index] = ADDED * (is_added(text, index) == 1)
            else:
                flags[index] = UNMAPPED * (error_of(text, index) == 1)
            at = start + BOX_NUMBERS * _DOUBLE_BYTES * index
            if not box_of(text, index, at, at + 8, at + 16, at + 24):
                ctypes.memset(at, 0, 32)
            origin_of(text, index, at + 32, at + 40)
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
        font = ctypes.cast(pdfium.FPDFTextObj_GetFont(item), _POINTER).value or 0
        return [matrix.a, matrix.b, matrix.c, matrix.d, size, float(font), float(mode), float(place)]


def _functions(pdfium: Any) -> tuple[Any, ...]:
    """What is called for each character: code, text object, box, origin, whether it has no Unicode, or was added."""
    return (
        _unchecked(pdfium.FPDFText_GetUnicode, ctypes.c_uint, _POINTER, _INT),
        _unchecked(pdfium.FPDFText_GetTextObject, _POINTER, _POINTER, _INT),
        _unchecked(pdfium.FPDFText_GetCharBox, _INT, _POINTER, _INT, *[_POINTER] * 4),
        _unchecked(pdfium.FPDFText_GetCharOrigin, _INT, _POINTER, _INT, *[_POINTER] * 2),
        _unchecked(pdfium.FPDFText_HasUnicodeMapError, _INT, _POINTER, _INT),
        _unchecked(pdfium.FPDFText_IsGenerated, _INT, _POINTER, _INT),
    )


def _unchecked(function: Any, result: Any, *arguments: Any) -> Any:
    """The same function, whose pointers are numbers."""
    address = ctypes.cast(function, _POINTER).value
    assert address is not None, "pdfium has it"
    return ctypes.PYFUNCTYPE(result, *arguments)(address)
