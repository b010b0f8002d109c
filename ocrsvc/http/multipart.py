"""Multipart/form-data bodies (RFC 7578), split with werkzeug's decoder and stricter limits."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Event, Field, File, MultipartDecoder, NeedData, State

from ocrsvc.errors import BodyTooLarge, CallerError

MAX_PARTS: Final = 1000
MAX_HEADER_BYTES: Final = 8192
# For all parts together: parsing a byte of headers costs a hundred times as much as a byte of a file.
MAX_HEADERS_BYTES: Final = 1 << 19
MAX_HEADERS: Final = 64
MAX_PARAMETERS: Final = 64
# RFC 2046 section 5.1.1 allows 70.
_MAX_BOUNDARY_BYTES: Final = 256
# Fed to the decoder at once: it copies what it has not decoded yet.
_STEP_BYTES: Final = 1 << 16
# A delimiter is the boundary, the dashes around it, and white space.
_MAX_DELIMITER_BYTES: Final = 1024
# Why a body is malformed if it ends in this state of the decoder; in other states its closing boundary is missing.
_ENDS: Final = {
    State.PREAMBLE: "the boundary in Content-Type does not occur in it",
    State.PART: "the headers of a part do not end",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a form. `filename` is the client's, used only to name results; None for a field that is no file."""

    name: str
    filename: str | None
    data: bytes


class _Decoder(MultipartDecoder):
    """werkzeug's decoder with limits on headers, which need not be UTF-8, as old clients send other encodings."""

    _headers_bytes = 0

    def _parse_headers(self, data: bytes | bytearray) -> Headers:
        self._headers_bytes += len(data)
        if len(data) > MAX_HEADER_BYTES:
            raise ValueError(f"the headers of a part have more than {MAX_HEADER_BYTES} bytes")
        if self._headers_bytes > MAX_HEADERS_BYTES:
            raise ValueError(f"the headers of its parts have more than {MAX_HEADERS_BYTES} bytes")
        if max(data.count(b"\n"), data.count(b"\r")) >= MAX_HEADERS:
            raise ValueError(f"a part has more than {MAX_HEADERS} header lines")
        if data.count(b";") > MAX_PARAMETERS:
            raise ValueError("a Content-Disposition header has too many parameters")
        return super()._parse_headers(data.decode("utf-8", "replace").encode())


def split_parts(body: bytes, content_type: str) -> list[Part]:
    """Split a complete body into its parts, in order. Raises CallerError, BodyTooLarge."""
    boundary = parse_options_header(content_type)[1].get("boundary", "").encode("latin-1", "replace")
    if not 0 < len(boundary) <= _MAX_BOUNDARY_BYTES:
        raise CallerError(
            f"The multipart Content-Type has no boundary of 1 to {_MAX_BOUNDARY_BYTES} characters.",
            "Let the HTTP client set Content-Type itself, with the boundary that it uses.",
        )
    decoder = _Decoder(boundary, 2 * _STEP_BYTES, max_parts=MAX_PARTS)
    parts: list[Part] = []
    data = io.BytesIO()
    try:
        for event in _events(decoder, body):
            if isinstance(event, Field | File):
                if event.name is None:
                    raise ValueError("a part has no name")
                head, data = event, io.BytesIO()
            elif isinstance(event, Data):
                data.write(event.data)
                if not event.more_data:
                    parts.append(Part(head.name, getattr(head, "filename", None), data.getvalue()))
    except RequestEntityTooLarge as error:
        if len(parts) < MAX_PARTS:
            raise _malformed(_ENDS.get(decoder.state, str(error))) from error
        raise BodyTooLarge(f"The form has more than {MAX_PARTS} parts.", "Send several requests.") from error
    except ValueError as error:
        raise _malformed(str(error)) from error
    return parts


def _events(decoder: MultipartDecoder, body: bytes) -> Iterator[Event]:
    """The decoder's events. Raises ValueError, and RequestEntityTooLarge if the decoder would buffer too much."""
    end, marker = 0, b"--" + decoder.boundary
    while end < len(body):
        begin, end = end, min(end + _STEP_BYTES, len(body))
        if end < len(body):
            # End before a delimiter's line break, because the decoder takes half a delimiter for data.
            last = body.rfind(marker, end - _MAX_DELIMITER_BYTES, end + len(marker) - 1)
            end = end if last < 0 else last - len(b"\r\n")
        decoder.receive_data(body[begin:end])
        while not isinstance(event := decoder.next_event(), NeedData):
            yield event
        if decoder.state == State.EPILOGUE:
            return
    raise ValueError(_ENDS.get(decoder.state, "it ends before its closing boundary"))


def _malformed(what: str) -> CallerError:
    return CallerError(f"The multipart body is malformed: {what}.", "Send a form as in RFC 7578.")
