"""Decodes base64 text, repairing the damage that clients and form decoding commonly do to it.

Standard base64 is decoded at once. Only what that refuses is repaired: a data URI in front, no padding, the URL-safe
alphabet, line breaks, percent escapes, and "+" that form decoding has turned into a blank. Whatever is still wrong then
is an error that says where. All of it takes linear time, and works on slices, so that other threads get their turn
between them.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from typing import Final, Protocol

import numpy as np
import pybase64
from numpy.typing import NDArray

from ocrsvc.errors import BadBase64, NothingSent
from ocrsvc.http.percent_encoding import STEP_BYTES, find_stray, join_pieces, part_of, undo_escapes

# What comes before the comma is a media type and its parameters; without a bound the whole text would be searched.
DATA_URI: Final = re.compile(rb"data:([^,]{0,1024}),", re.IGNORECASE)
LINE_BREAKS: Final = b"\t\r\n\f\v"
BLANKS: Final = b" " + LINE_BREAKS
TO_LINE_BREAKS: Final = bytes.maketrans(b"\t\r\f\v", b"\n\n\n\n")
STANDARD: Final = bytes.maketrans(b"-_", b"+/")
BLANKS_TO_PLUSES: Final = bytes.maketrans(b"-_ ", b"+/+")
ALLOWED: Final = (string.ascii_letters + string.digits + "+/-_%").encode() + BLANKS
REMEDY: Final = "Send the file's bytes in base64 (RFC 4648), with or without a data URI in front, and nothing else."

_BLANK, _BREAK = ord(" "), ord("\n")
# The text as bytes, without its escapes, twice while its lines are put together, and what it stands for.
_COPIES_TO_REPAIR: Final = 4


class Memory(Protocol):
    """Whom to ask before memory is allocated; as `ocrsvc.serving.memory_budget.Share`."""

    def take(self, size_bytes: int, /) -> None:
        """So many bytes more, to be kept."""
        ...

    def holding(self, size_bytes: int, /) -> AbstractContextManager[None]:
        """So many bytes more, inside the block."""
        ...


def decode_base64(text: str | bytes | memoryview, memory: Memory | None = None) -> bytes:
    """The bytes that `text` stands for.

    Args:
        text: What the client sent.
        memory: Of the request; keeps what the result takes.

    Raises:
        NothingSent: The text is empty, or a data URI without content.
        BadBase64: Something in it is not base64, even after the repairs; the message says what and where.
        OcrsvcError: What `memory` raises when there is none left.
    """
    if memory is not None:
        memory.take(len(text) * 3 // 4)
    try:
        # It lets other threads run meanwhile, however long the text is.
        data = pybase64.b64decode(text, validate=True)
    except ValueError:
        if memory is None:
            data = _decode_repaired(text)
        else:
            with memory.holding(len(text) * _COPIES_TO_REPAIR):
                data = _decode_repaired(text)
    if not data:
        raise NothingSent("The base64 text is empty.", REMEDY)
    return data


def _decode_repaired(text: str | bytes | memoryview) -> bytes:
    joined = _joined(_without_data_uri(undo_escapes(_stripped(_ascii(text), BLANKS))))
    letters = _end_without(joined, b"=")
    if letters % 4 != 1:
        try:
            return pybase64.b64decode(_padded(joined, letters), validate=True)
        except ValueError:
            pass
    del joined
    raise _error_of(_ascii(text), letters)


def _slices(text: bytes, begin: int, end: int) -> Iterator[bytes]:
    for at in range(begin, end, STEP_BYTES):
        yield text[at : min(at + STEP_BYTES, end)]


def _ascii(text: str | bytes | memoryview) -> bytes:
    return text if isinstance(text, bytes) else join_pieces(_ascii_slices(text), len(text))


def _ascii_slices(text: str | memoryview) -> Iterator[bytes]:
    for at in range(0, len(text), STEP_BYTES):
        piece = text[at : at + STEP_BYTES]
        try:
            yield piece.encode("ascii") if isinstance(piece, str) else bytes(piece)
        except UnicodeEncodeError as cause:
            raise _bad_character_error(cause.object[cause.start], at + cause.start) from cause


def _stripped(text: bytes, characters: bytes, begin: int = 0) -> bytes:
    """What follows a place in the text, without such signs at its ends."""
    begin, end = _begin_without(text, characters, begin, len(text)), _end_without(text, characters)
    return part_of(text, begin, end)


def _begin_without(text: bytes, characters: bytes, begin: int, end: int) -> int:
    """Where the first other sign stands in a part of the text; else its end."""
    for at in range(begin, end, STEP_BYTES):
        piece = text[at : min(at + STEP_BYTES, end)]
        if others := piece.translate(None, characters):
            return at + piece.index(others[:1])
    return end


def _end_without(text: bytes, characters: bytes) -> int:
    """Behind the last other sign; else 0."""
    for end in range(len(text), 0, -STEP_BYTES):
        begin = max(0, end - STEP_BYTES)
        if others := text[begin:end].rstrip(characters):
            return begin + len(others)
    return 0


def _without_data_uri(text: bytes) -> bytes:
    match = DATA_URI.match(text)
    if match is None:
        return text
    if not match[1].rstrip().lower().endswith(b";base64"):
        raise BadBase64(
            "The data URI does not say that its content is base64.", 'Begin it with "data:image/png;base64,".'
        )
    return _stripped(text, BLANKS, match.end())


def _padded(text: bytes, letters: int) -> bytes:
    """So many letters of the text, and the padding that belongs to them."""
    padding = b"=" * (-letters % 4)
    size_bytes = letters + len(padding)
    return text if size_bytes == len(text) else join_pieces(chain(_slices(text, 0, letters), [padding]), size_bytes)


def _joined(text: bytes) -> bytes:
    """The letters of the standard alphabet, and padding: line breaks taken out, other blanks turned back into "+".

    A blank is a line break too where it stands at the edge of a line, or wherever the text is wrapped by blanks alone,
    unless only counting it as a letter makes the lines equally long, or the text whole groups of four.
    """
    if b" " not in text:
        return _translated(text, STANDARD, BLANKS)
    joined = _translated(_best_lines(text), None, b"\n")
    last = len(joined) - 1 - joined.rfind(b" ")
    whole_with_pluses = len(joined) % 4 == 0 and last % 4 != 0
    if _are_wrapped(joined, b" ") and not whole_with_pluses:
        return _translated(joined, STANDARD, b" ")
    return _translated(joined, BLANKS_TO_PLUSES)


def _best_lines(text: bytes) -> bytes:
    """The lines without the blanks at their edges, unless only these make them equally long."""
    if not any(character in text for character in LINE_BREAKS):
        stripped = _stripped(text, BLANKS)
        return text if _are_wrapped(text, b"\n") and not _are_wrapped(stripped, b"\n") else stripped
    lines = _lines(text, strips=True)
    if _are_wrapped(lines, b"\n"):
        return lines
    # Made again in the rare case, so that two of them are never there at once.
    del lines
    lines = _lines(text, strips=False)
    return lines if _are_wrapped(lines, b"\n") else _lines(text, strips=True)


def _translated(text: bytes, table: bytes | None, without: bytes = b"") -> bytes:
    """As `bytes.translate`, in slices."""
    if len(text) <= STEP_BYTES:
        return text.translate(table, without)
    return join_pieces((piece.translate(table, without) for piece in _slices(text, 0, len(text))), len(text))


def _lines(text: bytes, *, strips: bool) -> bytes:
    """The lines that are not empty, with one line feed between; without the blanks at their edges if it `strips`."""
    text = _stripped(text, BLANKS if strips else LINE_BREAKS)
    return join_pieces(_line_slices(text, strips=strips), len(text))


def _line_slices(text: bytes, *, strips: bool) -> Iterator[memoryview]:
    at = 0
    while at < len(text):
        # A slice ends before what is no blank, so that none cuts what stands between two lines.
        end = _begin_without(text, BLANKS, min(at + STEP_BYTES, len(text)), len(text))
        piece = join_pieces((part.translate(TO_LINE_BREAKS) for part in _slices(text, at, end)), end - at)
        letters = np.frombuffer(piece, np.uint8)
        again = letters == _BREAK
        again[1:] &= again[:-1].copy()
        again[0] = False
        letters = letters[~again]
        remaining = _without_edges(letters) if strips else letters
        yield from (remaining[start : start + STEP_BYTES].data for start in range(0, len(remaining), STEP_BYTES))
        at = end


def _without_edges(letters: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The letters without the blanks that only other blanks divide from a line break."""
    breaks = letters == _BREAK
    if not breaks.any():
        return letters
    blank = breaks | (letters == _BLANK)
    begins = np.flatnonzero(np.diff(blank, prepend=~blank[:1]))
    have_break = np.logical_or.reduceat(breaks, begins)
    at_edge = np.repeat(have_break, np.diff(begins, append=len(letters)))
    remaining: NDArray[np.uint8] = letters[breaks | ~at_edge]
    return remaining


def _are_wrapped(text: bytes, between: bytes) -> bool:
    """Whether these are lines of one text: all as long as the first, in whole groups of four, the last no longer."""
    length = text.find(between)
    if length < 0:
        length = len(text)
    if length == 0 or length % 4:
        return False
    count, last = divmod(len(text), length + 1)
    # A text that ends in a full line has no sign behind it.
    characters = np.frombuffer(text, np.uint8)[length :: length + 1]
    if last % 4 == 1 or last == 0 or len(characters) != count or (characters != ord(between)).any():
        return False
    return _count(text, between) == count


def _count(text: bytes, character: bytes) -> int:
    """How often a sign occurs; `bytes.count` takes ten times as long where that is often."""
    letters = np.frombuffer(text, np.uint8)
    slices = range(0, len(letters), STEP_BYTES)
    return sum(int(np.count_nonzero(letters[at : at + STEP_BYTES] == ord(character))) for at in slices)


def _error_of(text: bytes, letters: int) -> BadBase64:
    uri = DATA_URI.match(text)
    at = _find_bad_character(text, uri.end() if uri else 0)
    if at is not None:
        return _bad_character_error(chr(text[at]), at)
    if letters % 4 == 1:
        return BadBase64(f"The base64 text has {letters} letters, which no file gives; it seems cut off.", REMEDY)
    return BadBase64("The base64 text has percent escapes for what is not base64.", REMEDY)


def _find_bad_character(text: bytes, start: int) -> int | None:
    """Where the first sign stands that base64 has not, or padding with something behind it."""
    content_end = _end_without(text, BLANKS + b"=")
    padding = text.find(b"=", start, content_end)
    bad = _begin_without(text, ALLOWED, start, padding if padding >= 0 else content_end)
    stray = find_stray(text, start, bad)
    if stray is not None:
        return stray
    return bad if bad < content_end else None


def _bad_character_error(letter: str, position: int) -> BadBase64:
    return BadBase64(f"The base64 text has {letter!r} at position {position}, counted from 0.", REMEDY)
