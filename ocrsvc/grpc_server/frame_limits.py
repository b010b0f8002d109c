"""Limits on the HTTP/2 frames of one connection: the size of each, the size of a header block, and how many may come.

A frame is checked by its header, before the rest of it is held. Frames that carry payload add to an allowance; all
others come out of it. It also grows with time, with the responses that the client has had and with the bytes that it
has taken, so that a client which uses the connection for calls never exhausts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from h2.connection import H2Connection
from h2.errors import ErrorCodes

from ocrsvc.grpc_server.http2_settings import MAX_FRAME, MAX_HEADERS

DATA, HEADERS, SETTINGS, PUSH_PROMISE, GOAWAY, CONTINUATION = 0, 1, 4, 5, 7, 9
END_HEADERS: Final = 0x4
PADDED: Final = 0x8

MAX_CONTINUATIONS: Final = 16
"""CONTINUATION frames of one header block: 2 in frames of the usual size hold the largest one."""

MAX_SETTINGS_BYTES: Final = 512
MAX_OTHER_BYTES: Final = 1 << 12
"""A frame of any other kind; the longest in use is a GOAWAY with a text for people."""

MAX_TABLE_BYTES: Final = 4096
"""What is kept of the headers that were sent, however much more the client offers to keep."""

MAX_SETTINGS: Final = 32
"""Settings that are kept for a client, those that nobody knows included; 8 are in use."""

BURST_FRAMES: Final = 2000
FRAMES_PER_S: Final = 200
"""Frames without payload that may come at once, and for each second."""

BYTES_PER_FRAME: Final = 128
"""Payload of a DATA frame that allows for one frame more."""

ANSWER_FRAMES: Final = 8
"""Frames more for each answer: a call comes with a few pings and window updates."""

TAKEN_BYTES_PER_FRAME: Final = 512
"""Bytes sent to the client that allow for one frame more: it says which it has taken."""

HEADER_BYTES_PER_FRAME: Final = 128
"""Headers cost time by their size, in the block and unpacked: so many bytes as much as a frame."""

RESET_FRAMES: Final = 8
"""What a call costs that is ended by a reset: it was begun for nothing."""

_COSTS: Final = {SETTINGS: 20, GOAWAY: 20}
_MOST_BYTES: Final = {DATA: MAX_FRAME, HEADERS: MAX_HEADERS, CONTINUATION: MAX_HEADERS, SETTINGS: MAX_SETTINGS_BYTES}


class FrameRefused(Exception):
    """The connection is to be ended.

    Args:
        code: What its GOAWAY says.
        detail: For the log.
    """

    def __init__(self, code: ErrorCodes, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class FrameLimits:
    """Checks the frames of one connection.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._allowed = float(BURST_FRAMES)
        self._filled_s = clock()
        self._block_bytes = 0
        self._continuations = 0
        self.in_block = False
        """Whether a header block has begun and not ended."""

    def check(self, kind: int, flags: int, length: int) -> None:
        """Check a frame by its header. Raises FrameRefused."""
        if length > _MOST_BYTES.get(kind, MAX_OTHER_BYTES):
            code = ErrorCodes.FRAME_SIZE_ERROR if kind == DATA else ErrorCodes.ENHANCE_YOUR_CALM
            raise FrameRefused(code, f"a frame of type {kind} with {length} bytes")
        if kind in (HEADERS, CONTINUATION, PUSH_PROMISE):
            self._check_block(kind, flags, length)
            self.charge(length // HEADER_BYTES_PER_FRAME)
        if kind == DATA and not flags & PADDED:
            self.allow(length // BYTES_PER_FRAME)
        self.charge(_COSTS.get(kind, 1))

    def allow(self, frames: int) -> None:
        """So many frames more may come."""
        self._allowed = min(self._allowed + frames, BURST_FRAMES)

    def charge(self, frames: int) -> None:
        """So many fewer may come. Raises FrameRefused when they are used up."""
        self._allowed -= frames
        if self._allowed >= 0:
            return
        now_s = self._clock()
        self._allowed = min(self._allowed + (now_s - self._filled_s) * FRAMES_PER_S, BURST_FRAMES)
        self._filled_s = now_s
        if self._allowed < 0:
            raise FrameRefused(ErrorCodes.ENHANCE_YOUR_CALM, "a flood of frames")

    def _check_block(self, kind: int, flags: int, length: int) -> None:
        more = kind == CONTINUATION
        self._continuations = self._continuations + 1 if more else 0
        self._block_bytes = self._block_bytes + length if more else length
        self.in_block = not flags & END_HEADERS
        if self._block_bytes > MAX_HEADERS or self._continuations > MAX_CONTINUATIONS:
            raise FrameRefused(
                ErrorCodes.ENHANCE_YOUR_CALM,
                f"a header block of {self._block_bytes} bytes with {self._continuations} continuations",
            )


def check_settings(h2: H2Connection) -> None:
    """Bound what the client's settings make h2 keep. Raises FrameRefused."""
    if len(h2.remote_settings) > MAX_SETTINGS:
        raise FrameRefused(ErrorCodes.ENHANCE_YOUR_CALM, "settings that nobody knows")
    # Set to the size that it has, hpack would not announce the one before to the client.
    if h2.encoder.header_table_size > MAX_TABLE_BYTES:  # noqa: PLR1730
        h2.encoder.header_table_size = MAX_TABLE_BYTES
