"""Hostile conversations with a gRPC server, by name: the bytes that one client sends, whatever it is answered."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from hostile_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    METHOD,
    PADDED,
    PING,
    PRIORITY,
    RESET,
    SETTINGS,
    STREAM_METHOD,
    WINDOW,
    fields,
    frame,
    greeting,
)
from hpack import Encoder

LIVE: Final = "/inference.GRPCInferenceService/ServerLive"

Conversation = Callable[[], Iterator[bytes]]

_PIECE_BYTES: Final = 1 << 14
_STREAMS: Final = 100


def begin(stream: int, path: str = METHOD, *more: tuple[str, str]) -> bytes:
    """The headers of a call."""
    return frame(HEADERS, END_HEADERS, stream, fields(path, *more))


def numbers(count: int) -> range:
    """The numbers of so many streams."""
    return range(1, 2 * count + 1, 2)


def repeated(again: bytes, times: int, first: bytes = b"") -> Iterator[bytes]:
    """A beginning, and the same frames again and again, many in a piece."""
    a_piece = max(1, _PIECE_BYTES // len(again))
    return chain([greeting() + first], (again * a_piece for _ in range(0, times, a_piece)))


def after(first: bytes, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A beginning, and what follows."""
    return chain([greeting() + first], pieces)


def calls(again: Callable[[int], bytes], streams: range = range(1, 40_000, 2)) -> Iterator[bytes]:
    """Calls that are begun, each with the frames that follow its headers, a hundred in a piece."""
    pieces = (streams[at : at + _STREAMS] for at in range(0, len(streams), _STREAMS))
    return after(b"", (b"".join(begin(number) + again(number) for number in piece) for piece in pieces))


def settings_frame(*pairs: tuple[int, int]) -> bytes:
    """What sets these settings."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window_frame(stream: int, size: int) -> bytes:
    """What opens a window further."""
    return frame(WINDOW, 0, stream, struct.pack(">I", size))


def live_calls(window: int) -> Iterator[bytes]:
    """Health checks on all streams, whose answers find windows of this size."""
    sent = (begin(number, LIVE) + frame(DATA, END_STREAM, number, bytes(5)) for number in numbers(_STREAMS))
    return iter([greeting((4, window)), b"".join(sent)])


def small_data() -> Iterator[bytes]:
    """A body in frames of a byte."""
    return repeated(frame(DATA, 0, 1, b"x"), 100_000, begin(1) + frame(DATA, 0, 1, b"\0\0\x10\0\0"))


def large_metadata() -> Iterator[bytes]:
    """All streams open, each with 30 kB of headers in Huffman's code."""
    more = (("x", "y" * 10_000), ("z", "y" * 10_000), ("grpc-timeout", "1" * 9_000))
    return after(b"", (begin(number, METHOD, *more) for number in numbers(_STREAMS)))


def small_messages() -> Iterator[bytes]:
    """Two megabytes of empty messages, for a method that takes many."""
    return after(begin(1, STREAM_METHOD), [frame(DATA, 0, 1, bytes(_PIECE_BYTES // 5 * 5))] * 128)


_TRAILERS: Final = bytes(Encoder().encode([(f"x-{number}", "y" * 250) for number in range(80)]))
_BLOCK: Final = frame(HEADERS, 0, 1, fields(METHOD))
"""Headers that do not end."""

ENDED: Final[Mapping[str, Conversation]] = {
    # 64 MB of a header block that does not end; in frames of a megabyte; in pieces of a byte, and of nothing.
    "continuations": lambda: repeated(frame(CONTINUATION, 0, 1, bytes(_PIECE_BYTES)), 1 << 12, _BLOCK),
    "large_continuations": lambda: after(_BLOCK, (frame(CONTINUATION, 0, 1, bytes(1 << 20)) for _ in range(64))),
    "small_continuations": lambda: repeated(frame(CONTINUATION, 0, 1, b"\x82"), 100_000, _BLOCK),
    "empty_continuations": lambda: repeated(frame(CONTINUATION, 0, 1), 100_000, _BLOCK),
    # A frame of 16 MB; and one whose kind has 8 bytes.
    "large_frame": lambda: after(begin(1) + b"\xff\xff\xff\0\0\0\0\0\1", (bytes(1 << 16) for _ in range(256))),
    "large_ping": lambda: after(b"\xff\xff\xff\6\0\0\0\0\0", (bytes(1 << 16) for _ in range(256))),
    # Settings that change and are acknowledged, for ever; sizes of the header table; and all settings that can be.
    "settings_flood": lambda: repeated(settings_frame((4, 100)) + settings_frame((4, 65535)), 100_000),
    "table_sizes": lambda: repeated(settings_frame((1, 2**32 - 1)) + settings_frame((1, 0)), 100_000),
    "unknown_settings": lambda: after(
        b"", (settings_frame(*((number, 1) for number in range(at, at + 80))) for at in range(100, 65_000, 80))
    ),
    # Each is to be answered.
    "ping_flood": lambda: repeated(frame(PING, 0, 0, b"12345678"), 200_000),
    # Of streams that do not exist.
    "priority_flood": lambda: repeated(frame(PRIORITY, 0, 3, struct.pack(">IB", 0, 16)), 200_000),
    # The connection's window grows by a byte at a time.
    "window_flood": lambda: repeated(window_frame(0, 1), 200_000),
    # Of a kind that is to be ignored.
    "unknown_frames": lambda: repeated(frame(99, 0, 0, b"x"), 200_000),
    # A body of no bytes in many frames, one that is all padding, and one in frames of a byte.
    "empty_data": lambda: repeated(frame(DATA, 0, 1), 200_000, begin(1)),
    "padding": lambda: repeated(frame(DATA, PADDED, 1, b"\xff" + bytes(255)), 50_000, begin(1)),
    "small_data": small_data,
    # Calls that are taken back as soon as they are begun; and those that make the server reset them.
    "rapid_reset": lambda: calls(lambda number: frame(RESET, 0, number, struct.pack(">I", 8))),
    "resets_by_the_server": lambda: calls(lambda number: window_frame(number, 2**31 - 1)),
    # Calls with headers of 30 kB behind their bodies; with 30 kB of them in Huffman's code.
    "trailers": lambda: calls(
        lambda number: frame(HEADERS, END_HEADERS | END_STREAM, number, _TRAILERS), numbers(_STREAMS)
    ),
    "large_metadata": large_metadata,
    # One header of 4 kB in the table, meant by a byte each time; and as many headers as a block has room for.
    "header_bomb": lambda: after(
        frame(HEADERS, END_HEADERS, 1, fields(METHOD, ("bomb", "x" * 4000))),
        (frame(HEADERS, END_HEADERS, number, b"\xbe" * 16_000) for number in numbers(_STREAMS)[1:]),
    ),
    "small_headers": lambda: after(
        b"",
        (frame(HEADERS, END_HEADERS, number, fields(METHOD) + b"\0\1x\0" * 7000) for number in numbers(_STREAMS)),
    ),
}
"""Those whose connection is ended for them."""

SERVED: Final[Mapping[str, Conversation]] = {
    # A frame that does not end.
    "half_a_frame": lambda: iter([greeting() + begin(1) + b"\0\x80\0\0\0\0\0\0\1" + bytes(30_000)]),
    # All streams open, each with the beginning of a large message; and 4 MB each of messages that do not end.
    "beginnings": lambda: after(
        b"".join(begin(number) for number in numbers(_STREAMS)),
        (frame(DATA, 0, number, struct.pack(">BI", 0, 1 << 25) + b"x" * 100) for number in numbers(_STREAMS)),
    ),
    "large_messages": lambda: after(
        b"",
        chain.from_iterable(
            [begin(number) + frame(DATA, 0, number, struct.pack(">BI", 0, 1 << 25))]
            + [frame(DATA, 0, number, bytes(_PIECE_BYTES))] * 255
            for number in numbers(2)
        ),
    ),
    "small_messages": small_messages,
    # Calls whose answers have no window, and their client does not care; and those taken a byte at a time.
    "answers_nobody_takes": lambda: live_calls(0),
    "window_of_a_byte": lambda: chain(
        live_calls(1), [b"".join(window_frame(number, 1) for number in numbers(_STREAMS))] * 10
    ),
}
"""Those who only hold what they have sent, or whose calls alone are refused."""
