"""Malformed HTTP/2 connections to a gRPC server."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence

from hpack import Encoder

from bench.malformed_messages import GoodCall, change_bytes, cut, double, mutate_message
from ocrsvc.grpc_server.messages import frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PROMISE, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, PRIORITISED, ACK = 1, 4, 8, 32, 1
MAX_BYTES = 1 << 18
MAX_DATA_BYTES = 1 << 14
_STREAMS = (0, 1, 2, 3, 5, 7, 2**31 - 1)
_SETTINGS = (0, 1, 2, 3, 4, 5, 6, 8, 255, 65535)
_GOOD_SETTINGS = ((1, 0), (1, 4096), (3, 0), (3, 100), (4, 0), (4, 65535), (4, 2**31 - 1), (5, 16384), (6, 1), (99, 7))
_AMOUNTS = (0, 1, 9, 100, 16383, 16384, 65535, 2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1)
_ODD_HEADERS = (
    *((":path", "/x"), (":method", "GET"), (":status", "200"), (":scheme", ""), (":authority", "")),
    *(("content-type", "text/html"), ("content-type", "application/grpc+json"), ("content-length", "-1")),
    *(("content-length", "3"), ("te", "gzip"), ("connection", "close"), ("transfer-encoding", "chunked")),
    *(("grpc-timeout", "99999999H"), ("grpc-timeout", "0n"), ("grpc-timeout", "x"), ("grpc-timeout", "1S1S")),
    *(("grpc-encoding", "gzip"), ("grpc-encoding", "deflate"), ("grpc-encoding", "br"), ("grpc-encoding", "")),
    *(("Upper", "x"), ("", "x"), ("x", "\r\nx: y"), ("x", "\0"), ("x", "é"), ("x", "y" * 20_000), ("cookie", "a=b")),
)

Pattern = Callable[["FrameWriter"], None]


class FrameWriter:
    """Builds the bytes that one client sends, frame by frame.

    Args:
        calls: Well-formed calls.
        rng: Source of all random choices.

    Attributes:
        written: The bytes so far, beginning with the connection preface.
    """

    def __init__(self, calls: Sequence[GoodCall], rng: random.Random) -> None:
        self.rng = rng
        self.written = bytearray(PREFACE)
        self._calls = calls
        self._encoder = Encoder()
        self._next = 1
        self.frame(SETTINGS, 0, 0, b"")

    def frame(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        """Add a frame."""
        self.written += struct.pack(">I", len(payload))[1:] + bytes([kind & 255, flags]) + struct.pack(">I", stream)
        self.written += payload

    def number(self) -> int:
        """Take an unused stream number."""
        self._next += 2
        return self._next - 2

    def headers(self, path: str, *more: tuple[str, str]) -> bytes:
        """The header block of a call."""
        plain = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        return self._encoder.encode([*plain, ("content-type", "application/grpc"), ("te", "trailers"), *more])

    def begin(self, path: str = "", *more: tuple[str, str], flags: int = END_HEADERS) -> int:
        """Add the headers of a call; returns the stream number."""
        number = self.number()
        self.frame(HEADERS, flags, number, self.headers(path or self.rng.choice(self._calls).path, *more))
        return number

    def call(self, *more: tuple[str, str], is_malformed: bool = False, ended: bool = True) -> int:
        """Add a whole call, malformed if `is_malformed`; returns the stream number."""
        chosen = self.rng.choice(self._calls)
        data = chosen.data
        if is_malformed:
            data = mutate_message(data, [call.data for call in self._calls], self.rng)
        number = self.begin(chosen.path, *more)
        self.data(number, frame(data), ended=ended)
        return number

    def data(self, number: int, data: bytes, *, ended: bool) -> None:
        """Add data as DATA frames."""
        while len(data) > MAX_DATA_BYTES:
            self.frame(DATA, 0, number, data[:MAX_DATA_BYTES])
            data = data[MAX_DATA_BYTES:]
        self.frame(DATA, END_STREAM if ended else 0, number, data)

    def times(self, most: int) -> range:
        """A repeat count, usually small; large ones are rare because a flood costs as much as a hundred connections."""
        return range(self.rng.choices((1, 2, 5, most // 10, most), (8, 8, 8, 1, 0.5))[0])


def malformed_connection(calls: Sequence[GoodCall], rng: random.Random) -> list[bytes]:
    """The bytes that one client sends, split into the pieces in which they arrive."""
    writer = FrameWriter(calls, rng)
    for _ in range(rng.randint(1, 3)):
        rng.choice(PATTERNS)(writer)
    written = bytes(writer.written)
    if rng.random() < 0.4:
        written = rng.choice((change_bytes, cut, double))(written, (), rng)
    return _in_pieces(written[:MAX_BYTES], rng)


def _in_pieces(written: bytes, rng: random.Random) -> list[bytes]:
    ends = sorted(rng.randint(0, len(written)) for _ in range(rng.choice((0, 0, 1, 3))))
    return [written[start:end] for start, end in zip([0, *ends], [*ends, len(written)], strict=True) if end > start]


def _good_calls(writer: FrameWriter) -> None:
    for _ in writer.times(10):
        writer.call()


def _malformed_calls(writer: FrameWriter) -> None:
    for _ in writer.times(10):
        writer.call(is_malformed=True, ended=writer.rng.random() < 0.9)


def _malformed_framing(writer: FrameWriter) -> None:
    """The gRPC message prefix with wrong flags or lengths, too few or too many bytes, or wrongly compressed data."""
    rng = writer.rng
    number = writer.begin("", *rng.sample(_ODD_HEADERS[12:], rng.randint(0, 2)))
    data = rng.choice((b"", b"x", b"\x0a\x03ocr", zlib.compress(b"\x0a\x03ocr"), zlib.compress(bytes(10**6))))
    length = rng.choice((len(data), 0, 1, len(data) + 1, 2**24, 2**31, 2**32 - 1))
    for _ in writer.times(200):
        writer.data(number, bytes([rng.choice((0, 0, 1, 1, 2, 255))]) + struct.pack(">I", length) + data, ended=False)
    writer.data(number, rng.choice((b"", b"\0", b"\0\0\0\0")), ended=rng.random() < 0.8)


def _odd_headers(writer: FrameWriter) -> None:
    rng = writer.rng
    for _ in writer.times(20):
        more = rng.sample(_ODD_HEADERS, rng.randint(1, 3))
        writer.call(*more, is_malformed=rng.random() < 0.3)


def _resets(writer: FrameWriter) -> None:
    """Calls that are reset at once, repeatedly."""
    for _ in writer.times(800):
        number = writer.call(ended=False) if writer.rng.random() < 0.1 else writer.begin()
        writer.frame(RST, 0, number, struct.pack(">I", writer.rng.choice((8, 0, 2**32 - 1))))


def _settings(writer: FrameWriter) -> None:
    rng = writer.rng
    for _ in writer.times(2000):
        pairs = rng.choices(_GOOD_SETTINGS, k=rng.randint(0, 3))
        if rng.random() < 0.001:
            pairs.append((rng.choice(_SETTINGS), rng.choice(_AMOUNTS)))
        payload = b"".join(struct.pack(">HI", *pair) for pair in pairs)
        writer.frame(SETTINGS, ACK if rng.random() < 0.001 else 0, 0, payload + bytes(rng.random() < 0.001))


def _few_settings(writer: FrameWriter) -> None:
    """Valid but inconvenient settings, then calls."""
    rng = writer.rng
    payload = struct.pack(">HI", 4, rng.choice((0, 1, 100, 2**31 - 1))) + struct.pack(">HI", 1, rng.choice((0, 64)))
    writer.frame(SETTINGS, 0, 0, payload)
    _good_calls(writer)
    for _ in writer.times(100):
        writer.frame(WINDOW, 0, rng.choice((0, 1, 3)), struct.pack(">I", rng.choice((1, 9, 100))))
    writer.frame(SETTINGS, 0, 0, struct.pack(">HI", 4, rng.choice((0, 65535))))


def _windows(writer: FrameWriter) -> None:
    number = writer.begin()
    for _ in writer.times(1000):
        amount = writer.rng.choice(_AMOUNTS) if writer.rng.random() < 0.002 else writer.rng.choice((1, 100, 16384))
        stream = writer.rng.choice(_STREAMS) if writer.rng.random() < 0.002 else writer.rng.choice((0, number))
        writer.frame(WINDOW, 0, stream, struct.pack(">I", amount))


def _pings(writer: FrameWriter) -> None:
    for _ in writer.times(3000):
        data = writer.rng.choice((b"12345678", b"goodbye!")) if writer.rng.random() < 0.999 else b"short"
        writer.frame(PING, writer.rng.choice((0, 0, ACK)), 0, data)


def _continuations(writer: FrameWriter) -> None:
    """A header block that never ends, ends late, or is interrupted by another frame."""
    rng = writer.rng
    number = writer.begin(flags=rng.choice((0, END_STREAM)))
    for _ in writer.times(500):
        writer.frame(CONTINUATION, 0, number, rng.choice((b"", b"\x82", b"\x40\x01a\x01b", b"x" * 100)))
    if rng.random() < 0.3:
        writer.frame(rng.randrange(10), 0, rng.choice(_STREAMS), b"12345678")
    writer.frame(CONTINUATION, END_HEADERS, number, rng.choice((b"", b"\xff")))


def _header_bombs(writer: FrameWriter) -> None:
    """Short header blocks that decode to large ones: references to the dynamic table, and endless integers."""
    rng, number = writer.rng, writer.number()
    block = writer.headers("/x", ("bomb", "x" * 4000))
    more = (
        b"\xbe" * 5000,
        b"\xff" * 50,
        b"\x3f\xe1\xff\x03" * 20,
        b"\x80",
        b"\x40" + b"\x7f" + b"\xff" * 9,
        b"\x20" * 99,
    )
    writer.frame(HEADERS, END_HEADERS | rng.choice((0, END_STREAM)), number, block + rng.choice(more))


def _empty_data(writer: FrameWriter) -> None:
    number = writer.begin()
    for _ in writer.times(3000):
        writer.frame(DATA, 0, number)
    writer.frame(DATA, END_STREAM, number)


def _padding(writer: FrameWriter) -> None:
    number = writer.begin()
    for _ in writer.times(100):
        payload = bytes([writer.rng.choice((0, 1, 10, 255))]) + bytes(writer.rng.choice((0, 1, 10, 255)))
        writer.frame(DATA, PADDED | writer.rng.choice((0, 0, END_STREAM)), number, payload)


def _trailers(writer: FrameWriter) -> None:
    """Trailers of any kind, with or without the end of the stream; gRPC clients never send trailers."""
    number = writer.call(ended=False)
    for _ in writer.times(10):
        pairs = writer.rng.sample(_ODD_HEADERS, 2)
        flags = END_HEADERS | writer.rng.choice((0, END_STREAM, PRIORITISED, PADDED))
        writer.frame(HEADERS, flags, number, Encoder().encode(pairs))


def _open_streams(writer: FrameWriter) -> None:
    """Calls that send headers only."""
    for _ in writer.times(1100):
        writer.begin()


def _stream_numbers(writer: FrameWriter) -> None:
    for _ in writer.times(20):
        number = writer.rng.choice((*_STREAMS, 9, 101, 2**31 - 3))
        writer.frame(HEADERS, END_HEADERS, number, writer.headers("/x"))
        writer.frame(DATA, writer.rng.choice((0, END_STREAM)), writer.rng.choice(_STREAMS), b"\0\0\0\0\0")


def _goaway(writer: FrameWriter) -> None:
    writer.call()
    written = struct.pack(">II", writer.rng.choice(_STREAMS), writer.rng.choice((0, 0, 1, 11, 2**32 - 1)))
    writer.frame(GOAWAY, 0, 0, written + writer.rng.choice((b"", b"why", bytes(5000))))
    writer.call()


def _priorities(writer: FrameWriter) -> None:
    for _ in writer.times(2000):
        number, parent = writer.rng.choice(
            ((1, 3), (3, 1), (5, 0), (7, 5), (1, 1 if writer.rng.random() < 0.01 else 0))
        )
        payload = struct.pack(">IB", parent, 5)
        writer.frame(PRIORITY, 0, number, payload if writer.rng.random() < 0.999 else payload[1:])


def _noise(writer: FrameWriter) -> None:
    rng = writer.rng
    for _ in writer.times(30):
        payload = rng.randbytes(rng.choice((0, 1, 4, 5, 6, 8, 9, 40)))
        writer.frame(rng.randrange(14), rng.randrange(256), rng.choice(_STREAMS), payload)


def _other_protocols(writer: FrameWriter) -> None:
    """Replace everything so far with bytes that are not valid HTTP/2."""
    del writer.written[:]
    written = (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        PREFACE,
        PREFACE[:10],
        b"\x16\x03\x01\x02\x00\x01",
        PREFACE.lower(),
    )
    writer.written += writer.rng.choice(written) * writer.rng.choice((1, 1, 50))


PATTERNS: tuple[Pattern, ...] = (
    *(
        _good_calls,
        _malformed_calls,
        _malformed_calls,
        _malformed_framing,
        _malformed_framing,
        _odd_headers,
        _resets,
        _settings,
    ),
    *(_few_settings, _windows, _pings, _continuations, _header_bombs, _empty_data, _padding, _trailers),
    *(_open_streams, _stream_numbers, _goaway, _priorities, _noise, _noise, _other_protocols),
)
