"""Splits a multipart/form-data body into its parts (RFC 7578).

The body is already in memory, so its parts are found with `bytes.find`: 20 times faster on a photo than a parser that
must be ready for a boundary split between two reads.
"""

from __future__ import annotations

import re

from werkzeug.http import parse_options_header

from ocrsvc.errors import BodyTooLarge, CallerError
from ocrsvc.http.content import Part
from ocrsvc.imaging.percent import part_of

MAX_PARTS = 1000
MAX_HEADER_BYTES = 8192
# Of all parts together: a byte of them costs a hundred times as much as one of a file.
MAX_HEADERS_BYTES = 1 << 19
MAX_HEADERS = 64
MAX_PARAMETERS = 64
# A boundary is chosen so that there are none; each costs a microsecond in which no other thread runs.
MAX_NEAR_MISSES = 10_000

# A delimiter goes on with "--" (the last one) or ends its line; anything else is data that happens to look like one.
_TAIL = re.compile(rb"(--)|[ \t]*\r\n")
_FOLD = re.compile(rb"\r\n[ \t]+")


def split_parts(body: bytes, content_type: str) -> list[Part]:
    """The parts of a body, in order.

    Args:
        body: The whole body.
        content_type: The header, which carries the boundary.

    Raises:
        CallerError: The body is not what the header says.
        BodyTooLarge: More than MAX_PARTS parts.
    """
    marker = b"--" + _boundary(content_type)
    at = 0 if body.startswith(marker) else body.find(b"\r\n" + marker) + 2
    if at == 1:
        raise _malformed("the boundary that Content-Type names does not occur in it")
    parts: list[Part] = []
    misses = header_bytes = 0
    while not (tail := _tail(body, at + len(marker)))[1]:
        if len(parts) == MAX_PARTS:
            raise BodyTooLarge(f"The form has more than {MAX_PARTS} parts.", "Send several requests.")
        end, missed = _next_delimiter(body, marker, tail.end(), MAX_NEAR_MISSES - misses)
        misses += missed
        header_end = _header_end(body, tail.end(), end)
        header_bytes += header_end - tail.end()
        if header_bytes > MAX_HEADERS_BYTES:
            raise _malformed(f"the headers of its parts have more than {MAX_HEADERS_BYTES} bytes")
        parts.append(_parse_part(body[tail.end() : header_end], part_of(body, header_end + 4, end)))
        at = end + 2
    return parts


def _boundary(content_type: str) -> bytes:
    boundary = parse_options_header(content_type)[1].get("boundary", "")
    if not boundary:
        raise CallerError(
            "The Content-Type says multipart but names no boundary.",
            "Let the HTTP client set Content-Type itself; it knows the boundary that it uses.",
        )
    return boundary.encode("latin-1", "replace")


def _tail(body: bytes, at: int) -> re.Match[bytes]:
    match = _TAIL.match(body, at)
    if match is None:
        raise _malformed("its first boundary does not end its line")
    return match


def _next_delimiter(body: bytes, marker: bytes, start: int, most: int) -> tuple[int, int]:
    """Where the line break before the next delimiter lies, looking from `start` on, and after how many near misses."""
    at, missed = body.find(b"\r\n" + marker, start - 2), 0
    while at >= 0 and not _TAIL.match(body, at + 2 + len(marker)):
        if missed == most:
            raise _malformed(f"more than {MAX_NEAR_MISSES} of its lines begin like its boundary and go on")
        missed += 1
        at = body.find(b"\r\n" + marker, at + 2)
    if at < 0:
        raise _malformed("it ends before its closing boundary")
    return at, missed


def _header_end(body: bytes, start: int, end: int) -> int:
    # A part without content may share the line break after its headers with the delimiter.
    header_end = body.find(b"\r\n\r\n", start, min(end + 2, start + MAX_HEADER_BYTES + 4))
    if header_end < 0:
        raise _malformed("one of its parts has no end of headers")
    return header_end


def _parse_part(headers: bytes, data: bytes) -> Part:
    disposition = _disposition(headers)
    if "name" not in disposition:
        raise _malformed("one of its parts has no name")
    return Part(disposition["name"], disposition.get("filename"), data)


def _disposition(headers: bytes) -> dict[str, str]:
    """The parameters of Content-Disposition; none if the header is not there."""
    for header in _FOLD.sub(b" ", headers).split(b"\r\n", MAX_HEADERS)[:MAX_HEADERS]:
        key, _, value = header.partition(b":")
        if key.strip().lower() == b"content-disposition":
            if value.count(b";") > MAX_PARAMETERS:
                raise _malformed("one of its Content-Disposition headers has too many parameters")
            return parse_options_header(value.strip().decode("utf-8", "replace"))[1]
    return {}


def _malformed(what: str) -> CallerError:
    return CallerError(f"The multipart body is malformed: {what}.", "Send the form as RFC 7578 says.")
