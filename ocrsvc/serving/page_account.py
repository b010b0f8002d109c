"""Where the pages of one request are counted, and whether they may be cached; knows no API keys."""

from __future__ import annotations

from typing import Final, Protocol


class PageAccount(Protocol):
    """What the reader tells of a request's pages. Used by one thread at a time."""

    @property
    def may_cache(self) -> bool:
        """Whether its pages may be kept in the result cache, and be answered from it."""

    def expect(self, pages: int) -> None:
        """So many are to be read, or found in the cache. Raises OcrsvcError when they are more than the caller has."""

    def take(self) -> None:
        """One is about to be, expected or not. Raises OcrsvcError when the caller has none left."""

    def count(self) -> None:
        """One of them was read, or found."""


class Uncounted:
    """Pages that nobody counts."""

    may_cache: Final = True

    def expect(self, pages: int) -> None:
        """As many as may be."""

    def take(self) -> None:
        """There is always one more."""

    def count(self) -> None:
        """Nothing is counted."""


UNCOUNTED: Final = Uncounted()
