"""Hostile texts by name, made in about the requested size: fields, JSON values, forms, multipart bodies, headers."""

import gzip
import zlib
from collections.abc import Callable, Mapping
from typing import Final

from support import data_of, filled

Make = Callable[[int], bytes]
MakeBody = Callable[[int], tuple[str, bytes]]
"""Makes a body of about a size; returns its content type and its bytes."""

BOUNDARY: Final = "hostile"
_DISPOSITION: Final = b'Content-Disposition: form-data; name="image"'
_ROWS: Final = data_of("hostile_texts")


def repeated(piece: bytes, size: int) -> bytes:
    return piece * max(1, size // len(piece))


def _flood(piece: bytes, before: bytes = b"", after: bytes = b"") -> Make:
    return lambda size: before + repeated(piece, size) + after


def _floods(rows: Mapping[str, list[str]]) -> dict[str, Make]:
    return {name: _flood(*(text.encode() for text in row)) for name, row in rows.items()}


TEXTS: Final[Mapping[str, Make]] = _floods(_ROWS["texts"])

JSON_VALUES: Final[Mapping[str, Make]] = _floods(_ROWS["json_values"]) | {
    "deep_arrays": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "deep_objects": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "keys": lambda size: b"{" + b",".join(b'"%d":1' % number for number in range(size // 12)) + b"}",
    "invalid_utf8": _flood(b"\xff", b'"', b'"'),
}
FORMS: Final[Mapping[str, Make]] = _floods(_ROWS["forms"]) | {
    "fields": lambda size: b"&".join(b"f%d=1" % number for number in range(size // 11))
}
QUERIES: Final[Mapping[str, Make]] = _floods(_ROWS["queries"])
PARSED_TEXTS: Final[Mapping[str, Make]] = _floods(_ROWS["parsed_texts"])
"""Texts that only the tests of single parsers use."""
_MORE_VALUES: Final[Mapping[str, dict[str, Make]]] = {
    "X-Request-Id": {"bytes": _flood(b"\xff")},
    "X-Request-Timeout": {"large_exponent": lambda _: b"1e999999999", "not_a_number": lambda _: b"nan"},
    "Inference-Header-Content-Length": {"negative": lambda _: b"-1"},
}
HEADER_VALUES: Final[Mapping[str, Mapping[str, Make]]] = {
    name: _floods(rows) | _MORE_VALUES.get(name, {}) for name, rows in _ROWS["headers"].items()
}


def _multipart(body: bytes, boundary: str = BOUNDARY) -> tuple[str, bytes]:
    return f"multipart/form-data; boundary={boundary}", body


def _line(boundary: str = BOUNDARY) -> bytes:
    return b"--" + boundary.encode() + b"\r\n"


def _last(boundary: str = BOUNDARY) -> bytes:
    return b"\r\n--" + boundary.encode() + b"--\r\n"


def _flooded(piece: str, before: str, after: str = "", boundary: str = BOUNDARY) -> MakeBody:
    """A multipart body with one part: `before`, then `piece` repeated up to the size, then `after`."""
    begin, end = _line(boundary) + before.encode(), after.encode() + _last(boundary)
    return lambda size: _multipart(begin + repeated(piece.encode(), size) + end, boundary)


def _of_parts(boundary: str) -> MakeBody:
    part = _line(boundary) + _DISPOSITION + b"\r\n\r\nA\r\n"
    return lambda size: _multipart(repeated(part, size) + _last(boundary)[2:], boundary)


MULTIPARTS: Final[Mapping[str, MakeBody]] = {
    "parts": _of_parts(BOUNDARY),
    "no_end": lambda size: _multipart(_line() + _DISPOSITION + b"\r\n\r\n" + b"A" * size),
    "long_boundary": _of_parts("b" * 7000),
    "no_boundary": lambda size: ("multipart/form-data", repeated(_line(), size)),
    **{name: _flooded(*filled(row, HEAD=_DISPOSITION.decode())) for name, row in _ROWS["multiparts"].items()},
}

# By name, the Content-Encoding and the function that compresses a body.
COMPRESSIONS: Final[Mapping[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "gzip twice": ("gzip, gzip", lambda body: gzip.compress(gzip.compress(body))),
    "gzip cut off": ("gzip", lambda body: gzip.compress(body)[:-9]),
    "many empty gzips": ("gzip", lambda body: gzip.compress(b"") * (len(body) // 1000)),
}
