"""HTTP/2 frames: received frames are split and checked before h2 gets them, outgoing frames are buffered.

h2 gets one frame at a time, so that handling can pause between two frames and none is lost after a connection error.
The size is checked first, because h2 would buffer a frame of any announced length.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hyperframe.frame import GoAwayFrame

from ocrsvc.grpc_server import limits
from ocrsvc.grpc_server.messages import Answer
from ocrsvc.serving.memory_budget import Share

_PREFACE_BYTES: Final = 24
_HEAD_BYTES: Final = 9
_DATA, _HEADERS, _SETTINGS, _PUSH_PROMISE, _GOAWAY, _CONTINUATION = 0, 1, 4, 5, 7, 9
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8

_COSTS: Final = {_SETTINGS: 20, _GOAWAY: 20}
_MAX_BYTES: Final = {
    _DATA: limits.MAX_FRAME,
    _HEADERS: limits.MAX_HEADERS,
    _CONTINUATION: limits.MAX_HEADERS,
    _SETTINGS: limits.MAX_SETTINGS_BYTES,
}


class FrameRefused(Exception):
    """Raised to end the connection with this code in its GOAWAY; the text is for the log."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code


class FrameSplitter:
    """Buffers received bytes until a frame is complete."""

    def __init__(self, check: Callable[[int, int, int], object]) -> None:
        # Called with the type, flags and length of a frame as soon as its header is complete.
        self._check = check
        # Received bytes that `split` has not returned yet.
        self.data = bytearray()
        self._preface_bytes = _PREFACE_BYTES
        self._is_checked = False

    @property
    def is_partial(self) -> bool:
        """Whether the buffer begins with an incomplete frame."""
        return len(self.data) > 0 and not self.ready_bytes

    @property
    def ready_bytes(self) -> int:
        """Number of bytes that `split` can return: a frame, or the received part of the connection preface."""
        if self._preface_bytes:
            return min(self._preface_bytes, len(self.data))
        size = _HEAD_BYTES + int.from_bytes(self.data[:3])
        return size if len(self.data) >= _HEAD_BYTES and len(self.data) >= size else 0

    def split(self) -> bytes:
        """Remove and return the next frame or a part of the preface; empty while the frame is incomplete."""
        if not self._preface_bytes and not self._is_checked and len(self.data) >= _HEAD_BYTES:
            self._is_checked = True
            self._check(self.data[3], self.data[4], int.from_bytes(self.data[:3]))
        if size := self.ready_bytes:
            self._preface_bytes -= size if self._preface_bytes else 0
            self._is_checked = False
        piece = bytes(self.data[:size])
        del self.data[:size]
        return piece


class FrameLimits:
    """Limits the size of frames and header blocks, and the rate of frames without payload.

    Each frame uses up at least one allowed frame. More are allowed for payload, as time passes, for answers, and for
    bytes that the client reads, so that clients that make normal calls never run out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._filled_s = clock, clock()
        self._allowed = float(limits.BURST_FRAMES)
        self._block_bytes = self._continuations = 0
        # Whether a header block has begun but not ended.
        self.in_block = False

    def check(self, kind: int, flags: int, length: int) -> None:
        """Check a received frame's header against the limits of size and rate. Raises FrameRefused."""
        if length > _MAX_BYTES.get(kind, limits.MAX_OTHER_BYTES):
            code = ErrorCodes.FRAME_SIZE_ERROR if kind == _DATA else ErrorCodes.ENHANCE_YOUR_CALM
            raise FrameRefused(code, f"a frame of type {kind} with {length} bytes")
        if kind in (_HEADERS, _CONTINUATION, _PUSH_PROMISE):
            self._check_block(kind, flags, length)
            self.charge(length // limits.HEADER_BYTES_PER_FRAME)
        if kind == _DATA and not flags & _PADDED:
            self.allow(length // limits.BYTES_PER_FRAME)
        self.charge(_COSTS.get(kind, 1))

    def allow(self, frames: int) -> None:
        """Add `frames` to the number of frames without payload that the client may still send, up to BURST_FRAMES."""
        self._allowed = min(self._allowed + frames, limits.BURST_FRAMES)

    def charge(self, frames: int) -> None:
        """Deduct frames from the number that the client may still send. Raises FrameRefused if too few are left."""
        self._allowed -= frames
        if self._allowed >= 0:
            return
        now_s = self._clock()
        self._allowed = min(self._allowed + (now_s - self._filled_s) * limits.FRAMES_PER_S, limits.BURST_FRAMES)
        self._filled_s = now_s
        if self._allowed < 0:
            raise FrameRefused(ErrorCodes.ENHANCE_YOUR_CALM, "a flood of frames")

    def _check_block(self, kind: int, flags: int, length: int) -> None:
        continues = kind == _CONTINUATION
        self._continuations = self._continuations + 1 if continues else 0
        self._block_bytes = self._block_bytes + length if continues else length
        self.in_block = not flags & _END_HEADERS
        if self._block_bytes > limits.MAX_HEADERS or self._continuations > limits.MAX_CONTINUATIONS:
            text = f"a header block of {self._block_bytes} bytes with {self._continuations} continuations"
            raise FrameRefused(ErrorCodes.ENHANCE_YOUR_CALM, text)


def check_settings(h2: H2Connection) -> None:
    """Limit the memory that h2 uses for the client's settings. Raises FrameRefused."""
    if len(h2.remote_settings) > limits.MAX_SETTINGS:
        raise FrameRefused(ErrorCodes.ENHANCE_YOUR_CALM, "too many settings")
    # Only reduce a table size that is too large: setting the same size again cancels hpack's announcement of a change.
    if h2.encoder.header_table_size > limits.MAX_TABLE_BYTES:  # noqa: PLR1730
        h2.encoder.header_table_size = limits.MAX_TABLE_BYTES


class StallDetector:
    """Detects a client that receives data of a connection or stream too slowly or not at all."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._taken_bytes = 0

    def note(self, now_s: float, *, left: bool, taken: int = 0) -> None:
        """Record that the client read `taken` bytes, and whether more bytes wait to be sent to it (`left`)."""
        if not left:
            self._since_s, self._taken_bytes = None, 0
            return
        self._since_s = now_s if self._since_s is None else self._since_s
        self._taken_bytes += taken

    def is_stalled(self, now_s: float) -> bool:
        """Whether the client has read too few bytes in the time since data began to wait."""
        allowed_s = limits.STALL_GRACE_S + self._taken_bytes / limits.MIN_BYTES_PER_S
        return self._since_s is not None and now_s - self._since_s > allowed_s


class Sender:
    """The output buffer of one connection, and the memory of the answers in it."""

    def __init__(self, h2: H2Connection) -> None:
        self.h2 = h2
        # Bytes to send; the transport removes those that the socket has accepted.
        self.out = bytearray()
        # Whether answers wait because the output buffer is full, not because of flow control.
        self.is_throttled = False
        # Detects a client that reads none of its streams.
        self.stall = StallDetector()
        self._moved: deque[tuple[int, Share]] = deque()
        self._moved_bytes = 0

    def collect(self) -> None:
        """Move h2's output to the buffer, and release the memory of bytes that the socket has accepted."""
        self.out += self.h2.data_to_send()
        self.release(len(self.out))

    @property
    def full(self) -> bool:
        """Whether the output buffer is full."""
        return len(self.out) >= limits.MAX_UNSENT_BYTES

    def send_piece(self, number: int, answer: Answer, size_bytes: int) -> int:
        """Move at most `size_bytes` of an answer to the output buffer; return the number of bytes moved."""
        piece = answer.data[:size_bytes]
        self.h2.send_data(number, piece.tobytes())
        answer.data = answer.data[size_bytes:]
        self.out += self.h2.data_to_send()
        self._moved.append((len(piece), answer.share))
        self._moved_bytes += len(piece)
        return len(piece)

    def reset(self, number: int, code: ErrorCodes) -> None:
        """Reset a stream; do nothing if it has ended."""
        with contextlib.suppress(ProtocolError):
            self.h2.reset_stream(number, code)

    def acknowledge(self, number: int, size_bytes: int) -> None:
        """Enlarge the flow control window of stream `number`, so that the client may send `size_bytes` more."""
        if size_bytes:
            with contextlib.suppress(ProtocolError):
                self.h2.acknowledge_received_data(size_bytes, number)

    def send_goaway(self, last_stream: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Send a GOAWAY after which the connection stays open; h2's own method would close it."""
        self.collect()
        self.out += GoAwayFrame(0, last_stream_id=last_stream, error_code=int(code)).serialize()

    def release(self, unsent_bytes: int = 0) -> None:
        """Release memory of answers moved to the output buffer, except the last `unsent_bytes`, still in the buffer."""
        while self._moved and self._moved_bytes - self._moved[0][0] >= unsent_bytes:
            size_bytes, share = self._moved.popleft()
            self._moved_bytes -= size_bytes
            share.give_back(size_bytes)
