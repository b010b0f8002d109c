"""Hostile texts by name: what stands in fields, JSON values, forms, multipart bodies and headers.

Every function takes a size in bytes and returns about as many. Nothing here is random, and nothing knows a server.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

Make = Callable[[int], bytes]
MakeBody = Callable[[int], tuple[str, bytes]]
"""Content type and body."""

BOUNDARY: Final = "hostile"
_DISPOSITION: Final = b'Content-Disposition: form-data; name="image"'


def repeated(piece: bytes, size: int) -> bytes:
    """The piece, again and again."""
    return piece * max(1, size // len(piece))


def _between(before: bytes, piece: bytes, after: bytes, size: int) -> bytes:
    return before + repeated(piece, size) + after


def _flood(piece: bytes, before: bytes = b"", after: bytes = b"") -> Make:
    return partial(_between, before, piece, after)


# Contents of a text field that should hold base64. None needs escapes in JSON but where the bytes themselves do.
TEXTS: Final[Mapping[str, Make]] = {
    "letter_equals": _flood(b"=", b"A"),
    "equals_letter": _flood(b"=", b"A", b"A"),
    "equals": _flood(b"="),
    "equals_blanks": _flood(b"= ", b"A"),
    "blanks": _flood(b" "),
    "blanks_letter": _flood(b" ", b"A", b"A"),
    "newlines": _flood(b"\n", b"A", b"A"),
    "line_a_letter": _flood(b"A\n"),
    "lines": _flood(b"A" * 76 + b"\r\n"),
    "words": _flood(b"AAAA "),
    "uneven_words": _flood(b"AAAA AAA "),
    "percents": _flood(b"%"),
    "percent_pluses": _flood(b"%2B"),
    "percent_percents": _flood(b"%25"),
    "percent_nonsense": _flood(b"%zz"),
    "pluses": _flood(b"+"),
    "url_safe": _flood(b"-_"),
    "stranger_at_the_end": _flood(b"A", b"", b"!"),
    "backslashes": _flood(b"\\"),
    "quotes": _flood(b'"'),
    "nulls": _flood(b"\0"),
    "accents": _flood("é".encode()),
    "data_semicolons": _flood(b";", b"data:"),
    "data_uris": _flood(b"data:,"),
    "data_uri_base64s": _flood(b";base64", b"data:image/png", b",AAAA"),
    "data_uri_no_comma": _flood(b"A", b"data:image/png;base64"),
    "address": _flood(b"/a", b"http://127.0.0.1"),
}

# Values in the place of one JSON value, as they stand in the body.
JSON_VALUES: Final[Mapping[str, Make]] = {
    "arrays": _flood(b"[],", b"[", b"[]]"),
    "objects": _flood(b"{},", b"[", b"{}]"),
    "numbers": _flood(b"0,", b"[", b"0]"),
    "nulls": _flood(b"null,", b"[", b"null]"),
    "empty_texts": _flood(b'"",', b"[", b'""]'),
    "one_letter_texts": _flood(b'"A",', b"[", b'"A"]'),
    "deep_arrays": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "deep_objects": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "open_arrays": _flood(b"["),
    "open_text": _flood(b"A", b'"'),
    "keys": lambda size: b"{" + b",".join(b'"%d":1' % number for number in range(size // 12)) + b"}",
    "equal_keys": _flood(b'"a":1,', b"{", b'"a":1}'),
    "long_key": _flood(b"a", b'{"', b'":1}'),
    "long_number": _flood(b"9"),
    "long_fraction": _flood(b"9", b"0."),
    "large_exponents": _flood(b"1e999999,", b"[", b"1]"),
    "escapes": _flood(b"\\u0041", b'"', b'"'),
    "surrogate_pairs": _flood(b"\\ud83d\\ude00", b'"', b'"'),
    "lone_surrogates": _flood(b"\\ud800", b'"', b'"'),
    "newline_escapes": _flood(b"\\n", b'"', b'"'),
    "one_emoji": _flood(b"A", b'"', "😀".encode() + b'"'),
    "emojis": _flood("😀".encode(), b'"', b'"'),
    "invalid_utf8": _flood(b"\xff", b'"', b'"'),
    "blanks": _flood(b" ", b"", b"1"),
    "commas": _flood(b","),
}

# Whole bodies of urlencoded forms.
FORMS: Final[Mapping[str, Make]] = {
    "ampersands": _flood(b"&", b"image=A"),
    "equals": _flood(b"=", b"image"),
    "semicolons": _flood(b";", b"image=A"),
    "empty_fields": _flood(b"a=&"),
    "fields": lambda size: b"&".join(b"f%d=1" % number for number in range(size // 11)),
    "percents": _flood(b"%", b"image="),
    "escaped_name": _flood(b"%41", b"", b"=A"),
    "escaped_pluses": _flood(b"%2B", b"image="),
    "escaped_nulls": _flood(b"%00", b"image="),
    "pluses": _flood(b"+", b"image="),
}


def _multipart(body: bytes, boundary: str = BOUNDARY) -> tuple[str, bytes]:
    return f"multipart/form-data; boundary={boundary}", body


def _line(boundary: str = BOUNDARY) -> bytes:
    return b"--" + boundary.encode() + b"\r\n"


def _last(boundary: str = BOUNDARY) -> bytes:
    return b"\r\n--" + boundary.encode() + b"--\r\n"


def _flooded(
    piece: bytes, before: bytes = _DISPOSITION + b"\r\n\r\n", after: bytes = b"", boundary: str = BOUNDARY
) -> MakeBody:
    """A part in which a piece stands again and again, behind one text and before another."""
    begin = _line(boundary) + before
    return lambda size: _multipart(begin + repeated(piece, size) + after + _last(boundary), boundary)


def _of_parts(boundary: str) -> MakeBody:
    part = _line(boundary) + _DISPOSITION + b"\r\n\r\nA\r\n"
    return lambda size: _multipart(repeated(part, size) + _last(boundary)[2:], boundary)


_A: Final = b"\r\n\r\nA"
"""The end of a part's head, and what is in it."""
_INNER: Final = b"Content-Type: multipart/mixed; boundary=hostile\r\n\r\n--hostile\r\n"

MULTIPARTS: Final[Mapping[str, MakeBody]] = {
    "parts": _of_parts(BOUNDARY),
    "no_end": lambda size: _multipart(_line() + _DISPOSITION + b"\r\n\r\n" + b"A" * size),
    "line_breaks": _flooded(b"\r\n"),
    "dashed_lines": _flooded(b"\r\n--"),
    "near_boundaries": _flooded(b"\r\n--hostilf"),
    "boundaries_that_go_on": _flooded(b"\r\n--hostilex"),
    "header_lines": _flooded(b"A: b\r\n", b"", _DISPOSITION + _A),
    "folded_lines": _flooded(b"A: b\r\n c\r\n", b"", _DISPOSITION + _A),
    "semicolons": _flooded(b";", _DISPOSITION, _A),
    "parameters": _flooded(b"; a=b", _DISPOSITION, _A),
    "quotes": _flooded(b'; filename="\\"', _DISPOSITION, _A),
    "continued_filenames": _flooded(b"; filename*0*=utf-8''%41", _DISPOSITION, _A),
    "filename": _flooded(b"a", _DISPOSITION + b'; filename="', b'"' + _A),
    "long_boundary": _of_parts("b" * 7000),
    "dashes": _flooded(b"-", _DISPOSITION + b"\r\n\r\n\r\n", boundary="-" * 60),
    "nested": _flooded(_INNER, _DISPOSITION + b"\r\n"),
    "no_boundary": lambda size: ("multipart/form-data", repeated(_line(), size)),
}

# Query strings; a request line has room for about 4000 bytes.
QUERIES: Final[Mapping[str, Make]] = {
    "ampersands": _flood(b"&"),
    "semicolons": _flood(b";"),
    "equals": _flood(b"="),
    "percents": _flood(b"%"),
    "escapes": _flood(b"%41", b"image="),
    "fields": _flood(b"a=1&"),
    "pages": _flood(b"1,", b"pages=", b"1"),
    "page_blanks": _flood(b"+", b"pages=1-", b"2"),
    "long_number": _flood(b"9", b"max_side="),
    "exponent": _flood(b"9", b"min_confidence=1e"),
}

# Values of headers, by the header's name; one field has room for about 8000 bytes.
HEADER_VALUES: Final[Mapping[str, Mapping[str, Make]]] = {
    "Accept": {
        "types": _flood(b"a/b;q=0.1,"),
        "commas": _flood(b","),
        "parameters": _flood(b";a=b", b"text/plain"),
        "quotes": _flood(b'";', b"text/plain;a="),
    },
    "Accept-Encoding": {"encodings": _flood(b"gzip;q=0.1,")},
    "Content-Encoding": {"encodings": _flood(b"gzip,")},
    "Content-Type": {
        "semicolons": _flood(b";", b"multipart/form-data"),
        "quotes": _flood(b'\\"', b'multipart/form-data; boundary="'),
        "continued": _flood(b";boundary*0*=a", b"multipart/form-data"),
        "blanks": _flood(b" ", b"multipart/form-data;", b"x"),
    },
    "Cookie": {"pairs": _flood(b"a=b; ")},
    "X-Request-Id": {"letters": _flood(b"a"), "blanks": _flood(b" ", b"a", b"a"), "bytes": _flood(b"\xff")},
    "X-Request-Timeout": {
        "digits": _flood(b"9"),
        "exponent": _flood(b"9", b"1e"),
        "large_exponent": lambda _: b"1e999999999",
        "fraction": _flood(b"0", b"0.", b"1"),
        "not_a_number": lambda _: b"nan",
    },
    "X-Priority": {"blanks": _flood(b" ", b"batch", b"batch")},
    "Inference-Header-Content-Length": {"digits": _flood(b"9"), "negative": lambda _: b"-1"},
    "Range": {"ranges": _flood(b"0-0,", b"bytes=")},
    "Forwarded": {"hops": _flood(b"for=1.1.1.1,")},
    "X-Forwarded-For": {"hops": _flood(b"1.1.1.1,")},
    "Origin": {"letters": _flood(b"a", b"http://")},
}

# Content-Encoding, and what makes it of a body.
PRESSES: Final[Mapping[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "gzip twice": ("gzip, gzip", lambda body: gzip.compress(gzip.compress(body))),
    "gzip cut off": ("gzip", lambda body: gzip.compress(body)[:-9]),
    "many empty gzips": ("gzip", lambda body: gzip.compress(b"") * (len(body) // 1000)),
}
