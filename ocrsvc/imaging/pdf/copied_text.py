"""The characters of a PDF's page as the child copied them, and as arrays in pixels of the page as drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.characters import ADDED, CHARACTER_NUMBERS, OBJECT_NUMBERS, UNMAPPED, room_bytes
from ocrsvc.imaging.pdf.page_objects import COVER_NUMBERS
from ocrsvc.records import Pixels

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

INVISIBLE_MODES: Final = (3, 7)
"""Text render modes that draw nothing: invisible, and clipping alone (ISO 32000-1, table 106)."""

_FURTHEST_PX: Final = 1e6
_LEAST_EM_PX: Final = 1.0
_LEAST_SHARE, _MOST_SHARE = 0.05, 6.0  # of the highest letter of a font in its size
_EM_OF_INK: Final = 1.25


@dataclass(frozen=True, slots=True)
class PageFrame:
    """How large a page is drawn for an engine, and how large for a look at its ink; 0 x 0 without one. Pixels."""

    width: int
    height: int
    small_width: int = 0
    small_height: int = 0


@dataclass(frozen=True, slots=True)
class CopiedText:
    """What the child has copied: numbers as `ocrsvc.imaging.pdf.characters` says, and the small drawing behind them.

    There are `count` characters, and so many text objects and covers; `matrix` makes pixels of points.
    """

    data: bytes
    count: int
    objects: int
    covers: int
    matrix: tuple[float, ...]
    frame: PageFrame

    def drawing(self) -> Pixels:
        """The page in gray, with the small sides of its frame."""
        at, shape = room_bytes(self.count), (self.frame.small_height, self.frame.small_width)
        return np.frombuffer(self.data, np.uint8, shape[0] * shape[1], at).reshape(shape)


@dataclass(frozen=True, slots=True)
class PageCharacters:
    """N characters in the order of the file. Pixels of the page as drawn, origin top left, y downwards.

    `ink` (N, 4) is left, top, right and bottom of what is drawn, without extent for blanks; `origin` (N, 2) where each
    stands on its baseline; `em` the size of its font; `along` (N, 2) the unit vector in which its line runs; `font` and
    `owner` which font and text object it is of. It is unmapped if the font has no Unicode for it, added if it is a
    blank that is not in the file, hidden if it is drawn invisibly, or an image or a rectangle was drawn over it.
    """

    codes: NDArray[np.uint32]
    ink: Numbers
    origin: Numbers
    em: Numbers
    along: Numbers
    font: Numbers
    owner: NDArray[np.uint32]
    is_unmapped: Flags
    is_added: Flags
    is_hidden: Flags

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def middle(self) -> Numbers:
        """(N, 2) the middle of each character's ink."""
        return (self.ink[:, :2] + self.ink[:, 2:]) / 2

    def of(self, chosen: Flags | NDArray[np.intp]) -> PageCharacters:
        """These of them, in this order."""
        values = {name: getattr(self, name)[chosen] for name in PageCharacters.__slots__}
        return replace(self, **values)


def page_characters(copied: CopiedText) -> PageCharacters:
    """The characters in pixels of the page as drawn."""
    numbers = np.frombuffer(copied.data, np.float64, room_bytes(copied.count) // 8)
    numbers = np.nan_to_num(numbers, posinf=_FURTHEST_PX, neginf=-_FURTHEST_PX)
    sizes = CHARACTER_NUMBERS * copied.count, OBJECT_NUMBERS * copied.objects, COVER_NUMBERS * copied.covers
    flat = np.split(numbers, np.cumsum(sizes))
    characters, objects = flat[0].reshape(-1, CHARACTER_NUMBERS), flat[1].reshape(-1, OBJECT_NUMBERS)
    codes, owners, flags = characters[:, 6:].T.astype(np.uint32)
    owned = objects[owners] if copied.objects else np.zeros((copied.count, OBJECT_NUMBERS))
    covers = flat[2].reshape(-1, COVER_NUMBERS)
    corners = _clipped(_to_pixels(characters[:, :4].reshape(-1, 2, 2).transpose(0, 2, 1), copied.matrix))
    ink = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    hidden = np.isin(owned[:, 6], INVISIBLE_MODES) | _covered(corners.mean(axis=1), owned[:, 7], covers, copied.matrix)
    has_ink: Flags = np.any(ink[:, 2:] > ink[:, :2], axis=1)
    em = _em_px(owned, copied.matrix, ink[:, 3] - ink[:, 1], has_ink)
    origin = _clipped(_to_pixels(characters[:, 4:6], copied.matrix))
    ink[~has_ink] = np.concatenate([origin, origin], axis=1)[~has_ink]
    return PageCharacters(
        codes,
        ink,
        origin,
        em,
        _directions(owned, copied.matrix),
        owned[:, 5],
        owners,
        flags & UNMAPPED != 0,
        flags & ADDED != 0,
        hidden,
    )


def _to_pixels(points: Numbers, matrix: tuple[float, ...]) -> Numbers:
    a, b, c, d, e, f = matrix
    return cast(Numbers, points @ np.array([[a, b], [c, d]]) + (e, f))


def _clipped(points: Numbers) -> Numbers:
    return np.clip(points, -_FURTHEST_PX, _FURTHEST_PX)


def _covered(middle: Numbers, places: Numbers, covers: Numbers, matrix: tuple[float, ...]) -> Flags:
    """Which characters something was drawn over: by their middle, and their place among what the page draws."""
    covered = np.zeros(len(middle), np.bool_)
    corners = _to_pixels(covers[:, 1:].reshape(-1, 2, 2), matrix)
    for place, (left, top), (right, bottom) in zip(covers[:, 0], corners.min(axis=1), corners.max(axis=1), strict=True):
        x, y = middle.T
        covered |= (places >= 0) & (places < place) & (left <= x) & (x <= right) & (top <= y) & (y <= bottom)
    return covered


def _directions(owned: Numbers, matrix: tuple[float, ...]) -> Numbers:
    """(N, 2) which way the text objects of the characters run on the page."""
    a, b, c, d = matrix[:4]
    along = owned[:, :2] @ np.array([[a, b], [c, d]])
    length = np.hypot(along[:, 0], along[:, 1])
    known = length > 0
    along[known] /= length[known, None]
    along[~known] = (1.0, 0.0)
    return cast(Numbers, along)


def _em_px(owned: Numbers, matrix: tuple[float, ...], heights: Numbers, has_ink: Flags) -> Numbers:
    """The characters' font sizes; for what says nothing sensible of it, by the height of the ink."""
    a, b, c, d = matrix[:4]
    up = owned[:, 2:4] @ np.array([[a, b], [c, d]])
    em = np.clip(np.abs(owned[:, 4]) * np.hypot(up[:, 0], up[:, 1]), 0.0, _FURTHEST_PX)
    em = np.maximum(em, _LEAST_EM_PX)
    # Where a font's highest letter is so much lower or higher than its size, that number says nothing.
    _, fonts = np.unique(owned[:, 5], return_inverse=True)
    highest = np.zeros(fonts.max(initial=-1) + 1)
    np.maximum.at(highest, fonts[has_ink], (heights / em)[has_ink])
    shares = highest[fonts]
    is_wrong = (shares > 0) & ((shares < _LEAST_SHARE) | (shares > _MOST_SHARE))
    return cast(Numbers, np.maximum(np.where(is_wrong, _EM_OF_INK * shares * em, em), _LEAST_EM_PX))
