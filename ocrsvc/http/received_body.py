"""Request bodies as the event loop receives them: by length or in chunks, within a budget and a least rate.

Nothing here reads a socket. A request reaches a thread when its body is whole or has failed.
"""

from __future__ import annotations

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

STALL_S: Final = 10.0
"""Longest silence. TCP resends a lost packet after 0.2, 0.6, 1.4, 3 and 6.2 s: five losses in a row are survived."""

READER_STALL_S: Final = 60.0
"""The same for a client that takes an answer, while memory is plentiful: its kernel reports space only when a sixteenth
of its buffer is free, which may be half a megabyte."""

GRACE_S: Final = 10.0
"""From here on bytes must have moved at the least rate since the beginning: a byte now and then is no silence."""

LEAST_BYTES_PER_S: Final = 1000
SCARCE_BYTES_PER_S: Final = 1 << 17
"""The least rates, with memory to spare and with most of it held: then slow clients make room for the others."""

SCARCE_GRACE_S: Final = 2.0
ARRIVING_SHARE: Final = 0.6
"""Large bodies that arrive may fill this part of the memory for requests: parsing needs more, and so do small ones."""

LARGE_BYTES: Final = 1 << 20

MAX_LINE_BYTES: Final = 4096
"""The longest line that announces a chunk, or of a trailer."""

FREE_CHUNKS: Final = 4096
LEAST_CHUNK_BYTES: Final = 64
"""Chunks that may be of any size, and the mean size from there on: a chunk costs as much time as a kilobyte."""

_MAX_TRAILER_LINES: Final = 100
# They decide how the request is read (RFC 9110 section 6.5.1).
_NO_TRAILERS: Final = (b"host:", b"content-length:", b"transfer-encoding:", b"trailer:", b"authorization:", b"te:")
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\r\n]*)?")
# A client that closes one direction only counts as gone, as with nginx. What it sends ahead does not matter.
_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL


@dataclass(slots=True)
class Pace:
    """How quickly bytes move on a connection, in one direction; times are monotonic seconds."""

    began_s: float
    last_s: float
    moved_bytes: int = 0

    def move(self, size_bytes: int, now_s: float) -> None:
        """Count bytes that have moved."""
        self.moved_bytes += size_bytes
        self.last_s = now_s

    def is_too_slow(self, now_s: float, *, scarce: bool, stall_s: float = STALL_S) -> bool:
        """Whether to wait no longer; `scarce` when others need the memory."""
        stall_s = STALL_S if scarce else stall_s
        grace_s, least = (SCARCE_GRACE_S, SCARCE_BYTES_PER_S) if scarce else (GRACE_S, LEAST_BYTES_PER_S)
        passed_s = now_s - self.began_s
        return now_s - self.last_s >= stall_s or (passed_s >= grace_s and self.moved_bytes < least * passed_s)


class Chunks:
    """Undoes the chunked transfer coding (RFC 9112 section 7.1) piece by piece, in linear time.

    It is `done` when the last chunk and its trailers are there.
    """

    def __init__(self) -> None:
        self.done = False
        self._line = bytearray()
        # What takes the next line, and what is left of the data before it.
        self._on_line: Callable[[bytes, int], None] = self._on_size
        self._left_bytes = self._chunks = self._trailers = 0

    def feed(self, piece: bytes, body: io.BytesIO) -> bytes:
        """Append the data of chunks; bytes behind the last one are returned. Raises CallerError."""
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
            raise _malformed(f"{line[:20]!r} instead of the size of a chunk")
        self._left_bytes = int(match[1], 16)
        self._on_line = self._on_end_of_data if self._left_bytes else self._on_trailer
        self._chunks += 1
        if self._chunks > FREE_CHUNKS + size_bytes // LEAST_CHUNK_BYTES:
            raise CallerError(
                f"The body comes in chunks that are too small: {self._chunks} for {size_bytes} bytes.",
                f"Send chunks of {LEAST_CHUNK_BYTES} bytes and more.",
            )

    def _on_end_of_data(self, line: bytes, _size_bytes: int) -> None:
        if line:
            raise _malformed("more data than a chunk announced")
        self._on_line = self._on_size

    def _on_trailer(self, line: bytes, _size_bytes: int) -> None:
        self._trailers += 1
        if not line:
            self.done = True
        elif self._trailers > _MAX_TRAILER_LINES or b":" not in line or line.lower().startswith(_NO_TRAILERS):
            raise _malformed(f"a trailer that may not be there ({line[:20]!r})")


class ReceivedBody:
    """The body of one request, and its memory account; the request's `wsgi.input`.

    The event loop feeds it, and closes the account when the answer has left; once it is `settled` the request's thread
    owns it. Times are monotonic seconds. The client's certificate stands for the key `client_name`. Where the answer
    leaves in pieces, the request's thread calls `push`: it sends for so many seconds at most, returns how many bytes
    have not left, and raises ClientGone.
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
        """gunicorn's request, whose connection is closed after an answer without the body; `length` None is chunks."""
        self.share = share
        self.began_s = clock()
        self.error: OcrsvcError | None = None
        self.client_name: str | None = None
        self.push: Callable[[float], int] = int
        self._sock, self._request = sock, request
        self._length, self._max_bytes = length, max_bytes
        self._end_s, self._clock = end_s, clock
        self._chunks = Chunks() if length is None else None
        # Its value is its own buffer, where `bytes` would copy all of it in one call.
        self._data = io.BytesIO()
        self._size_bytes = 0
        self._pace = Pace(self.began_s, self.began_s)
        if length is not None and length > max_bytes:
            self.fail(too_large(length, max_bytes))

    @property
    def settled(self) -> bool:
        """Whether it is whole, or has failed."""
        is_whole = self._chunks.done if self._chunks is not None else self._size_bytes == self._length
        return is_whole or self.error is not None

    @property
    def wanted_bytes(self) -> int | None:
        """How many more bytes belong to it; None where the body comes in chunks."""
        return None if self._length is None else self._length - self._size_bytes

    def feed(self, piece: bytes) -> bytes:
        """Keep the next bytes, once there is memory for them; those of the next request are returned."""
        if self.error is not None:
            return b""
        self._pace.move(len(piece), self._clock())
        try:
            rest = self._feed(piece)
            # These wait for as long as this request takes.
            self.share.take(len(rest))
        except OcrsvcError as error:
            self.fail(error)
            return b""
        return rest

    def _feed(self, piece: bytes) -> bytes:
        own = piece if self._length is None else piece[: self._length - self._size_bytes]
        before_bytes = self._size_bytes
        self.share.take(len(own), ARRIVING_SHARE if before_bytes + len(own) > LARGE_BYTES else 1.0)
        rest = piece[len(own) :]
        try:
            if self._chunks is None:
                self._data.write(own)
            else:
                rest = self._chunks.feed(own, self._data)
        finally:
            self._size_bytes = self._data.tell()
            self.share.give_back(len(own) - (self._size_bytes - before_bytes))
        if self._size_bytes > self._max_bytes:
            raise too_large(self._length, self._max_bytes)
        return rest

    def end(self) -> None:
        """The client sends no more."""
        if not self.settled:
            expected = "" if self._length is None else f" of {self._length}"
            self.fail(
                CallerError(f"The body ended after {self._size_bytes}{expected} bytes.", "Send the request again.")
            )

    def check_pace(self, now_s: float, *, scarce: bool) -> None:
        """Give up a body that is late, or comes too slowly."""
        if self.settled:
            return
        if now_s >= self._end_s:
            self.fail(_too_late("the deadline of the request passed"))
        elif self._pace.is_too_slow(now_s, scarce=scarce):
            least = SCARCE_BYTES_PER_S if scarce else LEAST_BYTES_PER_S
            self.fail(_too_late(f"nothing came for {STALL_S:g} seconds, or less than {least} bytes a second"))

    def fail(self, error: OcrsvcError) -> None:
        """There will be no body: its memory is free again, and where the next request would begin is unknown."""
        self.error = self.error or error
        self._request.force_close()
        self.discard()

    def discard(self) -> None:
        """Drop the rest of it."""
        self.share.give_back(self._size_bytes)
        self._taken()

    def take(self) -> bytes:
        """The whole body, once; its bytes stay on the account. Raises what went wrong with it."""
        if self.error is not None:
            raise self.error
        return self._taken()

    def _taken(self) -> bytes:
        body = self._data.getvalue()
        self._data, self._size_bytes = io.BytesIO(), 0
        return body

    def read(self, size: int = -1, /) -> bytes:
        """As wsgi.input promises; for whatever does not know `take`."""
        self._data.seek(-self._size_bytes, io.SEEK_END)
        piece = self._data.read(size)
        self._size_bytes -= len(piece)
        return piece

    def is_gone(self) -> bool:
        """Whether the client has closed its connection; for any thread, and never blocks."""
        poll = select.poll()
        try:
            poll.register(self._sock, _GONE)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            # Closed here in the meantime.
            return True


def too_large(length: int | None, max_bytes: int) -> BodyTooLarge:
    """The refusal of a body; its length is None where it was not declared."""
    size = "The body" if length is None else f"The body of {length} bytes"
    return BodyTooLarge(
        f"{size} is larger than the limit of {max_bytes} bytes (OCRSVC_MAX_BODY_BYTES).",
        "Send a smaller image, or ask the operator to raise the limit.",
    )


def _too_late(why: str) -> BodyTimeout:
    return BodyTimeout(
        f"The request body did not arrive in time: {why}.",
        "Send the request again; on a slow line, send a smaller image.",
    )


def _malformed(what: str) -> CallerError:
    return CallerError(f"The chunked body cannot be read to its end: it has {what}.", "Send the request again.")
