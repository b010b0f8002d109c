"""The characters of a PDF page as arrays, in pixels of the drawn page."""

from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.child_text import ADDED, CHARACTER_NUMBERS, COVER_NUMBERS, OBJECT_NUMBERS, UNMAPPED

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]
Matrix = tuple[float, ...]  # a, b, c, d, e, f map points to pixels: (a x + c y + e, b x + d y + f)

INVISIBLE_MODES: Final = (3, 7)
"""Text render modes that draw nothing: invisible, and clipping alone (ISO 32000-1, table 106)."""

_FURTHEST_PX: Final = 1e6
_MIN_EM_PX: Final = 1.0
_MIN_SHARE, _MAX_SHARE = 0.05, 6.0  # plausible height of a font's tallest letter, in ems
_EM_OF_INK: Final = 1.25  # em size assumed for a font whose size is implausible, in heights of its tallest letter


@dataclass(frozen=True, slots=True)
class PageFrame:
    """Sizes in pixels: the page drawn for an engine, and the small drawing that page_look examines (0 x 0: none)."""

    width: int
    height: int
    small_width: int = 0
    small_height: int = 0


@dataclass(frozen=True, slots=True)
class PageCharacters:
    """N characters in the order of the file. Pixels of the drawn page, origin top left, y down.

    `ink` (N, 4): left, top, right and bottom of the glyph, empty for blanks; `origin` (N, 2): the glyph's origin on the
    baseline; `em`: font size; `along` (N, 2): unit vector of the line's direction; `owner`: text object. `is_unmapped`:
    has no Unicode; `is_added`: a space inserted by pdfium; `is_hidden`: invisible, or covered by a later object.
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
        """Centre of each character's ink, (N, 2)."""
        return (self.ink[:, :2] + self.ink[:, 2:]) / 2

    def of(self, chosen: Flags | Indices) -> "PageCharacters":
        """A copy with only the chosen characters, in the order of `chosen`."""
        return PageCharacters(*(getattr(self, name)[chosen] for name in PageCharacters.__slots__))


def page_characters(numbers: Numbers, counts: tuple[int, int, int], matrix: Matrix) -> PageCharacters:
    """Unpack the child process's numbers; `counts`: how many characters, text objects, and objects that cover text."""
    numbers = np.nan_to_num(numbers, posinf=_FURTHEST_PX, neginf=-_FURTHEST_PX)
    count, object_count, cover_count = counts
    sizes = CHARACTER_NUMBERS * count, OBJECT_NUMBERS * object_count, COVER_NUMBERS * cover_count
    flat = np.split(numbers, np.cumsum(sizes))
    characters, objects = flat[0].reshape(-1, CHARACTER_NUMBERS), flat[1].reshape(-1, OBJECT_NUMBERS)
    covers = flat[2].reshape(-1, COVER_NUMBERS)
    codes, owners, flags = characters[:, 6:].T.astype(np.uint32)
    owned = objects[owners] if object_count else np.zeros((count, OBJECT_NUMBERS))
    corners = _to_pixels(characters[:, :4].reshape(-1, 2, 2).transpose(0, 2, 1), matrix)
    ink = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    hidden = np.isin(owned[:, 6], INVISIBLE_MODES) | _covered(corners.mean(axis=1), owned[:, 7], covers, matrix)
    has_ink: Flags = np.any(ink[:, 2:] > ink[:, :2], axis=1)
    em = _em_px(owned, matrix, ink[:, 3] - ink[:, 1], has_ink)
    origin = _to_pixels(characters[:, 4:6], matrix)
    ink[~has_ink] = np.concatenate([origin, origin], axis=1)[~has_ink]
    along = _turned(owned[:, :2], matrix)
    length = np.hypot(along[:, 0], along[:, 1])
    along = np.where(length[:, None] > 0, along / np.where(length > 0, length, 1.0)[:, None], (1.0, 0.0))
    is_unmapped, is_added = flags & UNMAPPED != 0, flags & ADDED != 0
    return PageCharacters(codes, ink, origin, em, along, owned[:, 5], owners, is_unmapped, is_added, hidden)


def _to_pixels(points: Numbers, matrix: Matrix) -> Numbers:
    return np.clip(_turned(points, matrix) + matrix[4:], -_FURTHEST_PX, _FURTHEST_PX)


def _turned(vectors: Numbers, matrix: Matrix) -> Numbers:
    return cast(Numbers, vectors @ np.array(matrix[:4]).reshape(2, 2))


def _covered(middle: Numbers, places: Numbers, covers: Numbers, matrix: Matrix) -> Flags:
    """Whether a later object covers each character's centre; `places` and covers[:, 0] are places in drawing order."""
    covered = np.zeros(len(middle), np.bool_)
    corners = _to_pixels(covers[:, 1:].reshape(-1, 2, 2), matrix)
    for place, (left, top), (right, bottom) in zip(covers[:, 0], corners.min(axis=1), corners.max(axis=1), strict=True):
        x, y = middle.T
        covered |= (places >= 0) & (places < place) & (left <= x) & (x <= right) & (top <= y) & (y <= bottom)
    return covered


def _em_px(owned: Numbers, matrix: Matrix, heights: Numbers, has_ink: Flags) -> Numbers:
    """Font size of each character in pixels; from the height of the ink if the size in the file is implausible."""
    up = _turned(owned[:, 2:4], matrix)
    em = np.clip(np.abs(owned[:, 4]) * np.hypot(up[:, 0], up[:, 1]), _MIN_EM_PX, _FURTHEST_PX)
    # A font size is implausible if the font's tallest letter is much smaller or larger than this size.
    _, fonts = np.unique(owned[:, 5], return_inverse=True)
    highest = np.zeros(fonts.max(initial=-1) + 1)
    np.maximum.at(highest, fonts[has_ink], (heights / em)[has_ink])
    shares = highest[fonts]
    is_wrong = (shares > 0) & ((shares < _MIN_SHARE) | (shares > _MAX_SHARE))
    return cast(Numbers, np.maximum(np.where(is_wrong, _EM_OF_INK * shares * em, em), _MIN_EM_PX))
