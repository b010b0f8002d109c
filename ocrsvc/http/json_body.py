"""The JSON object in a request body: parsed within bounds in time, size and memory, whatever the client sends."""

from __future__ import annotations

import re
from typing import Final

import orjson

from ocrsvc.errors import BodyTooLarge, CallerError
from ocrsvc.serving.memory_budget import Share, unlimited

# Each of these costs a value; a request needs a few for each image and option.
_BOUNDS: Final = (
    (b",", "commas", 50_000),
    (b'"', "quotes", 50_000),
    (b"[", "lists", 10_000),
    (b"{", "objects", 10_000),
)

BOM: Final = b"\xef\xbb\xbf"
_ESCAPES: Final = b"\\u"
# What is beyond 16 bits, as it is or as two escapes.
_WIDEST: Final = re.compile(rb"[\xf0-\xf4]|\\u[dD][89abAB]")


def parse_json(body: bytes, share: Share | None = None) -> dict[str, object]:
    """The JSON object in a body. Raises as `parse_any_json`, and CallerError for another value."""
    value = parse_any_json(body, share)
    if not isinstance(value, dict):
        raise CallerError("The JSON body is not an object.", 'Send an object such as {"image": "<base64>"}.')
    return value


def parse_any_json(body: bytes, share: Share | None = None) -> object:
    """The value in a body of JSON in UTF-8, with or without a byte order mark, in linear time.

    The request's memory account keeps the most that its texts may take. Raises CallerError for a malformed body,
    BodyTooLarge for too many values, and as `Share.take`.
    """
    for sign, name, most in _BOUNDS:
        if _has_more(body, sign, most):
            raise BodyTooLarge(f"The JSON body has more than {most} {name}.", "Send several requests.")
    share = share or unlimited()
    share.take(len(body) * _width(body))
    # The parser copies what it reads.
    with share.holding(len(body)):
        try:
            return orjson.loads(body.removeprefix(BOM))
        except orjson.JSONDecodeError as error:
            # Not its cause: that has the whole text.
            raise CallerError(
                f"The body is not JSON: {error.msg} at character {error.pos}.",
                'Send an object such as {"image": "<base64>"}.',
            ) from None


def _has_more(body: bytes, sign: bytes, most: int) -> bool:
    """Whether a byte occurs more often; counting a rare one, as in base64, takes ten times as long as finding it."""
    at = -1
    for _ in range(most + 1):
        at = body.find(sign, at + 1)
        if at < 0:
            return False
    return True


def _width(body: bytes) -> int:
    """Bytes of a character in memory: one that is not ASCII makes all of its text as wide."""
    # Most bodies have no backslash, and searching for one byte is far cheaper than searching for two.
    if body.isascii() and (b"\\" not in body or _ESCAPES not in body):
        return 1
    return 4 if _WIDEST.search(body) else 2
