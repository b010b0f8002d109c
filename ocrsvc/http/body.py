"""The body of a request: as the event loop received it, or, under another server, as `wsgi.input` gives it."""

from __future__ import annotations

from typing import Any, Final, Protocol

from ocrsvc.errors import BodyTooLarge, CallerError, QueueFull
from ocrsvc.http.body_receiver import ReceivedBody, too_large
from ocrsvc.serving.memory_budget import Share, unlimited

Environ = dict[str, Any]

SHARE_KEY: Final = "ocrsvc.share"
"""Where a request's environ holds its account of memory when the event loop did not make one; see `share_of`."""

_STEP_BYTES: Final = 1 << 20


class Stream(Protocol):
    """wsgi.input, as far as it is used here."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; fewer at the end."""
        ...


def received(environ: Environ) -> ReceivedBody | None:
    """What the event loop received; None under another server."""
    stream = environ.get("wsgi.input")
    return stream if isinstance(stream, ReceivedBody) else None


def read_body(environ: Environ, max_body_bytes: int) -> bytes:
    """The whole body, once; counted on the request's account of memory before it is there.

    Args:
        environ: Of the request.
        max_body_bytes: What is kept in memory at most.

    Raises:
        BodyTooLarge: It is larger than `max_body_bytes`.
        BodyTimeout: It was not there in time, or the client stopped or crawled; the connection then ends.
        QueueFull: Other requests hold the memory that this one needs.
        CallerError: It ends before its declared length, or its chunks are malformed.
    """
    body = received(environ)
    if body is not None:
        return body.take()
    length = declared_length(environ)
    if length is None and not environ.get("wsgi.input_terminated"):
        return b""
    if length is not None and length > max_body_bytes:
        raise too_large(length, max_body_bytes)
    return _read_stream(environ, length, max_body_bytes)


def declared_length(environ: Environ) -> int | None:
    """What the header Content-Length says; None without one."""
    length = environ.get("CONTENT_LENGTH") or ""
    return int(length) if length.isdecimal() else None


def share_of(environ: Environ) -> Share:
    """The request's account of memory; one without a bound where admission is not installed."""
    body = received(environ)
    if body is not None:
        return body.share
    if SHARE_KEY not in environ:
        environ[SHARE_KEY] = unlimited()
    share: Share = environ[SHARE_KEY]
    return share


def is_gone(environ: Environ) -> bool:
    """Whether the client of this request has closed its connection; False where the connection is not known.

    Never blocks. Safe from any thread: a connection that was closed here in the meantime counts as gone.
    """
    body = received(environ)
    return body is not None and body.is_gone()


def _read_stream(environ: Environ, length: int | None, max_body_bytes: int) -> bytes:
    try:
        body = _read_up_to(environ["wsgi.input"], max_body_bytes + 1 if length is None else length, share_of(environ))
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


def _read_up_to(stream: Stream, size: int, share: Share) -> bytes:
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
