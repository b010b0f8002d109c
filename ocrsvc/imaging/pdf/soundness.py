"""Whether the text of a page is what its letters show: characters that are none, and fonts with a wrong map.

A font whose map to Unicode is missing or wrong gives text that nobody can read, while the page looks as it should.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.copied_text import Flags, PageCharacters
from ocrsvc.imaging.pdf.lines import BULLETS, HYPHENS, TextLine

_NO_CHARACTERS: Final = frozenset({"Cc", "Cn", "Co", "Cs"})
MOST_BAD: Final = 0.02
"""Characters of a line that may be none before it is left to the engine."""

LEAST_LETTERS: Final = 80
"""Latin letters of a font before it is judged by how often each occurs."""
LEAST_DIFFERENT: Final = 16
"""Letters that a font of running text has; fonts for formulas have fewer."""
MOST_BITS: Final = 4.95
"""What a letter of a font may take on average to write with the code of European languages: 4.1 to 4.7 is usual, and
4.9 to 5.8 where letters stand for others."""

LEAST_SIGNS: Final = 60
MOST_SIGNS: Final = 0.6
"""Share of the characters of a font, of so many or more, that may be neither letters nor digits."""

# Per thousand letters, a mean of English, German, French, Spanish, Italian, Portuguese and Polish, accents left out.
_PER_THOUSAND: Final = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        (90, 14, 38, 42, 140, 12, 17, 22, 75, 5, 8, 46, 28, 70, 72, 28, 6, 66, 67, 64, 36, 14, 9, 3, 10, 8),
        strict=True,
    )
)


def bad_characters(characters: PageCharacters) -> Flags:
    """(N,) which are no characters: controls, private use, the replacement character, or of a font without a map."""
    codes, places = np.unique(characters.codes, return_inverse=True)
    bad = np.array([_is_bad(code) for code in codes.tolist()], np.bool_)
    return (bad[places] if len(codes) else np.zeros(0, np.bool_)) | characters.is_unmapped


def wrong_fonts(characters: PageCharacters) -> Flags:
    """(N,) which characters are of fonts whose map to Unicode says letters that nobody writes."""
    order = np.argsort(characters.font, kind="stable")
    starts = np.flatnonzero(np.diff(characters.font[order])) + 1
    wrong = np.zeros(len(characters), np.bool_)
    for members in np.split(order, starts):
        wrong[members] = _is_wrong(characters.codes[members])
    return wrong


def is_sound(line: TextLine, bad: Flags) -> bool:
    """Whether a line is what it shows, with these of the page's characters known to be bad."""
    return int(bad[line.members].sum()) <= MOST_BAD * len(line.members)


@cache
def _is_bad(code: int) -> bool:
    if code in BULLETS or code in HYPHENS:
        return False
    return code > 0x10FFFF or code == 0xFFFD or unicodedata.category(chr(code)) in _NO_CHARACTERS


def _is_wrong(codes: NDArray[np.uint32]) -> bool:
    letters = codes[((codes >= 0x41) & (codes <= 0x5A)) | ((codes >= 0x61) & (codes <= 0x7A))]
    if len(letters) >= LEAST_LETTERS and len(np.unique(letters)) >= LEAST_DIFFERENT and _bits_each(letters) > MOST_BITS:
        return True
    ascii_signs = (codes > 0x20) & (codes < 0x7F)
    ascii_signs &= ~(((codes | 0x20) >= 0x61) & ((codes | 0x20) <= 0x7A)) & ~((codes >= 0x30) & (codes <= 0x39))
    shown = int((codes > 0x20).sum())
    signs = codes[ascii_signs]
    # Leaders and rules of dots and dashes are of one sign each.
    return shown >= LEAST_SIGNS and len(np.unique(signs)) > 8 and len(signs) > MOST_SIGNS * shown


def _bits_each(letters: NDArray[np.uint32]) -> float:
    counts = np.bincount((letters | 0x20) - 0x61, minlength=26)[:26]
    return float(counts @ _BITS / counts.sum())


def _bits(per_thousand: Sequence[int]) -> NDArray[np.float64]:
    return -np.log2(np.array(per_thousand) / sum(per_thousand))


_BITS: Final = _bits(list(_PER_THOUSAND.values()))
