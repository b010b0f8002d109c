"""Hostile conversations with a gRPC server, by name: the bytes that one client sends, whatever it is answered."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final

from hpack import Encoder

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
LIVE: Final = "/inference.GRPCInferenceService/ServerLive"

Conversation = Callable[[], Iterator[bytes]]

_PIECE_BYTES: Final = 1 << 14
_STREAMS: Final = 100


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


@cache
def fields(path: str, *more: tuple[str, str]) -> bytes:
    """The header block of a call, which needs no others before it."""
    plain = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", path)]
    return bytes(Encoder().encode([*plain, ("content-type", "application/grpc"), ("te", "trailers"), *more]))


def greeting(*settings: tuple[int, int]) -> bytes:
    """What a client begins with."""
    return PREFACE + frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *setting) for setting in settings))


def begin(stream: int, path: str = INFER, *more: tuple[str, str]) -> bytes:
    """The headers of a call."""
    return frame(HEADERS, END_HEADERS, stream, fields(path, *more))


def numbers(count: int) -> range:
    """The numbers of so many streams."""
    return range(1, 2 * count + 1, 2)


def repeated(first: bytes, again: bytes, times: int) -> Iterator[bytes]:
    """A beginning, and the same frames again and again, many in a piece."""
    yield greeting() + first
    a_piece = max(1, _PIECE_BYTES // len(again))
    for _ in range(0, times, a_piece):
        yield again * a_piece


def continuations() -> Iterator[bytes]:
    """64 MB of a header block that does not end."""
    return repeated(frame(HEADERS, 0, 1, fields(INFER)), frame(CONTINUATION, 0, 1, bytes(_PIECE_BYTES)), 1 << 12)


def large_continuations() -> Iterator[bytes]:
    """The same, each frame of a megabyte."""
    yield greeting() + frame(HEADERS, 0, 1, fields(INFER))
    for _ in range(64):
        yield frame(CONTINUATION, 0, 1, bytes(1 << 20))


def small_continuations() -> Iterator[bytes]:
    """A header block in pieces of a byte."""
    return repeated(frame(HEADERS, 0, 1, fields(INFER)), frame(CONTINUATION, 0, 1, b"\x82"), 100_000)


def empty_continuations() -> Iterator[bytes]:
    """A header block in pieces of nothing."""
    return repeated(frame(HEADERS, 0, 1, fields(INFER)), frame(CONTINUATION, 0, 1), 100_000)


def large_frame() -> Iterator[bytes]:
    """A frame of 16 MB."""
    yield greeting() + begin(1) + b"\xff\xff\xff\0\0\0\0\0\1"
    for _ in range(256):
        yield bytes(1 << 16)


def large_ping() -> Iterator[bytes]:
    """A frame of 16 MB whose kind has 8 bytes."""
    yield greeting() + b"\xff\xff\xff\6\0\0\0\0\0"
    for _ in range(256):
        yield bytes(1 << 16)


def half_a_frame() -> Iterator[bytes]:
    """A frame that does not end."""
    yield greeting() + begin(1) + b"\0\x80\0\0\0\0\0\0\1" + bytes(30_000)


def settings_flood() -> Iterator[bytes]:
    """Settings that change and are acknowledged, for ever."""
    one, other = (frame(SETTINGS, 0, 0, struct.pack(">HI", 4, size)) for size in (100, 65535))
    return repeated(b"", one + other, 100_000)


def table_sizes() -> Iterator[bytes]:
    """Sizes of the header table, the largest first."""
    one, other = (frame(SETTINGS, 0, 0, struct.pack(">HI", 1, size)) for size in (2**32 - 1, 0))
    return repeated(b"", one + other, 100_000)


def unknown_settings() -> Iterator[bytes]:
    """All 65,536 settings that there can be."""
    yield greeting()
    for first in range(100, 65_000, 80):
        yield frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", number, 1) for number in range(first, first + 80)))


def ping_flood() -> Iterator[bytes]:
    """Each is to be answered."""
    return repeated(b"", frame(PING, 0, 0, b"12345678"), 200_000)


def priority_flood() -> Iterator[bytes]:
    """Of streams that do not exist."""
    return repeated(b"", frame(PRIORITY, 0, 3, struct.pack(">IB", 0, 16)), 200_000)


def window_flood() -> Iterator[bytes]:
    """The connection's window grows by a byte at a time."""
    return repeated(b"", frame(WINDOW, 0, 0, struct.pack(">I", 1)), 200_000)


def unknown_frames() -> Iterator[bytes]:
    """Of a kind that is to be ignored."""
    return repeated(b"", frame(99, 0, 0, b"x"), 200_000)


def empty_data() -> Iterator[bytes]:
    """A body of no bytes in many frames."""
    return repeated(begin(1), frame(DATA, 0, 1), 200_000)


def padding() -> Iterator[bytes]:
    """A body that is all padding."""
    return repeated(begin(1), frame(DATA, PADDED, 1, b"\xff" + bytes(255)), 50_000)


def small_data() -> Iterator[bytes]:
    """A body in frames of a byte."""
    return repeated(begin(1) + frame(DATA, 0, 1, b"\0\0\x10\0\0"), frame(DATA, 0, 1, b"x"), 100_000)


def rapid_reset() -> Iterator[bytes]:
    """Calls that are taken back as soon as they are begun."""
    yield greeting()
    for first in range(1, 40_000, 200):
        yield b"".join(
            begin(number) + frame(RESET, 0, number, struct.pack(">I", 8)) for number in range(first, first + 200, 2)
        )


def resets_by_the_server() -> Iterator[bytes]:
    """Calls that make the server reset them: their windows grow too large."""
    yield greeting()
    for first in range(1, 40_000, 200):
        yield b"".join(
            begin(number) + frame(WINDOW, 0, number, struct.pack(">I", 2**31 - 1))
            for number in range(first, first + 200, 2)
        )


def trailers() -> Iterator[bytes]:
    """A call with headers of 30 kB behind its body, again and again."""
    yield greeting()
    block = bytes(Encoder().encode([(f"x-{number}", "y" * 250) for number in range(80)]))
    for number in numbers(_STREAMS):
        yield begin(number) + frame(HEADERS, END_HEADERS | END_STREAM, number, block)


def large_metadata() -> Iterator[bytes]:
    """All streams open, each with 30 kB of headers in Huffman's code."""
    yield greeting()
    for number in numbers(_STREAMS):
        yield begin(number, INFER, ("x", "y" * 10_000), ("z", "y" * 10_000), ("grpc-timeout", "1" * 9_000))


def header_bomb() -> Iterator[bytes]:
    """One header of 4 kB in the table, meant by a byte each time."""
    block = fields(INFER, ("bomb", "x" * 4000))
    yield greeting() + frame(HEADERS, END_HEADERS, 1, block)
    for number in numbers(_STREAMS)[1:]:
        yield frame(HEADERS, END_HEADERS, number, b"\xbe" * 16_000)


def small_headers() -> Iterator[bytes]:
    """As many headers as a block has room for."""
    yield greeting()
    for number in numbers(_STREAMS):
        yield frame(HEADERS, END_HEADERS, number, fields(INFER) + b"\0\1x\0" * 7000)


def beginnings() -> Iterator[bytes]:
    """All streams open, each with the beginning of a large message."""
    yield greeting() + b"".join(begin(number) for number in numbers(_STREAMS))
    for number in numbers(_STREAMS):
        yield frame(DATA, 0, number, struct.pack(">BI", 0, 1 << 25) + b"x" * 100)


def large_messages() -> Iterator[bytes]:
    """4 MB each of messages that do not end, as much as the windows let through."""
    yield greeting()
    for number in numbers(2):
        yield begin(number) + frame(DATA, 0, number, struct.pack(">BI", 0, 1 << 25))
        for _ in range(255):
            yield frame(DATA, 0, number, bytes(_PIECE_BYTES))


def small_messages() -> Iterator[bytes]:
    """Two megabytes of empty messages, for a method that takes many."""
    yield greeting() + begin(1, STREAM_INFER)
    for _ in range(128):
        yield frame(DATA, 0, 1, bytes(_PIECE_BYTES // 5 * 5))


def answers_nobody_takes() -> Iterator[bytes]:
    """Calls whose answers have no window, and their client does not care."""
    yield greeting((4, 0))
    yield b"".join(begin(number, LIVE) + frame(DATA, END_STREAM, number, bytes(5)) for number in numbers(_STREAMS))


def window_of_a_byte() -> Iterator[bytes]:
    """Calls whose answers are taken a byte at a time."""
    yield greeting((4, 1))
    yield b"".join(begin(number, LIVE) + frame(DATA, END_STREAM, number, bytes(5)) for number in numbers(_STREAMS))
    for _ in range(10):
        yield b"".join(frame(WINDOW, 0, number, struct.pack(">I", 1)) for number in numbers(_STREAMS))


ENDED: Final[Mapping[str, Conversation]] = {
    make.__name__: make
    for make in (
        continuations,
        large_continuations,
        small_continuations,
        empty_continuations,
        large_frame,
        large_ping,
        settings_flood,
        table_sizes,
        unknown_settings,
        ping_flood,
        priority_flood,
        window_flood,
        unknown_frames,
        empty_data,
        padding,
        small_data,
        rapid_reset,
        resets_by_the_server,
        trailers,
        large_metadata,
        header_bomb,
        small_headers,
    )
}
"""Those whose connection is ended for them."""

SERVED: Final[Mapping[str, Conversation]] = {
    make.__name__: make
    for make in (
        half_a_frame,
        beginnings,
        large_messages,
        small_messages,
        answers_nobody_takes,
        window_of_a_byte,
    )
}
"""Those who only hold what they have sent, or whose calls alone are refused."""
