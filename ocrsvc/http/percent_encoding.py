"""Decodes percent escapes in linear time and in slices, so that no call holds the interpreter long."""

from __future__ import annotations

import io
from binascii import a2b_qp
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

STEP_BYTES: Final = 1 << 20
"""Of a long text, what one call works on: a few milliseconds."""

WHOLE_BYTES: Final = 8 << 20
"""What is copied in one call at most: it takes as long, and slices take three times as long at this size."""

_PERCENT: Final = ord("%")
_PERCENT_TO_EQUALS: Final = np.uint8(ord("%") ^ ord("="))
_OWN_TO_QUOTED_PRINTABLE: Final = (b"=", b"\r", b"\n")
_NO_DIGIT: Final = 0xFF
_DIGITS: Final = np.full(256, _NO_DIGIT, np.uint8)
_DIGITS[list(b"0123456789abcdef")] = range(16)
_DIGITS[list(b"ABCDEF")] = range(10, 16)


def undo_escapes(text: bytes) -> bytes:
    """What urllib's `unquote_to_bytes` gives: an escape that is none stays as it is."""
    return text if b"%" not in text else _change_in_slices(text, _undone)


def unquote(text: bytes) -> bytes:
    """The bytes behind urlencoded text, in which a plus sign stands for a blank."""
    return text if b"%" not in text and b"+" not in text else _change_in_slices(text, _unquoted)


def find_stray(text: bytes, begin: int, end: int) -> int | None:
    """Where in a part of the text the first percent sign stands that begins no escape."""
    for start, stop in _slices(text, begin, end):
        strays = _strays(np.frombuffer(text, np.uint8, stop - start, start))
        if strays.size:
            return start + int(strays[0])
    return None


def join_pieces(pieces: Iterable[bytes | memoryview], most_bytes: int) -> bytes:
    """The pieces, joined while they are made: their room is there once, and no call fills it all.

    Args:
        pieces: Each as large as one call may work on.
        most_bytes: How much room they need together, at most.
    """
    if most_bytes <= STEP_BYTES:
        return b"".join(pieces)
    # The buffer that it is given is its own, whose pages the system adds when they are written; growing moves it.
    whole = io.BytesIO(bytes(most_bytes))
    for piece in pieces:
        whole.write(piece)
    whole.truncate()
    return whole.getvalue()


def part_of(text: bytes, begin: int, end: int) -> bytes:
    """As `text[begin:end]`, in slices where that would take long."""
    if end - begin <= WHOLE_BYTES or end - begin == len(text):
        return text[begin:end]
    return join_pieces((text[at : min(at + STEP_BYTES, end)] for at in range(begin, end, STEP_BYTES)), end - begin)


def _change_in_slices(text: bytes, change: Callable[[bytes], bytes]) -> bytes:
    if len(text) <= STEP_BYTES:
        return change(text)
    return join_pieces((change(text[start:stop]) for start, stop in _slices(text, 0, len(text))), len(text))


def _slices(text: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Where pieces of a part of the text begin and end, which cut no escape."""
    while begin < end:
        stop = min(begin + STEP_BYTES, end)
        if stop < end:
            cut = text.rfind(b"%", stop - 2, stop)
            stop = cut if cut >= 0 else stop
        yield begin, stop
        begin = stop


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


def _strays(letters: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Where the percent signs stand that begin no escape."""
    at = np.flatnonzero(letters == _PERCENT)
    before_two = at[at < len(letters) - 2]
    strays = np.ones(len(at), np.bool_)
    strays[: len(before_two)] = _DIGITS[letters[before_two + 1]] | _DIGITS[letters[before_two + 2]] == _NO_DIGIT
    return at[strays]
