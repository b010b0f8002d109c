"""Percent escapes: the bytes behind them, in linear time and in slices, so that no call holds the interpreter long."""

from __future__ import annotations

import io
from binascii import a2b_qp
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

STEP_BYTES: Final = 1 << 20
"""Of a long text, what one call works on: a few milliseconds."""

_PERCENT: Final = ord("%")
_PERCENT_TO_EQUALS: Final = np.uint8(ord("%") ^ ord("="))
_OWN_TO_QUOTED_PRINTABLE: Final = (b"=", b"\r", b"\n")
_NO_DIGIT: Final = 0xFF
_DIGITS: Final = np.full(256, _NO_DIGIT, np.uint8)
_DIGITS[list(b"0123456789abcdef")] = range(16)
_DIGITS[list(b"ABCDEF")] = range(10, 16)


def undo_escapes(text: bytes) -> bytes:
    """What urllib's `unquote_to_bytes` gives: an escape that is none stays as it is."""
    return text if b"%" not in text else _in_slices(text, _undone)


def unquote(text: bytes) -> bytes:
    """The bytes behind urlencoded text, in which a plus sign stands for a blank."""
    return text if b"%" not in text and b"+" not in text else _in_slices(text, _unquoted)


def _in_slices(text: bytes, change: Callable[[bytes], bytes]) -> bytes:
    if len(text) <= STEP_BYTES:
        return change(text)
    # Its value is its own buffer, where joining pieces would need the room twice.
    whole = io.BytesIO()
    for piece in _slices(text):
        whole.write(change(piece))
    return whole.getvalue()


def _slices(text: bytes) -> Iterator[bytes]:
    """The text in pieces that cut no escape."""
    at = 0
    while at < len(text):
        end = at + STEP_BYTES
        if end < len(text):
            cut = text.rfind(b"%", end - 2, end)
            end = cut if cut >= 0 else end
        yield text[at:end]
        at = end


def _unquoted(piece: bytes) -> bytes:
    return _undone(piece.replace(b"+", b" "))


def _undone(piece: bytes) -> bytes:
    """Quoted-printable escapes a byte in the same way behind another sign, and binascii undoes that fastest."""
    if b"%" not in piece:
        return piece
    escaped = piece
    for own in _OWN_TO_QUOTED_PRINTABLE:
        escaped = escaped.replace(own, b"%%%02X" % ord(own))
    letters = np.frombuffer(escaped, np.uint8)
    percents = letters == _PERCENT
    plain = a2b_qp(letters ^ percents * _PERCENT_TO_EQUALS)
    if len(plain) == len(escaped) - 2 * int(np.count_nonzero(percents)):
        return plain
    return _undone_but_strays(np.frombuffer(piece, np.uint8))


def _undone_but_strays(letters: NDArray[np.uint8]) -> bytes:
    """Of letters among which some percent signs begin no escape."""
    at = np.flatnonzero(letters[:-2] == _PERCENT)
    high, low = _DIGITS[letters[at + 1]], _DIGITS[letters[at + 2]]
    are_digits = high | low < _NO_DIGIT
    at = at[are_digits]
    undone, keeps = letters.copy(), np.ones(len(letters), np.bool_)
    undone[at] = (high << 4 | low)[are_digits]
    keeps[at + 1] = keeps[at + 2] = False
    return undone[keeps].tobytes()
