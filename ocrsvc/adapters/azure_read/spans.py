"""Places in the content of a result, counted as the client counts: in code points, or in UTF-16."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

UTF16: Final = "utf16CodeUnit"
Span = dict[str, int]

_LAST_OF_ONE_UNIT: Final = 0xFFFF
# How far ahead a text is looked for that Markdown may have changed.
_AHEAD: Final = 4096


class PageText:
    """The text of one page within the content.

    Args:
        text: Of the page.
        begin: Units of the content before it.
        index_type: What is counted.

    Attributes:
        text, begin: As given.
    """

    def __init__(self, text: str, begin: int, index_type: str) -> None:
        self.text, self.begin = text, begin
        # How many units there are before each code point, where that is not its number.
        self._units: list[int] | None = None
        if index_type == UTF16 and not text.isascii() and max(map(ord, text)) > _LAST_OF_ONE_UNIT:
            self._units = list(accumulate((1 + (ord(sign) > _LAST_OF_ONE_UNIT) for sign in text), initial=0))

    @property
    def length(self) -> int:
        """Of the whole page, in units."""
        return self._at(len(self.text))

    def span(self, begin: int, end: int) -> Span:
        """From a code point of the page to another."""
        first = self._at(begin)
        return {"offset": self.begin + first, "length": self._at(end) - first}

    def find(self, piece: str, after: int) -> tuple[int, int]:
        """Where a piece of the page stands next; nothing at that place where it was changed."""
        begin = self.text.find(piece, after, after + len(piece) + _AHEAD)
        return (after, after) if begin < 0 else (begin, begin + len(piece))

    def _at(self, place: int) -> int:
        return place if self._units is None else self._units[place]
