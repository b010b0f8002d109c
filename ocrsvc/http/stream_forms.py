"""The forms in which an answer leaves page by page: JSON on lines, and server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class StreamForm:
    """One form.

    Attributes:
        media_type: The Content-Type of an answer; also what a client accepts that wants this form.
        help: What it is, for people.
        piece: The bytes of one part, which is JSON without a line break; its kind is page, end or error.
    """

    media_type: str
    help: str
    piece: Callable[[str, bytes], bytes]


def _line(_kind: str, part: bytes) -> bytes:
    return part + b"\n"


def _event(kind: str, part: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), part)


STREAM_FORMS: Final = {
    "ndjson": StreamForm("application/x-ndjson", "JSON on lines, each page as soon as it is read", _line),
    "sse": StreamForm("text/event-stream", "the same as server-sent events", _event),
}
"""By name, as the option `format` has it."""
