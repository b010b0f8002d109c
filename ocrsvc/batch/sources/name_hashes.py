"""Which names were seen: a hash of 64 bits of each, so that ten million take 80 MB."""

from __future__ import annotations

from typing import Final

import numpy as np

_MOST_RECENT: Final = 100_000


class NameHashes:
    """A set of names that only grows.

    Two names of ten million have the same hash once in 370,000 sets; then the second is taken for the first.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted: list[np.ndarray] = []

    def add(self, name: str) -> bool:
        """Add a name; whether it was not there."""
        value = hash(name)
        if self._holds(value):
            return False
        self._recent.add(value)
        if len(self._recent) >= _MOST_RECENT:
            self._settle()
        return True

    def __contains__(self, name: str) -> bool:
        return self._holds(hash(name))

    def _holds(self, value: int) -> bool:
        return value in self._recent or any(_has(values, value) for values in self._sorted)

    def _settle(self) -> None:
        """Sort what came last, and merge what is not larger than it: there are few arrays, and each grows rarely."""
        values = np.sort(np.fromiter(self._recent, np.int64, len(self._recent)))
        self._recent = set()
        while self._sorted and len(self._sorted[-1]) <= len(values):
            values = np.concatenate([self._sorted.pop(), values])
            values.sort(kind="stable")
        self._sorted.append(values)


def _has(values: np.ndarray, value: int) -> bool:
    at = int(values.searchsorted(value))
    return at < len(values) and int(values[at]) == value
