"""Decodes base64 text, repairing the damage that clients and form decoding commonly do to it.

Standard base64 is decoded at once. Only what that refuses is repaired: a data URI in front, no padding, the URL-safe
alphabet, white space, percent escapes, and "+" that form decoding has turned into a blank. A blank stands for "+" where
the text has none of its own, and is whole groups of four then; else it is white space. Whatever is still wrong is an
error that says where. All of it takes linear time.
"""

from __future__ import annotations

import re
import string
from contextlib import AbstractContextManager
from typing import Final, Protocol

import pybase64

from ocrsvc.errors import BadBase64, NothingSent
from ocrsvc.http.percent_encoding import unquote

# What comes before the comma is a media type and its parameters; without a bound the whole text would be searched.
_DATA_URI: Final = re.compile(rb"data:([^,]{0,1024}),", re.IGNORECASE)
_WHITE_SPACE: Final = string.whitespace.encode()
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_ALLOWED: Final = (string.ascii_letters + string.digits + "+/-_%").encode() + _WHITE_SPACE
_REMEDY: Final = "Send the file's bytes in base64 (RFC 4648), with or without a data URI in front, and nothing else."
# The text as bytes, without its escapes, and twice while it is put right.
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
    """The bytes that `text` stands for; `memory`, of the request, keeps what they take.

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
            data = _decode_repaired(_ascii(text))
        else:
            with memory.holding(len(text) * _COPIES_TO_REPAIR):
                data = _decode_repaired(_ascii(text))
    if not data:
        raise NothingSent("The base64 text is empty.", _REMEDY)
    return data


def _ascii(text: str | bytes | memoryview) -> bytes:
    try:
        return text.encode("ascii") if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError as cause:
        raise _bad_character(cause.object[cause.start], cause.start) from cause


def _decode_repaired(text: bytes) -> bytes:
    content = _content_of(unquote(text.strip()))
    if b" " in content and _are_pluses(content):
        content = content.replace(b" ", b"+")
    letters = content.translate(_STANDARD, _WHITE_SPACE)
    end = len(letters.rstrip(b"="))
    try:
        return pybase64.b64decode(letters[:end] + b"=" * (-end % 4), validate=True)
    except ValueError:
        raise _error_of(text, end) from None


def _content_of(text: bytes) -> bytes:
    """The text without the data URI in front of it. Raises BadBase64."""
    match = _DATA_URI.match(text)
    if match is None:
        return text
    if not match[1].rstrip().lower().endswith(b";base64"):
        raise BadBase64(
            "The data URI does not say that its content is base64.", 'Begin it with "data:image/png;base64,".'
        )
    return text[match.end() :].strip()


def _are_pluses(content: bytes) -> bool:
    """Whether the blanks in a text were "+" before a form was decoded, which leaves none."""
    if any(sign in content for sign in (b"+", b"-", b"_")):
        return False
    size = len(content.translate(None, b"\t\r\n\f\v"))
    return size % 4 == 0 if content.endswith(b"=") else size % 4 != 1


def _error_of(text: bytes, letters: int) -> BadBase64:
    uri = _DATA_URI.match(text)
    begin = uri.end() if uri else 0
    end = len(text.rstrip(_WHITE_SPACE + b"="))
    if strange := text[begin:end].translate(None, _ALLOWED):
        at = text.index(strange[:1], begin)
        return _bad_character(chr(text[at]), at)
    if letters % 4 == 1:
        return BadBase64(f"The base64 text has {letters} letters, which no file gives; it seems cut off.", _REMEDY)
    return BadBase64("The base64 text has percent escapes for what is not base64.", _REMEDY)


def _bad_character(letter: str, position: int) -> BadBase64:
    return BadBase64(f"The base64 text has {letter!r} at position {position}, counted from 0.", _REMEDY)
