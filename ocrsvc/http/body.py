"""Reads the body of a request: as the event loop received it, or, under another server, from its `wsgi.input`."""

from __future__ import annotations

from typing import IO, Any, Final

from ocrsvc.errors import BodyTooLarge, CallerError, QueueFull
from ocrsvc.http.received_body import ReceivedBody, too_large
from ocrsvc.serving.memory_budget import Share

_STEP_BYTES: Final = 1 << 20


def read_body(environ: dict[str, Any], max_body_bytes: int, share: Share) -> bytes:
    """The whole body, once; counted before it is there.

    Args:
        environ: Of the request.
        max_body_bytes: What is kept in memory at most.
        share: The request's account of memory.

    Raises:
        BodyTooLarge: It is larger than `max_body_bytes`.
        BodyTimeout: It was not there in time, or the client stopped or crawled; the connection then ends.
        QueueFull: Other requests hold the memory that this one needs.
        CallerError: It ends before its declared length, or its chunks are malformed.
    """
    stream = environ.get("wsgi.input")
    if isinstance(stream, ReceivedBody):
        return stream.take()
    declared = environ.get("CONTENT_LENGTH") or ""
    length = int(declared) if declared.isdecimal() else None
    if stream is None or (length is None and not environ.get("wsgi.input_terminated")):
        return b""
    if length is not None and length > max_body_bytes:
        raise too_large(length, max_body_bytes)
    try:
        body = _read_up_to(stream, max_body_bytes + 1 if length is None else length, share)
    except (QueueFull, BodyTooLarge):
        raise
    except Exception as error:
        # What a server raises for a broken chunk or a client that is gone is not known here; it is never our fault.
        raise CallerError("The body cannot be read to its end.", "Send the request again.") from error
    if len(body) > max_body_bytes:
        raise too_large(length, max_body_bytes)
    if length is not None and len(body) < length:
        raise CallerError(f"The body ended after {len(body)} of {length} bytes.", "Send the request again.")
    return body


def _read_up_to(stream: IO[bytes], size: int, share: Share) -> bytes:
    """`size` bytes, or fewer if the stream ends before; counted piece by piece. Raises QueueFull, BodyTooLarge."""
    pieces: list[bytes] = []
    while size:
        wanted = min(size, _STEP_BYTES)
        share.take(wanted)
        piece = stream.read(wanted)
        share.give_back(wanted - len(piece))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
