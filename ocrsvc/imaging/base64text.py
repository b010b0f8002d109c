"""Which bytes does a base64 text stand for, also when the road to us has bruised it?

Standard base64 goes straight through. Only what that refuses is looked at again, for the bruises that callers report:
a data URI in front, no padding, the URL-safe alphabet, line breaks, percent escapes, and "+" that form decoding has
turned into a blank. Whatever is still wrong then is an error that says where.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

import pybase64

from ocrsvc.errors import BadBase64, NothingSent

DATA_URI = re.compile(rb"data:([^,]*),", re.IGNORECASE)
BLANKS = b" \t\r\n\f\v"
TO_LINE_BREAKS = bytes.maketrans(b"\t\f\v", b"\n\n\n")
STANDARD = bytes.maketrans(b"-_", b"+/")
STRANGE = re.compile(rb"[^A-Za-z0-9+/=_\s%-]|%(?![0-9A-Fa-f]{2})|=(?=[=\s]*[^=\s])")
SENT_WRONG = "Send the file's bytes in base64 (RFC 4648), with or without a data URI in front, and nothing else."


def decode_base64(text: str | bytes | memoryview) -> bytes:
    """The bytes that `text` stands for.

    Raises:
        NothingSent: The text is empty, or a data URI without content.
        BadBase64: Something in it is not base64, even after the repairs; the message says what and where.
    """
    try:
        data = pybase64.b64decode(text, validate=True)
    except ValueError:
        data = _decode_bruised(_ascii(text))
    if not data:
        raise NothingSent("The base64 text is empty.", SENT_WRONG)
    return data


def _decode_bruised(text: bytes) -> bytes:
    plain = unquote_to_bytes(text.strip()) if b"%" in text else text.strip()
    body = _without_data_uri(plain)
    joined = _without_blanks(body).translate(STANDARD).rstrip(b"=")
    if len(joined) % 4 != 1:
        try:
            return pybase64.b64decode(joined + b"=" * (-len(joined) % 4), validate=True)
        except ValueError:
            pass
    raise _complaint(text, len(joined))


def _ascii(text: str | bytes | memoryview) -> bytes:
    if not isinstance(text, str):
        return bytes(text)
    try:
        return text.encode("ascii")
    except UnicodeEncodeError as cause:
        raise _strange(text[cause.start], cause.start) from cause


def _without_data_uri(text: bytes) -> bytes:
    match = DATA_URI.match(text)
    if match is None:
        return text
    if not match[1].rstrip().lower().endswith(b";base64"):
        raise BadBase64(
            "The data URI does not say that its content is base64.", 'Begin it with "data:image/png;base64,".'
        )
    return text[match.end() :].strip()


def _without_blanks(text: bytes) -> bytes:
    """Line breaks taken out and the other blanks turned back into "+".

    A blank is a line break too where it stands at the edge of a line, or wherever the text is wrapped by blanks alone,
    unless only counting it as a letter makes the lines equally long, or the text whole groups of four.
    """
    if b" " not in text:
        return text.translate(None, BLANKS)
    lines = [line for line in text.translate(TO_LINE_BREAKS).splitlines() if line]
    stripped = [line.strip() for line in lines]
    if not _are_wrapped(stripped) and _are_wrapped(lines):
        stripped = lines
    joined = b"".join(stripped)
    pieces = joined.split(b" ")
    whole_with_pluses = len(joined) % 4 == 0 and len(pieces[-1]) % 4 != 0
    return b"".join(pieces) if _are_wrapped(pieces) and not whole_with_pluses else joined.replace(b" ", b"+")


def _are_wrapped(pieces: Sequence[bytes]) -> bool:
    """Are these the lines of one text: all as long as the first, in whole groups of four, the last no longer?"""
    length = len(pieces[0]) if pieces else 0
    if length == 0 or length % 4 or not 0 < len(pieces[-1]) <= length:
        return False
    return len(pieces[-1]) % 4 != 1 and all(len(piece) == length for piece in pieces[:-1])


def _complaint(text: bytes, letters: int) -> BadBase64:
    uri = DATA_URI.match(text)
    found = STRANGE.search(text, uri.end() if uri else 0)
    if found:
        return _strange(chr(found[0][0]), found.start())
    if letters % 4 == 1:
        return BadBase64(f"The base64 text has {letters} letters, which no file gives; it seems cut off.", SENT_WRONG)
    return BadBase64("The base64 text has percent escapes for what is not base64.", SENT_WRONG)


def _strange(letter: str, position: int) -> BadBase64:
    return BadBase64(f"The base64 text has {letter!r} at position {position}, counted from 0.", SENT_WRONG)
