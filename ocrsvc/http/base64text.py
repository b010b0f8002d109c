"""Decodes base64 text, and repairs the damage that clients and form decoding commonly do to it.

Standard base64 is decoded at once. Only text that this refuses is repaired, in linear time: a data URI in front, no
padding, the URL-safe alphabet, white space, percent escapes, and "+" that form decoding has turned into a blank. A
blank stands for "+" where the text has no sign of the alphabet that a form could lose; else it is white space.
"""

from __future__ import annotations

import re
import string
from typing import Final

import pybase64

from ocrsvc.errors import BadBase64, NothingSent
from ocrsvc.http.percent_encoding import unquote
from ocrsvc.serving.memory_budget import Share, unlimited

# A media type and its parameters stand before the comma; without a bound the whole text would be searched.
_DATA_URI: Final = re.compile(rb"data:([^,]{0,1024}),", re.IGNORECASE)
_WHITE_SPACE: Final = string.whitespace.encode()
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_ALLOWED: Final = (string.ascii_letters + string.digits + "+/-_%").encode() + _WHITE_SPACE
_REMEDY: Final = "Send the file's bytes in base64 (RFC 4648), with or without a data URI in front, and nothing else."
# The text as bytes, without its escapes, and twice while it is repaired.
_COPIES_TO_REPAIR: Final = 4


def decode_base64(text: str | bytes | memoryview, share: Share | None = None) -> bytes:
    """The bytes that `text` stands for, which the request's memory account keeps.

    Raises NothingSent; BadBase64, which names the position, for text that cannot be repaired; and as `Share.take`.
    """
    share = share or unlimited()
    share.take(len(text) * 3 // 4)
    try:
        # It lets other threads run meanwhile, however long the text is.
        data = pybase64.b64decode(text, validate=True)
    except ValueError:
        with share.holding(len(text) * _COPIES_TO_REPAIR):
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
    content = _without_data_uri(unquote(text.strip()))
    if b" " in content and not any(sign in content for sign in (b"+", b"-", b"_")):
        content = content.replace(b" ", b"+")
    content = content.translate(_STANDARD, _WHITE_SPACE).rstrip(b"=")
    try:
        return pybase64.b64decode(content + b"=" * (-len(content) % 4), validate=True)
    except ValueError:
        raise _error_of(text, len(content)) from None


def _without_data_uri(text: bytes) -> bytes:
    """Raises BadBase64 for a data URI whose content is not base64."""
    match = _DATA_URI.match(text)
    if match is None:
        return text
    if not match[1].rstrip().lower().endswith(b";base64"):
        raise BadBase64(
            "The data URI does not say that its content is base64.", 'Begin it with "data:image/png;base64,".'
        )
    return text[match.end() :].strip()


def _error_of(text: bytes, count: int) -> BadBase64:
    """The text with its escapes, and the number of its characters without them."""
    uri = _DATA_URI.match(text)
    begin = uri.end() if uri else 0
    end = len(text.rstrip(_WHITE_SPACE + b"="))
    if strange := text[begin:end].translate(None, _ALLOWED):
        at = text.index(strange[:1], begin)
        return _bad_character(chr(text[at]), at)
    if count % 4 == 1:
        return BadBase64(f"The base64 text has {count} letters, which no file gives; it seems cut off.", _REMEDY)
    return BadBase64("The base64 text has percent escapes for what is not base64.", _REMEDY)


def _bad_character(character: str, position: int) -> BadBase64:
    return BadBase64(f"The base64 text has {character!r} at position {position}, counted from 0.", _REMEDY)
