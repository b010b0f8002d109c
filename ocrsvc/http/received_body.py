"""Request bodies that the event loop receives, by Content-Length or chunked, with limits on memory and rate.

Nothing here reads a socket. The event loop passes a request to a thread when its body is complete or has failed.
"""

import io
import re
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.errors import BodyTimeout, BodyTooLarge, CallerError, OcrsvcError
from ocrsvc.serving.memory_budget import Share

# Longest pause between two bytes. TCP resends after 0.2, 0.6, 1.4, 3 and 6.2 s, so five losses in a row are tolerated.
STALL_S: Final = 10.0
# Longest pause of a client that receives a response while memory is plentiful. It is long because a client's kernel
# reports received data only when a sixteenth of its buffer, up to half a megabyte, is free again.
READER_STALL_S: Final = 60.0
# A transfer that lasts longer than this must reach the minimum mean rate, so that single bytes cannot keep it open.
GRACE_S: Final = 10.0
# Minimum mean transfer rates: normally; and while most of the request memory is in use, to end slow transfers.
MIN_BYTES_PER_S: Final = 1000
SCARCE_BYTES_PER_S: Final = 1 << 17
SCARCE_GRACE_S: Final = 2.0
# Share of the request memory for incomplete large bodies; small bodies and parsing need the rest.
ARRIVING_SHARE: Final = 0.6
LARGE_BYTES: Final = 1 << 20
# Longest line with a chunk size or a trailer.
MAX_LINE_BYTES: Final = 4096
# A body with more chunks than this needs a minimum mean chunk size: each chunk takes as long to decode as a kilobyte.
FREE_CHUNKS: Final = 4096
MIN_CHUNK_BYTES: Final = 64
_MAX_TRAILER_LINES: Final = 100
# Fields that are refused as trailers because they affect message parsing (RFC 9110 section 6.5.1).
_NO_TRAILERS: Final = (b"host:", b"content-length:", b"transfer-encoding:", b"trailer:", b"authorization:", b"te:")
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\r\n]*)?")
# Poll events of a disconnected client. As in nginx, one that closes only its sending side counts as disconnected.
_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL


@dataclass(slots=True)
class Pace:
    """The transfer rate of a connection in one direction; times are monotonic seconds."""

    began_s: float
    last_s: float
    moved_bytes: int = 0

    def move(self, size_bytes: int, now_s: float) -> None:
        """Count transferred bytes."""
        self.moved_bytes += size_bytes
        self.last_s = now_s

    def is_too_slow(self, now_s: float, *, scarce: bool, stall_s: float = STALL_S) -> bool:
        """Whether the transfer should be aborted; `scarce` means that other requests need the memory."""
        stall_s = STALL_S if scarce else stall_s
        grace_s, rate = (SCARCE_GRACE_S, SCARCE_BYTES_PER_S) if scarce else (GRACE_S, MIN_BYTES_PER_S)
        passed_s = now_s - self.began_s
        return now_s - self.last_s >= stall_s or (passed_s >= grace_s and self.moved_bytes < rate * passed_s)


class Chunks:
    """Decoder of the chunked transfer coding (RFC 9112 section 7.1), incremental and in linear time."""

    def __init__(self) -> None:
        # Whether the last chunk and its trailers have been received.
        self.done = False
        self._line = bytearray()
        # Parses the next line: a chunk's size, the end of its data, or a trailer.
        self._on_line: Callable[[bytes, int], None] = self._on_size
        self._left_bytes = self._chunks = self._trailers = 0

    def feed(self, piece: bytes, body: io.BytesIO) -> bytes:
        """Append the chunks' data to `body`; return the bytes after the last chunk. Raises CallerError."""
        at = 0
        while at < len(piece) and not self.done:
            if self._left_bytes:
                taken = min(self._left_bytes, len(piece) - at)
                body.write(memoryview(piece)[at : at + taken])
                at += taken
                self._left_bytes -= taken
            else:
                at = self._feed_line(piece, at, body.tell())
        return piece[at:]

    def _feed_line(self, piece: bytes, at: int, size_bytes: int) -> int:
        end = piece.find(b"\n", at, at + MAX_LINE_BYTES + 1)
        self._line += piece[at : end + 1] if end >= 0 else piece[at : at + MAX_LINE_BYTES + 1]
        if len(self._line) > MAX_LINE_BYTES:
            raise _malformed(f"a line of more than {MAX_LINE_BYTES} bytes")
        if end < 0:
            return len(piece)
        line, self._line = bytes(self._line), bytearray()
        if not line.endswith(b"\r\n"):
            raise _malformed("a line that does not end with CR LF")
        self._on_line(line[:-2], size_bytes)
        return end + 1

    def _on_size(self, line: bytes, size_bytes: int) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise _malformed(f"{line[:20]!r} instead of a chunk size")
        self._left_bytes = int(match[1], 16)
        self._on_line = self._on_end_of_data if self._left_bytes else self._on_trailer
        self._chunks += 1
        if self._chunks > FREE_CHUNKS + size_bytes // MIN_CHUNK_BYTES:
            raise CallerError(
                f"The body's chunks are too small: {self._chunks} for {size_bytes} bytes.",
                f"Send chunks of at least {MIN_CHUNK_BYTES} bytes.",
            )

    def _on_end_of_data(self, line: bytes, _size_bytes: int) -> None:
        if line:
            raise _malformed("more data than a chunk's size")
        self._on_line = self._on_size

    def _on_trailer(self, line: bytes, _size_bytes: int) -> None:
        self._trailers += 1
        if not line:
            self.done = True
        elif self._trailers > _MAX_TRAILER_LINES or b":" not in line or line.lower().startswith(_NO_TRAILERS):
            raise _malformed(f"a trailer that is not allowed ({line[:20]!r})")


class ReceivedBody:
    """The body of one request, also its `wsgi.input`; `share` counts the memory of the request.

    The event loop feeds the body until it is `settled`; then the request's thread owns it. At the end the loop frees
    `share`. Times are monotonic seconds. `client_name` is the name of the API key for the client's certificate. To
    stream a response, the request's thread calls `push`, which sends for at most the given seconds, returns the number
    of unsent bytes, and raises ClientGone.
    """

    def __init__(
        self,
        sock: socket.socket,
        request: Any,
        length: int | None,
        max_bytes: int,
        share: Share,
        end_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`request` is gunicorn's; its connection is closed if the body fails. `length` is None for a chunked body."""
        self.share = share
        self.began_s = clock()
        self.error: OcrsvcError | None = None
        self.client_name: str | None = None
        self.push: Callable[[float], int] = int
        self._sock, self._request = sock, request
        self._length, self._max_bytes = length, max_bytes
        self._end_s, self._clock = end_s, clock
        self._chunks = Chunks() if length is None else None
        # Not a bytearray: `BytesIO.getvalue` returns the bytes without a copy.
        self._data = io.BytesIO()
        self._size_bytes = 0
        self._pace = Pace(self.began_s, self.began_s)
        if length is not None and length > max_bytes:
            self.fail(too_large(length, max_bytes))

    @property
    def settled(self) -> bool:
        """Whether the body is complete or has failed."""
        is_complete = self._chunks.done if self._chunks is not None else self._size_bytes == self._length
        return is_complete or self.error is not None

    @property
    def wanted_bytes(self) -> int | None:
        """Number of bytes of the body that have not arrived; None for a chunked body."""
        return None if self._length is None else self._length - self._size_bytes

    def feed(self, piece: bytes) -> bytes:
        """Add received bytes, or fail if memory runs out; return the bytes that belong to the next request."""
        if self.error is not None:
            return b""
        self._pace.move(len(piece), self._clock())
        data, before_bytes = piece[: self.wanted_bytes], self._size_bytes
        rest = piece[len(data) :]
        try:
            self.share.take(len(data), ARRIVING_SHARE if before_bytes + len(data) > LARGE_BYTES else 1.0)
            try:
                if self._chunks is None:
                    self._data.write(data)
                else:
                    rest = self._chunks.feed(data, self._data)
            finally:
                self._size_bytes = self._data.tell()
                self.share.give_back(len(data) - (self._size_bytes - before_bytes))
            if self._size_bytes > self._max_bytes:
                raise too_large(self._length, self._max_bytes)
            # `rest` is the beginning of the next request. Count its memory: it is kept until this request is answered.
            self.share.take(len(rest))
        except OcrsvcError as error:
            self.fail(error)
            return b""
        return rest

    def end(self) -> None:
        """The client has closed its sending side: fail an incomplete body."""
        if not self.settled:
            size = self._size_bytes if self._length is None else f"{self._size_bytes} of {self._length}"
            self.fail(CallerError(f"The body ended after {size} bytes.", "Send the request again."))

    def check_pace(self, now_s: float, *, scarce: bool) -> None:
        """Fail a body that is past its deadline or arrives too slowly; `scarce`: other requests need the memory."""
        if self.settled:
            return
        if now_s >= self._end_s:
            self.fail(_too_late("the deadline of the request passed"))
        elif self._pace.is_too_slow(now_s, scarce=scarce):
            rate = SCARCE_BYTES_PER_S if scarce else MIN_BYTES_PER_S
            self.fail(_too_late(f"nothing came for {STALL_S:g} seconds, or less than {rate} bytes a second"))

    def fail(self, error: OcrsvcError) -> None:
        """Drop the body, and close the connection after the response, as unread body bytes may still arrive on it."""
        self.error = self.error or error
        self._request.force_close()
        self.discard()

    def discard(self) -> None:
        """Drop the rest of the body, and release its memory."""
        self.share.give_back(self._size_bytes)
        self._data, self._size_bytes = io.BytesIO(), 0

    def take(self) -> bytes:
        """Return the complete body, only once; its memory stays counted in `share`. Raises the body's error."""
        if self.error is not None:
            raise self.error
        body = self._data.getvalue()
        self._data, self._size_bytes = io.BytesIO(), 0
        return body

    def read(self, size: int = -1, /) -> bytes:
        """Read as any `wsgi.input` does, for code that does not get the whole body from `take`."""
        self._data.seek(-self._size_bytes, io.SEEK_END)
        piece = self._data.read(size)
        self._size_bytes -= len(piece)
        return piece

    def is_gone(self) -> bool:
        """Whether the client has closed its connection. Never blocks; for any thread."""
        poll = select.poll()
        try:
            poll.register(self._sock, _GONE)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            # poll() fails because another thread of the server has closed the socket.
            return True


def too_large(length: int | None, max_bytes: int) -> BodyTooLarge:
    """The error for a body above the limit; `length` is None for a chunked body."""
    size = "The body" if length is None else f"The body of {length} bytes"
    return BodyTooLarge(
        f"{size} is larger than the limit of {max_bytes} bytes (OCRSVC_MAX_BODY_BYTES).",
        "Send a smaller image, or ask the operator to raise the limit.",
    )


def _too_late(why: str) -> BodyTimeout:
    return BodyTimeout(
        f"The request body did not arrive in time: {why}.",
        "Send the request again; over a slow connection, send a smaller image.",
    )


def _malformed(what: str) -> CallerError:
    return CallerError(f"The chunked body is malformed: it has {what}.", "Send the request again.")
