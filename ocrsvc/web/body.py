"""How is a body read without a client that sends slowly, or stops, holding a thread for ever?

gunicorn reads bodies without a limit in time. The timeout of its socket holds for a single receive, and one call of
`wsgi.input.read` makes up to a thousand of them, so that a byte at a time gets round it: here every receive itself ends
at a moment that was named beforehand.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, cast

from ocrsvc.errors import BodyTimeout, BodyTooLarge, CallerError, QueueFull
from ocrsvc.serving.limits import Share, unlimited

Environ = dict[str, Any]
Clock = Callable[[], float]

# TCP resends a lost packet after 0.2, 0.6, 1.4, 3 and 6.2 seconds: a line on which five in a row are lost lives on.
STALL_S: Final = 10.0
# A byte now and then is no silence: from here on the body must have come at this rate, from its beginning on.
SLOW_S: Final = 10.0
LEAST_BYTES_PER_S: Final = 1000.0
# A client that is still sending sees a reset connection, not our answer, unless somebody listens to the end.
LINGER_S: Final = 2.0

SHARE_KEY: Final = "ocrsvc.share"
"""Where a request's environ holds its `Share` of the memory for requests; see `share_of`."""

_RESPONSE_KEY: Final = "ocrsvc.gunicorn_response"
# A client that closes one direction only counts as gone, as with nginx. What it sends ahead does not matter.
_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL
_STEP_BYTES: Final = 1 << 20


class Stream(Protocol):
    """wsgi.input, as far as it is used here."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; fewer at the end."""
        ...


class Unreader(Protocol):
    """gunicorn's reader of a connection, which takes anything with a `recv` for its socket."""

    sock: Any


def knowing_the_connection(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """A WSGI application whose requests know gunicorn's response, and by it their connection.

    gunicorn tells an application neither how to bound its reads nor how to close a connection after an answer. Under
    another server nothing is known, and reads are bounded between two pieces only.
    """

    def run(environ: Environ, start_response: Any) -> Iterable[bytes]:
        environ[_RESPONSE_KEY] = getattr(start_response, "__self__", None)
        return application(environ, start_response)

    return run


def read_body(
    environ: Environ,
    max_body_bytes: int,
    deadline: float,
    stall_s: float = STALL_S,
    slow_s: float = SLOW_S,
    clock: Clock = time.monotonic,
) -> bytes:
    """The whole body; each piece is counted in the request's share of the memory for bodies before it is read.

    Piece by piece, and not by the declared length, so that uploads that crawl do not hold what they have not sent.

    Args:
        environ: Of the request.
        max_body_bytes: What is kept in memory at most.
        deadline: When the body must be there, on the clock.
        stall_s: Longest silence between two pieces of the body.
        slow_s: Time after which the body must have come at LEAST_BYTES_PER_S on average.
        clock: Monotonic seconds.

    Raises:
        BodyTooLarge: It is larger than `max_body_bytes`; of a declared length, nothing is read.
        BodyTimeout: It is not there at the deadline, or the client stopped or crawls; the connection then ends.
        QueueFull: The bodies of other requests hold the memory that this one needs.
        CallerError: It ends before its declared length, or its chunks are malformed.
    """
    if not _has_body(environ):
        return b""
    length = _declared_length(environ)
    if length is not None and length > max_body_bytes:
        raise _too_large(length, max_body_bytes)
    share = share_of(environ)
    stream = environ["wsgi.input"]
    try:
        with _bounded(environ, deadline, stall_s, slow_s, clock):
            body = _read_up_to(stream, max_body_bytes + 1 if length is None else length, deadline, clock, share)
    except TimeoutError as error:
        _cut_off(environ)
        raise _too_late(stall_s, deadline_passed=clock() >= deadline) from error
    except (QueueFull, BodyTooLarge):
        raise
    except Exception as error:
        # What a server raises for a broken chunk or a client that is gone is its own affair; it is never our fault.
        raise CallerError("The body cannot be read to its end.", "Send the request again.") from error
    if len(body) > max_body_bytes:
        raise _too_large(length, max_body_bytes)
    if length is not None and len(body) < length:
        raise CallerError(f"The body ended after {len(body)} of {length} bytes.", "Send the request again.")
    return body


def share_of(environ: Environ) -> Share:
    """The request's account of memory; one that nobody bounds where no admission was asked."""
    if SHARE_KEY not in environ:
        environ[SHARE_KEY] = unlimited()
    share: Share = environ[SHARE_KEY]
    return share


def leave_body(environ: Environ, linger_s: float = LINGER_S, clock: Clock = time.monotonic) -> None:
    """Listen for a moment to what nobody has read, so that a client that is still sending gets to see the answer.

    What has not come by then ends with the connection: gunicorn would wait for it, and a client that sends a byte at a
    time would keep the thread.
    """
    if not _has_body(environ):
        return
    stop = clock() + linger_s
    try:
        with _bounded(environ, stop, linger_s, linger_s, clock):
            while _next_piece(environ["wsgi.input"], _STEP_BYTES, stop, clock):
                pass
    except Exception:  # noqa: BLE001  whatever is wrong with the rest of a body, its answer is known
        _cut_off(environ)


def is_gone(environ: Environ) -> bool:
    """Has the client of this request closed its connection? False where the connection is not known.

    Never blocks. Safe from any thread: a connection that was closed here in the meantime counts as gone.
    """
    unreader = _unreader(environ)
    if unreader is None:
        return False
    poll = select.poll()
    try:
        poll.register(unreader.sock, _GONE)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def _has_body(environ: Environ) -> bool:
    return _declared_length(environ) is not None or bool(environ.get("wsgi.input_terminated"))


def _declared_length(environ: Environ) -> int | None:
    length = environ.get("CONTENT_LENGTH") or ""
    return int(length) if length.isdecimal() else None


def _read_up_to(stream: Stream, size: int, stop: float, clock: Clock, share: Share | None = None) -> bytes:
    """`size` bytes, or fewer if the stream ends before; counted piece by piece. Raises TimeoutError, QueueFull."""
    pieces: list[bytes] = []
    while size:
        wanted = min(size, _STEP_BYTES)
        if share is not None:
            share.take(wanted)
        piece = _next_piece(stream, wanted, stop, clock)
        if share is not None:
            share.give_back(wanted - len(piece))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _next_piece(stream: Stream, size: int, stop: float, clock: Clock) -> bytes:
    piece = stream.read(size)
    if piece and clock() >= stop:
        raise TimeoutError
    return piece


@contextmanager
def _bounded(environ: Environ, stop: float, stall_s: float, slow_s: float, clock: Clock) -> Iterator[None]:
    """Every receive on this connection ends in time, inside the block; the next request finds the socket as it was."""
    unreader = _unreader(environ)
    if unreader is None:
        yield
        return
    wire = unreader.sock
    before_s = wire.gettimeout()
    unreader.sock = _BoundedSocket(wire, stop, stall_s, slow_s, clock)
    try:
        yield
    finally:
        unreader.sock = wire
        wire.settimeout(before_s)


class _BoundedSocket:
    """A socket whose every receive ends in time, whatever little comes.

    Args:
        wire: The socket itself.
        stop: The moment at which every receive ends, on the clock.
        stall_s: Longest single receive.
        slow_s: From so many seconds on, at least LEAST_BYTES_PER_S must have come on average.
        clock: Monotonic seconds.
    """

    def __init__(self, wire: socket.socket, stop: float, stall_s: float, slow_s: float, clock: Clock) -> None:
        self._wire, self._stop, self._stall_s, self._slow_s, self._clock = wire, stop, stall_s, slow_s, clock
        self._began = clock()
        self._received_bytes = 0

    def recv(self, size: int) -> bytes:
        """At least one byte, or none at the end; raises TimeoutError."""
        too_slow = self._began + max(self._slow_s, self._received_bytes / LEAST_BYTES_PER_S)
        left_s = min(self._stall_s, min(self._stop, too_slow) - self._clock())
        if left_s <= 0:
            raise TimeoutError
        self._wire.settimeout(left_s)
        piece = self._wire.recv(size)
        self._received_bytes += len(piece)
        return piece


def _cut_off(environ: Environ) -> None:
    """End the connection after this answer, and listen no more.

    Without the shutdown gunicorn would linger on the connection in its main loop, which accepts all the others.
    """
    response, unreader = environ.get(_RESPONSE_KEY), _unreader(environ)
    if response is None or unreader is None:
        return
    response.force_close()
    with contextlib.suppress(OSError):
        unreader.sock.shutdown(socket.SHUT_RD)


def _unreader(environ: Environ) -> Unreader | None:
    request = getattr(environ.get(_RESPONSE_KEY), "req", None)
    unreader = getattr(request, "unreader", None)
    return cast(Unreader, unreader) if hasattr(unreader, "sock") else None


def _too_late(stall_s: float, *, deadline_passed: bool) -> BodyTimeout:
    why = (
        "the deadline of the request passed"
        if deadline_passed
        else f"nothing came for {stall_s:g} seconds, or less than {LEAST_BYTES_PER_S:g} bytes a second"
    )
    return BodyTimeout(
        f"The request body did not arrive in time: {why}.",
        "Send the request again; on a slow line, send a smaller image.",
    )


def _too_large(length: int | None, max_body_bytes: int) -> BodyTooLarge:
    size = "The body" if length is None else f"The body of {length} bytes"
    return BodyTooLarge(
        f"{size} is larger than the limit of {max_body_bytes} bytes (OCRSVC_MAX_BODY_BYTES).",
        "Send a smaller image, or ask the operator to raise the limit.",
    )
