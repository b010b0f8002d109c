"""Finds bytes of unencrypted models in other data, at any offset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES: Final = 8
# Only one word in 64 is searched for.
_STEP: Final = 64
FOUND_BYTES: Final = _WORD_BYTES * (_STEP + 1)
"""A run of this many bytes of a model is always found, unless it is text or repeats itself."""

_TABLE_BITS: Final = 24
_MIN_VALUES: Final = 6
_PRINTABLE: Final = range(0x20, 0x7F)


class PlainBytes:
    """8-byte words that occur once in the models and are neither text nor made of few distinct bytes.

    Args:
        contents: The unencrypted models.
    """

    def __init__(self, contents: Iterable[bytes]) -> None:
        every = np.concatenate([_words(content, 0) for content in contents])
        chosen, counts = np.unique(every[::_STEP], return_counts=True)
        self._words = _distinctive(chosen[counts == 1])
        self._table = np.zeros(1 << _TABLE_BITS, bool)
        self._table[self._places(self._words)] = True
        assert len(self._words), "the models have no distinctive words"

    def count(self, data: bytes | bytearray) -> int:
        """Number of the words in the data, at the first byte alignment that has any."""
        counts = (self._count(_words(data, shift)) for shift in range(_WORD_BYTES))
        return next((count for count in counts if count), 0)

    def _count(self, words: NDArray[np.uint64]) -> int:
        likely = words[self._table[self._places(words)]]
        return int(np.isin(likely, self._words).sum())

    def _places(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        # Fibonacci hashing: the low bits of floating-point numbers are too similar.
        return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _TABLE_BITS)


def _words(data: bytes | bytearray, shift: int) -> NDArray[np.uint64]:
    count = max(0, len(data) - shift) // _WORD_BYTES
    return np.frombuffer(data, np.uint64, count, shift) if count else np.empty(0, np.uint64)


def _distinctive(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The words that would not occur elsewhere by chance."""
    values = np.sort(words.view(np.uint8).reshape(-1, _WORD_BYTES), axis=1)
    distinct = 1 + (np.diff(values, axis=1) != 0).sum(axis=1)
    is_text = (values[:, 0] >= _PRINTABLE.start) & (values[:, -1] < _PRINTABLE.stop)
    distinctive: NDArray[np.uint64] = words[(distinct >= _MIN_VALUES) & ~is_text]
    return distinctive
