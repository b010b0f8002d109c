"""The JSON object in a request body: parsed within bounds in time, size and memory, whatever the client sends.

Long texts, as images in base64 are, are cut out and decoded by themselves in slices: so no call works on more than a
few megabytes, and one letter beyond ASCII does not make each letter of an image four bytes wide.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import orjson

from ocrsvc.errors import BodyTooLarge, CallerError
from ocrsvc.http.percent_encoding import WHOLE_BYTES
from ocrsvc.serving.memory_budget import Share

# The values of a JSON body, between which they stand, cost as much; it needs a few for each image and option.
MAX_JSON_COMMAS: Final = 10_000
MAX_JSON_BRACKETS: Final = 10_000
# Each is checked by itself. Besides those around names and texts, JSON within JSON has some.
MAX_JSON_QUOTES: Final = 50_000
MAX_OUTLINE_BYTES: Final = 4 << 20
"""Of what is left without the long texts."""

BOM: Final = b"\xef\xbb\xbf"
_LONG: Final = 1024
_STEP_BYTES: Final = 1 << 20
_NAME_END: Final = re.compile(rb"[ \t\r\n]*:")
# No client can guess it, so that no text of its own is taken for one that was cut out.
_PLACEHOLDER: Final = secrets.token_hex(16)
_ASCII_LETTERS: Final = 128
# The first escape of two that make one letter.
_FIRST_HALF: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
# Bytes of a letter in memory, at worst.
_WIDEST: Final = 4


def parse_json(body: bytes, share: Share | None = None) -> dict[str, object]:
    """The JSON object in a body. Raises as `parse_any_json`, and CallerError for another value."""
    value = parse_any_json(body, share)
    if not isinstance(value, dict):
        raise CallerError("The JSON body is not an object.", 'Send an object such as {"image": "<base64>"}.')
    return value


def parse_any_json(body: bytes, share: Share | None = None) -> object:
    """The value in a body of JSON.

    Args:
        body: In UTF-8, with or without a byte order mark.
        share: The request's account of memory; it keeps what the texts take.

    Raises:
        CallerError: It is none.
        BodyTooLarge: It would take long to take apart, or more memory than there may ever be.
        QueueFull: Other requests hold the memory.
    """
    return _Parsing(body, share).value()


class _Parsing:
    """One body, on its way to a value."""

    def __init__(self, body: bytes, share: Share | None) -> None:
        self._body, self._share = body, share
        # Begin and end of each text that is cut out, its quotes included, and the text.
        self._cuts: list[tuple[int, int, str]] = []

    def value(self) -> object:
        outline = self._outline()
        _check_outline(outline)
        # Blanks become nothing.
        self._take(len(outline.translate(None, b" \t\r\n")) * (1 if outline.isascii() else _WIDEST))
        try:
            value = orjson.loads(outline)
        except orjson.JSONDecodeError as error:
            raise _no_json_at(error, self._place(_byte_of(error))) from error
        whole = [value]
        self._put_back(whole)
        return whole[0]

    def _outline(self) -> bytes:
        """The body with a short text in place of each long one."""
        body, pieces = self._body, list[bytes]()
        kept = _begin_of(body)
        for begin, end in _quoted(body, kept):
            if end - begin > _LONG and not _NAME_END.match(body, end):
                pieces += (body[kept:begin], _placeholder(len(self._cuts)))
                self._cuts.append((begin, end, self._text(begin, end)))
                kept = end
        if len(body) - kept > MAX_OUTLINE_BYTES:
            raise _outline_too_large()
        return b"".join([*pieces, body[kept:]])

    def _text(self, begin: int, end: int) -> str:
        """The text between two quotes."""
        if end - begin <= WHOLE_BYTES and _is_plain(self._body, begin, end):
            self._take(end - begin)
            return self._plain(begin + 1, end - 1)
        if end - begin > _STEP_BYTES:
            return self._long_text(begin + 1, end - 1)
        self._take(most := _WIDEST * (end - begin))
        text = self._loaded(self._body[begin:end], begin)
        self._give_back(most - len(text) * (1 if text.isascii() else _WIDEST))
        return text

    def _long_text(self, begin: int, end: int) -> str:
        """The text in a part of the body, put together from slices."""
        self._take(end - begin)
        text = ""
        for place in _slices(self._body, begin, end):
            # Python lets a text grow where it is, if a local variable alone holds it: no call copies it whole.
            text += self._slice(*place)
        self._give_back(end - begin - len(text))
        return text

    def _slice(self, begin: int, end: int) -> str:
        if _is_plain(self._body, begin, end):
            return self._plain(begin, end)
        piece = self._body[begin:end]
        text = self._loaded(b'"%b"' % piece, begin - 1) if piece.isascii() else None
        if text is None or not text.isascii():
            raise CallerError(
                f"A text of more than {_STEP_BYTES} bytes in the JSON body has letters that are not ASCII.",
                "Send an image in base64, which has none.",
            )
        return text

    def _plain(self, begin: int, end: int) -> str:
        return str(memoryview(self._body)[begin:end], "ascii")

    def _loaded(self, quoted: bytes, begin: int) -> str:
        try:
            text: str = orjson.loads(quoted)
        except orjson.JSONDecodeError as error:
            raise _no_json_at(error, begin + _byte_of(error)) from error
        return text

    def _take(self, size_bytes: int) -> None:
        if self._share is not None:
            self._share.take(size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        if self._share is not None:
            self._share.give_back(size_bytes)

    def _place(self, pos: int) -> int:
        """Where in the body a place in the outline is."""
        pos += _begin_of(self._body)
        for number, (begin, end, _) in enumerate(self._cuts):
            if begin >= pos:
                break
            pos += end - begin - len(_placeholder(number))
        return pos

    def _put_back(self, whole: list[Any]) -> None:
        """The texts that were cut out, in the place of their placeholders."""
        places: list[Any] = [whole] if self._cuts else []
        for place in places:
            for key, item in place.items() if isinstance(place, dict) else enumerate(place):
                if isinstance(item, str) and item.startswith(_PLACEHOLDER):
                    place[key] = self._cuts[int(item[len(_PLACEHOLDER) :])][2]
                elif isinstance(item, dict | list):
                    places.append(item)


def _is_plain(body: bytes, begin: int, end: int) -> bool:
    """Whether a text stands there as it is, in ASCII and without an escape, as an image in base64 mostly does."""
    if body.find(b"\\", begin, end) >= 0:
        return False
    letters = np.frombuffer(body, np.uint8)[begin:end]
    pieces = (letters[at : at + _STEP_BYTES] for at in range(0, len(letters), _STEP_BYTES))
    return all(piece.min() >= ord(" ") and piece.max() < _ASCII_LETTERS for piece in pieces)


def _begin_of(body: bytes) -> int:
    return len(BOM) if body.startswith(BOM) else 0


def _quoted(body: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Where each text and name begins, with its quote, and ends. Raises CallerError for one that does not end."""
    left = MAX_JSON_QUOTES
    while (begin := body.find(b'"', at)) >= 0:
        end = begin
        while (end := body.find(b'"', end + 1)) >= 0 and _is_escaped(body, begin + 1, end):
            left = _counted(left - 1)
        if end < 0:
            raise _no_json(f"the text that begins at byte {begin} does not end")
        left = _counted(left - 2)
        at = end + 1
        yield begin, at


def _counted(left: int) -> int:
    if left < 0:
        raise BodyTooLarge(f"The JSON body has more than {MAX_JSON_QUOTES} quotes.", "Send several requests.")
    return left


def _is_escaped(body: bytes, begin: int, at: int) -> bool:
    """Whether the backslashes before a character, of those from `begin` on, escape it."""
    width, run = 16, at
    while run > begin and body[run - 1] == ord("\\"):
        low = max(begin, run - width)
        run = low + len(body[low:run].rstrip(b"\\"))
        if run > low:
            break
        width = min(8 * width, _STEP_BYTES)
    return (at - run) % 2 == 1


def _slices(body: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the slices of a text begin and end, none of which cuts an escape or a pair of them."""
    while begin < end:
        cut = min(end, begin + _STEP_BYTES)
        if cut < end:
            # A backslash further away belongs to an escape that is over.
            last = body.rfind(b"\\", cut - 5, cut)
            if last >= 0:
                cut = last if not _is_escaped(body, begin, last) else last + 1
            if _FIRST_HALF.fullmatch(body, cut - 6, cut) and not _is_escaped(body, begin, cut - 6):
                cut -= 6
        yield begin, cut
        begin = cut


def _placeholder(number: int) -> bytes:
    return b'"%b%d"' % (_PLACEHOLDER.encode(), number)


def _check_outline(outline: bytes) -> None:
    """Raises BodyTooLarge for what would become too many values."""
    if len(outline) > MAX_OUTLINE_BYTES:
        raise _outline_too_large()
    if outline.count(b",") > MAX_JSON_COMMAS:
        raise BodyTooLarge(f"The JSON body has more than {MAX_JSON_COMMAS} commas.", "Send several requests.")
    if outline.count(b"[") + outline.count(b"{") > MAX_JSON_BRACKETS:
        raise BodyTooLarge(
            f"The JSON body has more than {MAX_JSON_BRACKETS} lists and objects.", "Send several requests."
        )


def _outline_too_large() -> BodyTooLarge:
    return BodyTooLarge(
        f"The JSON body has more than {MAX_OUTLINE_BYTES} bytes besides its long texts.", "Send several requests."
    )


def _byte_of(error: orjson.JSONDecodeError) -> int:
    """The byte where the error is, which counts in characters."""
    return len(error.doc[: error.pos].encode("utf-8", "replace"))


def _no_json_at(error: orjson.JSONDecodeError, place: int) -> CallerError:
    return _no_json(f"{error.msg} at byte {place}")


def _no_json(why: str) -> CallerError:
    return CallerError(f"The body is not JSON: {why}.", 'Send an object such as {"image": "<base64>"}.')
