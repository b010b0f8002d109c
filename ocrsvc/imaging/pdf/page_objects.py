"""What a PDF's page draws, that in its forms for these, and what of it lies over text: images and opaque rectangles.

For the program `ocrsvc.imaging.pdf.child`, in which numpy is not loaded. A form may draw other forms, and one form may
be drawn many times: all of them together are looked at up to a number of objects, each with the matrix of its forms.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

COVER_NUMBERS: Final = 5
"""Of a cover, as doubles: its place among what the page draws, and left, bottom, right and top in points."""
MOST_OF_A_KIND: Final = 64
MOST_COVERS: Final = 2 * MOST_OF_A_KIND
"""The largest images and the largest rectangles that are told of; on pages with more, they are pieces of pictures."""

_DEEPEST_FORM: Final = 8
_MOST_OBJECTS: Final = 200_000  # of a page that are looked at for covers; a map of a town has fewer
_MOST_RECTANGLES: Final = 4_000  # that are looked at closely
_RECTANGLE_SEGMENTS: Final = (4, 5)
_MOST_CLIPS: Final = 8
_OPAQUE: Final = 255

Matrix = tuple[float, float, float, float, float, float]
Frame = tuple[float, float, float, float]
_UNCHANGED: Final[Matrix] = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
_EVERYWHERE: Final[Frame] = (-1e6, -1e6, 1e6, 1e6)


class PageObject(NamedTuple):
    """An object, its kind, and of the forms that it is in: how many, what makes points of the page, where they draw."""

    item: Any
    kind: int
    depth: int
    matrix: Matrix
    clip: Frame


def displayed(
    pdfium: Any, page: Any, size: tuple[int, int], point: tuple[float, float], scale: int
) -> tuple[float, float]:
    """Where a point is on the page as displayed in this size; pdfium gives whole numbers, here scaled."""
    across, down = ctypes.c_int(), ctypes.c_int()
    width, height = size
    pdfium.FPDF_PageToDevice(page, 0, 0, width * scale, height * scale, 0, *point, across, down)
    return across.value / scale, down.value / scale


def objects_of(pdfium: Any, page: Any, most: float = float("inf")) -> Iterator[PageObject]:
    """The objects of a page in the order in which they are drawn; `most` of them, forms counted, are looked at."""
    count = pdfium.FPDFPage_CountObjects(page)
    roots: Iterator[Any] = (pdfium.FPDFPage_GetObject(page, index) for index in range(count))
    opened = [(roots, _UNCHANGED, _EVERYWHERE)]
    while opened and most > 0:
        items, matrix, clip = opened[-1]
        item = next(items, None)
        if item is None:
            opened.pop()
            continue
        most -= 1
        kind = pdfium.FPDFPageObj_GetType(item)
        if kind == pdfium.FPDF_PAGEOBJ_FORM and len(opened) <= _DEEPEST_FORM:
            opened.append(_opened_form(pdfium, item, matrix, clip))
        else:
            yield PageObject(item, kind, len(opened) - 1, matrix, clip)


def _opened_form(pdfium: Any, form: Any, matrix: Matrix, clip: Frame) -> tuple[Iterator[Any], Matrix, Frame]:
    """The items of a form, with the matrix and the frame in which it is drawn."""
    inner = pdfium.FS_MATRIX()
    pdfium.FPDFPageObj_GetMatrix(form, inner)
    a, b, c, d, e, f = (getattr(inner, name) for name in "abcdef")
    g, h, i, j, k, m = matrix
    both = (a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + m)
    items = (pdfium.FPDFFormObj_GetObject(form, index) for index in range(pdfium.FPDFFormObj_CountObjects(form)))
    return items, both, _within(_moved(_clipped(pdfium, form, _EVERYWHERE), matrix), clip)


def look_at_objects(pdfium: Any, page: Any) -> tuple[dict[int, int], list[list[float]]]:
    """The place among what the page draws of each text object, by its address, and the COVER_NUMBERS of each cover.

    What was drawn before all text covers none and is not told of.
    """
    places = dict[int, int]()
    images, rectangles = list[list[float]](), list[list[float]]()
    looked_at = 0
    for place, (item, kind, _, matrix, clip) in enumerate(objects_of(pdfium, page, _MOST_OBJECTS)):
        if kind == pdfium.FPDF_PAGEOBJ_TEXT:
            places[ctypes.cast(item, ctypes.c_void_p).value or 0] = place
        elif kind == pdfium.FPDF_PAGEOBJ_IMAGE and places and not pdfium.FPDFPageObj_HasTransparency(item):
            images.append([float(place), *_bounds_on_page(pdfium, item, matrix, clip)])
        elif kind == pdfium.FPDF_PAGEOBJ_PATH and places and looked_at < _MOST_RECTANGLES:
            looked_at += 1
            if _is_opaque_rectangle(pdfium, item):
                rectangles.append([float(place), *_bounds_on_page(pdfium, item, matrix, clip)])
    return places, [*_largest(images), *_largest(rectangles)]


def _largest(covers: list[list[float]]) -> list[list[float]]:
    return sorted(covers, key=lambda cover: (cover[1] - cover[3]) * (cover[4] - cover[2]))[:MOST_OF_A_KIND]


def _is_opaque_rectangle(pdfium: Any, item: Any) -> bool:
    """Whether a path hides what is below it; of other shapes nothing is said."""
    count = pdfium.FPDFPath_CountSegments(item)
    if count not in _RECTANGLE_SEGMENTS or pdfium.FPDFPageObj_HasTransparency(item):
        return False
    filled, stroked = ctypes.c_int(), ctypes.c_int()
    colour = [ctypes.c_uint() for _ in range(4)]
    is_known = pdfium.FPDFPath_GetDrawMode(item, filled, stroked) and pdfium.FPDFPageObj_GetFillColor(item, *colour)
    if not is_known or filled.value == pdfium.FPDF_FILLMODE_NONE or colour[3].value != _OPAQUE:
        return False
    return _is_upright(_points(pdfium, count, partial(pdfium.FPDFPath_GetPathSegment, item)))


def _is_upright(points: list[tuple[float, float]]) -> bool:
    """Whether these are the four corners of their frame."""
    corners = {(round(x, 2), round(y, 2)) for x, y in points}
    return len(corners) == 4 and len({x for x, _ in corners}) == 2 == len({y for _, y in corners})


def _bounds_on_page(pdfium: Any, item: Any, matrix: Matrix, clip: Frame) -> Frame:
    """The frame of what is to be seen of an object, in points of the page."""
    sides = [ctypes.c_float() for _ in range(4)]
    pdfium.FPDFPageObj_GetBounds(item, *sides)
    left, bottom, right, top = (side.value for side in sides)
    return _within(_moved(_clipped(pdfium, item, (left, bottom, right, top)), matrix), clip)


def _moved(frame: Frame, matrix: Matrix) -> Frame:
    left, bottom, right, top = frame
    a, b, c, d, e, f = matrix
    return _around([(a * x + c * y + e, b * x + d * y + f) for x in (left, right) for y in (bottom, top)])


def _around(points: list[tuple[float, float]]) -> Frame:
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _within(frame: Frame, clip: Frame) -> Frame:
    """What two frames share; without extent where that is nothing."""
    left, bottom = max(frame[0], clip[0]), max(frame[1], clip[1])
    return left, bottom, max(left, min(frame[2], clip[2])), max(bottom, min(frame[3], clip[3]))


def _clipped(pdfium: Any, item: Any, frame: Frame) -> Frame:
    """A frame, without what lies outside of the first rectangles by which the object is clipped."""
    clip = pdfium.FPDFPageObj_GetClipPath(item)
    for path in range(min(_MOST_CLIPS, pdfium.FPDFClipPath_CountPaths(clip)) if clip else 0):
        count = pdfium.FPDFClipPath_CountPathSegments(clip, path)
        points = _points(pdfium, count, partial(pdfium.FPDFClipPath_GetPathSegment, clip, path))
        if _is_upright(points):
            frame = _within(frame, _around(points))
    return frame


def _points(pdfium: Any, count: int, segment: Callable[[int], Any]) -> list[tuple[float, float]]:
    """The points of a path of so many segments; none of one that has more than a rectangle."""
    points = list[tuple[float, float]]()
    x, y = ctypes.c_float(), ctypes.c_float()
    for index in range(count if count in _RECTANGLE_SEGMENTS else 0):
        if pdfium.FPDFPathSegment_GetPoint(segment(index), x, y):
            points.append((x.value, y.value))
    return points
