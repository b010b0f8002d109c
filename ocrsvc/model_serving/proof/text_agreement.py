"""How much of a text was read: the words that two texts have in common, in any order.

A word is one CJK character, or a run of other letters and digits, after Unicode's NFKC and case folding: line breaks,
spaces and punctuation do not count.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Final

_CJK: Final = "㐀-鿿豈-﫿぀-ヿ가-힯"
_WORD: Final = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[^\W_])+")


def words_of(text: str) -> Counter[str]:
    """How often each word is in a text."""
    return Counter(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def words_f1(pairs: Iterable[tuple[str, str]]) -> float | None:
    """The harmonic mean of precision and recall of the words on all pages together.

    Args:
        pairs: Of each page the text that is wanted, and the one that was read.

    Returns:
        0 to 1; None where no word is wanted, and so nothing can be said.
    """
    common = wanted_count = read_count = 0
    for wanted_text, read_text in pairs:
        wanted, read = words_of(wanted_text), words_of(read_text)
        common += (wanted & read).total()
        wanted_count += wanted.total()
        read_count += read.total()
    return 2 * common / (wanted_count + read_count) if wanted_count else None
