"""Reads at growing offsets of what can only be read from its beginning, such as a packed tar, in bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import Final, Protocol

_PIECE_BYTES: Final = 256 * 1024
_HISTORY_BYTES: Final = 24 * 1024 * 1024
_MOST_STREAMS: Final = 3


class ByteStream(Protocol):
    """What is read from its beginning."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""

    def close(self) -> None:
        """Give everything back."""


class ForwardStream:
    """One pass over a stream; what was read last is kept, so that callers need not come in order quite.

    Args:
        stream: Not read yet; belongs to this from now on.
        history_bytes: What is kept behind the furthest place.
    """

    def __init__(self, stream: ByteStream, history_bytes: int = _HISTORY_BYTES) -> None:
        self._stream, self._history_bytes = stream, history_bytes
        self._pieces: deque[bytes] = deque()
        self.begin = self.end = 0

    def read_at(self, offset: int, size: int) -> bytes:
        """So many bytes from there, which is not before `begin`; fewer at the end. Raises what the stream raises."""
        while self.end < offset + size and (piece := self._stream.read(_PIECE_BYTES)):
            self._pieces.append(piece)
            self.end += len(piece)
            while self._pieces and self.begin + len(self._pieces[0]) <= min(offset, self.end - self._history_bytes):
                self.begin += len(self._pieces.popleft())
        return self._copy(offset, offset + size)

    def _copy(self, begin: int, end: int) -> bytes:
        found, at = [], self.begin
        for piece in self._pieces:
            if at + len(piece) > begin and at < end:
                found.append(piece[max(0, begin - at) : end - at])
            at += len(piece)
        return b"".join(found)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


class ForwardStreams:
    """A few passes over one stream, so that a caller who is far behind does not send the others back; for any thread.

    Args:
        open_stream: Begins a pass.
    """

    def __init__(self, open_stream: Callable[[], ByteStream]) -> None:
        self._open_stream = open_stream
        self._streams: list[ForwardStream] = []
        self._lock = threading.Lock()

    def read_at(self, offset: int, size: int) -> bytes:
        """So many bytes from there, fewer at the end. Raises what the stream raises."""
        with self._lock:
            stream = self._nearest(offset)
            self._streams.remove(stream)
            self._streams.append(stream)
            return stream.read_at(offset, size)

    def _nearest(self, offset: int) -> ForwardStream:
        """The pass that is furthest of those that have not lost that place; a new one where there is none."""
        able = [stream for stream in self._streams if stream.begin <= offset]
        if able:
            return max(able, key=lambda stream: stream.end)
        if len(self._streams) == _MOST_STREAMS:
            self._streams.pop(0).close()
        self._streams.append(ForwardStream(self._open_stream()))
        return self._streams[-1]

    def close(self) -> None:
        """Close all passes."""
        with self._lock:
            for stream in self._streams:
                with closing(stream):
                    pass
            self._streams.clear()
