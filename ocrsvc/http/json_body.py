"""JSON request bodies, parsed with bounds on time, size and memory."""

from __future__ import annotations

import re
from typing import Final

import orjson

from ocrsvc.errors import BodyTooLarge, CallerError
from ocrsvc.serving.memory_budget import Share, unlimited

# Each of these bytes can mean one more Python object; a request needs a few per image and option.
_BOUNDS: Final = (
    (b",", "commas", 50_000),
    (b'"', "quotes", 50_000),
    (b"[", "lists", 10_000),
    (b"{", "objects", 10_000),
)

BOM: Final = b"\xef\xbb\xbf"
# Characters above U+FFFF, as UTF-8 or as a pair of escapes.
_WIDEST: Final = re.compile(rb"[\xf0-\xf4]|\\u[dD][89abAB]")


def parse_json(body: bytes, share: Share | None = None) -> dict[str, object]:
    """Parse a JSON object. Raises as `parse_any_json`, and CallerError for any other value."""
    value = parse_any_json(body, share)
    if not isinstance(value, dict):
        raise CallerError("The JSON body is not an object.", 'Send an object such as {"image": "<base64>"}.')
    return value


def parse_any_json(body: bytes, share: Share | None = None) -> object:
    """Parse any JSON value in UTF-8, with or without a byte order mark, in linear time.

    The most memory that its strings may take stays counted in `share`. Raises CallerError for malformed JSON,
    BodyTooLarge for too many values, and as `Share.take`.
    """
    for character, name, limit in _BOUNDS:
        if _has_more(body, character, limit):
            raise BodyTooLarge(f"The JSON body has more than {limit} {name}.", "Send several requests.")
    # Bytes per character of Python's strings, which the widest character decides. Most bodies have no backslash, and
    # searching for one byte is much faster than for two.
    is_narrow = body.isascii() and (b"\\" not in body or b"\\u" not in body)
    share = share or unlimited()
    share.take(len(body) * (1 if is_narrow else 4 if _WIDEST.search(body) else 2))
    # The parser copies its input.
    with share.holding(len(body)):
        try:
            return orjson.loads(body.removeprefix(BOM))
        except orjson.JSONDecodeError as error:
            # Without the cause, which holds the whole text.
            raise CallerError(
                f"The body is not JSON: {error.msg} at character {error.pos}.",
                'Send an object such as {"image": "<base64>"}.',
            ) from None


def _has_more(body: bytes, character: bytes, limit: int) -> bool:
    """Whether a byte occurs more than `limit` times. `find` is ten times faster than `count` where it is rare."""
    at = -1
    for _ in range(limit + 1):
        at = body.find(character, at + 1)
        if at < 0:
            return False
    return True
