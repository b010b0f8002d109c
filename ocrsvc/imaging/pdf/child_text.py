"""Copies a page's text in the child process, which has no numpy: characters, text objects, objects covering them."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from ctypes import c_int, c_uint, c_void_p
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

# Doubles per character: left, right, bottom and top of its ink, x and y of its origin, in points; code point; index of
# its text object; flags: UNMAPPED (its font maps it to no Unicode) and ADDED (a space that pdfium put into a gap).
CHARACTER_NUMBERS: Final = 9
UNMAPPED, ADDED = 1, 2
OBJECT_NUMBERS: Final = 8  # doubles per text object: matrix a b c d, font size, font, render mode, drawing order index
COVER_NUMBERS: Final = 5  # doubles per object that covers text: drawing order index; left, bottom, right, top in points

_DOUBLE_BYTES: Final = 8
_BLANK: Final = 0x20
_DEVICE_SCALE: Final = 16
_LONG_POINTS: Final = 1000.0

_MAX_OF_A_KIND: Final = 64  # at most the 64 largest images and 64 largest rectangles count as covering text
_MAX_COVERS: Final = 2 * _MAX_OF_A_KIND
_DEEPEST_FORM: Final = 8
_MAX_OBJECTS: Final = 200_000  # most objects of a page, also inside forms, searched for covers; a town map has fewer
_MAX_RECTANGLES: Final = 4_000  # only the first 4,000 paths of a page are tested for being rectangles
_RECTANGLE_SEGMENTS: Final = (4, 5)
_MAX_CLIPS: Final = 8
_OPAQUE: Final = 255

Matrix = tuple[float, float, float, float, float, float]
Frame = tuple[float, float, float, float]  # left, bottom, right and top in points
_UNCHANGED: Final[Matrix] = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
_EVERYWHERE: Final[Frame] = (-1e6, -1e6, 1e6, 1e6)


def room_bytes(count: int) -> int:
    """Bytes that `PageText.copy` needs: `count` characters, as many text objects, and _MAX_COVERS covering objects."""
    return _DOUBLE_BYTES * ((CHARACTER_NUMBERS + OBJECT_NUMBERS) * count + COVER_NUMBERS * _MAX_COVERS)


class PageText:
    """The text of one loaded page; needs a `close` before the page is closed."""

    def __init__(self, pdfium: Any, page: Any) -> None:
        self._pdfium, self._page = pdfium, page
        self._text = pdfium.FPDFText_LoadPage(page)
        self.count: int = max(0, pdfium.FPDFText_CountChars(self._text)) if self._text else 0

    def close(self) -> None:
        """Release the text."""
        if self._text:
            self._pdfium.FPDFText_ClosePage(self._text)

    def copy(self, memory: Any) -> tuple[int, int]:
        """Write characters, text objects and covering objects to `memory`; returns how many objects of each kind."""
        places, covers = _look_at_objects(self._pdfium, self._page)
        numbers: Any = (ctypes.c_double * (room_bytes(self.count) // _DOUBLE_BYTES)).from_buffer(memory)
        firsts = self._copy_characters(numbers)
        rest = [self._numbers_of(pointer, first, places.get(pointer, -1)) for pointer, first in firsts.items()] + covers
        flat = [number for several in rest for number in several]
        begin = CHARACTER_NUMBERS * self.count
        numbers[begin : begin + len(flat)] = flat
        return len(firsts), len(covers)

    def to_pixels(self, width: int, height: int) -> tuple[float, ...]:
        """Six numbers a to f that map points to pixels of the drawn page: (a x + c y + e, b x + d y + f)."""
        points = ((0.0, 0.0), (_LONG_POINTS, 0.0), (0.0, _LONG_POINTS))
        (x, y), *ends = (displayed(self._pdfium, self._page, (width, height), at, _DEVICE_SCALE) for at in points)
        sides = [side for right, down in ends for side in ((right - x) / _LONG_POINTS, (down - y) / _LONG_POINTS)]
        return (*sides, x, y)

    def _copy_characters(self, numbers: Any) -> dict[int, int]:
        """Copy all characters; returns the index of each text object's first character, by the object's address."""
        pdfium = self._pdfium
        code_of = _unchecked(pdfium.FPDFText_GetUnicode, c_uint, c_void_p, c_int)
        object_of = _unchecked(pdfium.FPDFText_GetTextObject, c_void_p, c_void_p, c_int)
        box_of = _unchecked(pdfium.FPDFText_GetCharBox, c_int, c_void_p, c_int, *[c_void_p] * 4)
        origin_of = _unchecked(pdfium.FPDFText_GetCharOrigin, c_int, c_void_p, c_int, *[c_void_p] * 2)
        is_unmapped = _unchecked(pdfium.FPDFText_HasUnicodeMapError, c_int, c_void_p, c_int)
        is_added = _unchecked(pdfium.FPDFText_IsGenerated, c_int, c_void_p, c_int)
        text, start = ctypes.cast(self._text, c_void_p).value, ctypes.addressof(numbers)
        firsts, owners = dict[int, int](), dict[int, int]()
        for index in range(self.count):
            pointer = object_of(text, index) or 0
            if pointer not in owners:
                owners[pointer], firsts[pointer] = len(owners), index
            code, at = code_of(text, index), CHARACTER_NUMBERS * index
            flag, is_so = (ADDED, is_added) if code == _BLANK else (UNMAPPED, is_unmapped)
            place = start + _DOUBLE_BYTES * at
            if not box_of(text, index, place, place + 8, place + 16, place + 24):
                ctypes.memset(place, 0, 32)
            origin_of(text, index, place + 32, place + 40)
            numbers[at + 6], numbers[at + 7], numbers[at + 8] = code, owners[pointer], flag * (is_so(text, index) == 1)
        return firsts

    def _numbers_of(self, pointer: int, first: int, order: int) -> list[float]:
        """OBJECT_NUMBERS numbers of the text object at this address; zeros for address 0 (a space added by pdfium)."""
        if not pointer:
            return [0.0] * OBJECT_NUMBERS
        pdfium = self._pdfium
        item = ctypes.cast(pointer, pdfium.FPDF_PAGEOBJECT)
        matrix = pdfium.FS_MATRIX()
        pdfium.FPDFText_GetMatrix(self._text, first, matrix)
        size, mode = pdfium.FPDFText_GetFontSize(self._text, first), pdfium.FPDFTextObj_GetTextRenderMode(item)
        # A font is identified by its address.
        font = _address(pdfium.FPDFTextObj_GetFont(item))
        return [matrix.a, matrix.b, matrix.c, matrix.d, size, float(font), float(mode), float(order)]


def _unchecked(function: Any, result: Any, *arguments: Any) -> Any:
    """Make a copy of a ctypes function that takes pointers as integers: ctypes' checks take longer than the calls."""
    return ctypes.PYFUNCTYPE(result, *arguments)(_address(function))


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, c_void_p).value or 0


def displayed(
    pdfium: Any, page: Any, size: tuple[int, int], point: tuple[float, float], scale: int
) -> tuple[float, float]:
    """Map a point to pixels of the page displayed at `size`, in steps of 1/`scale`.

    pdfium rounds to whole pixels, so map the point at `scale` times the size.
    """
    across, down = c_int(), c_int()
    width, height = size
    pdfium.FPDF_PageToDevice(page, 0, 0, width * scale, height * scale, 0, *point, across, down)
    return across.value / scale, down.value / scale


class PageObject(NamedTuple):
    """A page object, its type, and its nesting depth in forms, with the forms' combined matrix and clip frame."""

    item: Any
    kind: int
    depth: int
    matrix: Matrix
    clip: Frame


def objects_of(pdfium: Any, page: Any) -> Iterator[PageObject]:
    """Yield the objects of a page in drawing order, each form before its content."""
    items = map(partial(pdfium.FPDFPage_GetObject, page), range(pdfium.FPDFPage_CountObjects(page)))
    return _walk(pdfium, items, 0, _UNCHANGED, _EVERYWHERE)


def _walk(pdfium: Any, items: Iterable[Any], depth: int, matrix: Matrix, clip: Frame) -> Iterator[PageObject]:
    for item in items:
        kind = pdfium.FPDFPageObj_GetType(item)
        yield PageObject(item, kind, depth, matrix, clip)
        if kind == pdfium.FPDF_PAGEOBJ_FORM and depth < _DEEPEST_FORM:
            inner = map(partial(pdfium.FPDFFormObj_GetObject, item), range(pdfium.FPDFFormObj_CountObjects(item)))
            frame = _within(_moved(_clipped(pdfium, item, _EVERYWHERE), matrix), clip)
            yield from _walk(pdfium, inner, depth + 1, _matrix_in(pdfium, item, matrix), frame)


def _matrix_in(pdfium: Any, form: Any, matrix: Matrix) -> Matrix:
    inner = pdfium.FS_MATRIX()
    pdfium.FPDFPageObj_GetMatrix(form, inner)
    a, b, c, d, e, f = (getattr(inner, name) for name in "abcdef")
    g, h, i, j, k, m = matrix
    return a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + m


def _look_at_objects(pdfium: Any, page: Any) -> tuple[dict[int, int], list[list[float]]]:
    """Find the text on a page, and what may cover it.

    Returns each text object's drawing order index, by its address; and a list of COVER_NUMBERS numbers for each of the
    largest opaque images and rectangles that are drawn after text.
    """
    places = dict[int, int]()
    images, rectangles = list[list[float]](), list[list[float]]()
    looked_at = 0
    for place, (item, kind, _, matrix, clip) in enumerate(islice(objects_of(pdfium, page), _MAX_OBJECTS)):
        if kind == pdfium.FPDF_PAGEOBJ_TEXT:
            places[_address(item)] = place
        elif kind == pdfium.FPDF_PAGEOBJ_IMAGE and places and not pdfium.FPDFPageObj_HasTransparency(item):
            images.append([float(place), *_bounds_on_page(pdfium, item, matrix, clip)])
        elif kind == pdfium.FPDF_PAGEOBJ_PATH and places and looked_at < _MAX_RECTANGLES:
            looked_at += 1
            if _is_opaque_rectangle(pdfium, item):
                rectangles.append([float(place), *_bounds_on_page(pdfium, item, matrix, clip)])
    for covers in (images, rectangles):
        covers.sort(key=lambda cover: (cover[1] - cover[3]) * (cover[4] - cover[2]))
    return places, images[:_MAX_OF_A_KIND] + rectangles[:_MAX_OF_A_KIND]


def _is_opaque_rectangle(pdfium: Any, item: Any) -> bool:
    """Whether a path is an upright opaque rectangle."""
    count = pdfium.FPDFPath_CountSegments(item)
    if count not in _RECTANGLE_SEGMENTS or pdfium.FPDFPageObj_HasTransparency(item):
        return False
    filled, stroked = c_int(), c_int()
    colour = [c_uint() for _ in range(4)]
    is_known = pdfium.FPDFPath_GetDrawMode(item, filled, stroked) and pdfium.FPDFPageObj_GetFillColor(item, *colour)
    if not is_known or filled.value == pdfium.FPDF_FILLMODE_NONE or colour[3].value != _OPAQUE:
        return False
    return _rectangle(pdfium, count, partial(pdfium.FPDFPath_GetPathSegment, item)) is not None


def _bounds_on_page(pdfium: Any, item: Any, matrix: Matrix, clip: Frame) -> Frame:
    sides = [ctypes.c_float() for _ in range(4)]
    pdfium.FPDFPageObj_GetBounds(item, *sides)
    left, bottom, right, top = (side.value for side in sides)
    return _within(_moved(_clipped(pdfium, item, (left, bottom, right, top)), matrix), clip)


def _clipped(pdfium: Any, item: Any, frame: Frame) -> Frame:
    """Clip a frame by the first _MAX_CLIPS rectangles of the object's clip path."""
    clip = pdfium.FPDFPageObj_GetClipPath(item)
    for path in range(min(_MAX_CLIPS, pdfium.FPDFClipPath_CountPaths(clip)) if clip else 0):
        count = pdfium.FPDFClipPath_CountPathSegments(clip, path)
        rectangle = _rectangle(pdfium, count, partial(pdfium.FPDFClipPath_GetPathSegment, clip, path))
        frame = frame if rectangle is None else _within(frame, rectangle)
    return frame


def _rectangle(pdfium: Any, count: int, segment: Callable[[int], Any]) -> Frame | None:
    """The frame of a path of `count` segments if it is an upright rectangle, else None."""
    points = list[tuple[float, float]]()
    x, y = ctypes.c_float(), ctypes.c_float()
    for index in range(count if count in _RECTANGLE_SEGMENTS else 0):
        if pdfium.FPDFPathSegment_GetPoint(segment(index), x, y):
            points.append((x.value, y.value))
    corners = {(round(x, 2), round(y, 2)) for x, y in points}
    is_upright = len(corners) == 4 and len({x for x, _ in corners}) == 2 == len({y for _, y in corners})
    return _around(points) if is_upright else None


def _moved(frame: Frame, matrix: Matrix) -> Frame:
    left, bottom, right, top = frame
    a, b, c, d, e, f = matrix
    return _around([(a * x + c * y + e, b * x + d * y + f) for x in (left, right) for y in (bottom, top)])


def _around(points: list[tuple[float, float]]) -> Frame:
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _within(frame: Frame, clip: Frame) -> Frame:
    """The intersection of two frames; empty if they are disjoint."""
    left, bottom = max(frame[0], clip[0]), max(frame[1], clip[1])
    return left, bottom, max(left, min(frame[2], clip[2])), max(bottom, min(frame[3], clip[3]))
