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

Scene = Callable[["Talk"], None]


class Talk:
    """Builds the bytes that one client sends, frame by frame.

    Args:
        calls: Well-formed calls.
        chance: Source of all random choices.

    Attributes:
        said: The bytes so far, beginning with the connection preface.
    """

    def __init__(self, calls: Sequence[GoodCall], chance: random.Random) -> None:
        self.chance = chance
        self.said = bytearray(PREFACE)
        self._calls = calls
        self._encoder = Encoder()
        self._next = 1
        self.frame(SETTINGS, 0, 0, b"")

    def frame(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        """Add a frame."""
        self.said += struct.pack(">I", len(payload))[1:] + bytes([kind & 255, flags]) + struct.pack(">I", stream)
        self.said += payload

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
        self.frame(HEADERS, flags, number, self.headers(path or self.chance.choice(self._calls).path, *more))
        return number

    def call(self, *more: tuple[str, str], is_malformed: bool = False, ended: bool = True) -> int:
        """Add a whole call, with a malformed message if asked; returns the stream number."""
        asked = self.chance.choice(self._calls)
        data = asked.data
        if is_malformed:
            data = mutate_message(data, [call.data for call in self._calls], self.chance)
        number = self.begin(asked.path, *more)
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
        return range(self.chance.choices((1, 2, 5, most // 10, most), (8, 8, 8, 1, 0.5))[0])


def malformed_talk(calls: Sequence[GoodCall], chance: random.Random) -> list[bytes]:
    """The bytes that one client sends, split into the pieces in which they arrive."""
    talk = Talk(calls, chance)
    for _ in range(chance.randint(1, 3)):
        chance.choice(SCENES)(talk)
    said = bytes(talk.said)
    if chance.random() < 0.4:
        said = chance.choice((change_bytes, cut, double))(said, (), chance)
    return _in_pieces(said[:MAX_BYTES], chance)


def _in_pieces(said: bytes, chance: random.Random) -> list[bytes]:
    ends = sorted(chance.randint(0, len(said)) for _ in range(chance.choice((0, 0, 1, 3))))
    return [said[start:end] for start, end in zip([0, *ends], [*ends, len(said)], strict=True) if end > start]


def _good_calls(talk: Talk) -> None:
    for _ in talk.times(10):
        talk.call()


def _malformed_calls(talk: Talk) -> None:
    for _ in talk.times(10):
        talk.call(is_malformed=True, ended=talk.chance.random() < 0.9)


def _malformed_framing(talk: Talk) -> None:
    """The gRPC message prefix with wrong flags or lengths, too few or too many bytes, or wrongly compressed data."""
    chance = talk.chance
    number = talk.begin("", *chance.sample(_ODD_HEADERS[12:], chance.randint(0, 2)))
    data = chance.choice((b"", b"x", b"\x0a\x03ocr", zlib.compress(b"\x0a\x03ocr"), zlib.compress(bytes(10**6))))
    length = chance.choice((len(data), 0, 1, len(data) + 1, 2**24, 2**31, 2**32 - 1))
    for _ in talk.times(200):
        talk.data(number, bytes([chance.choice((0, 0, 1, 1, 2, 255))]) + struct.pack(">I", length) + data, ended=False)
    talk.data(number, chance.choice((b"", b"\0", b"\0\0\0\0")), ended=chance.random() < 0.8)


def _odd_headers(talk: Talk) -> None:
    chance = talk.chance
    for _ in talk.times(20):
        more = chance.sample(_ODD_HEADERS, chance.randint(1, 3))
        talk.call(*more, is_malformed=chance.random() < 0.3)


def _resets(talk: Talk) -> None:
    """Calls that are reset at once, repeatedly."""
    for _ in talk.times(800):
        number = talk.call(ended=False) if talk.chance.random() < 0.1 else talk.begin()
        talk.frame(RST, 0, number, struct.pack(">I", talk.chance.choice((8, 0, 2**32 - 1))))


def _settings(talk: Talk) -> None:
    chance = talk.chance
    for _ in talk.times(2000):
        pairs = chance.choices(_GOOD_SETTINGS, k=chance.randint(0, 3))
        if chance.random() < 0.001:
            pairs.append((chance.choice(_SETTINGS), chance.choice(_AMOUNTS)))
        payload = b"".join(struct.pack(">HI", *pair) for pair in pairs)
        talk.frame(SETTINGS, ACK if chance.random() < 0.001 else 0, 0, payload + bytes(chance.random() < 0.001))


def _few_settings(talk: Talk) -> None:
    """Valid but inconvenient settings, then calls."""
    chance = talk.chance
    payload = struct.pack(">HI", 4, chance.choice((0, 1, 100, 2**31 - 1))) + struct.pack(
        ">HI", 1, chance.choice((0, 64))
    )
    talk.frame(SETTINGS, 0, 0, payload)
    _good_calls(talk)
    for _ in talk.times(100):
        talk.frame(WINDOW, 0, chance.choice((0, 1, 3)), struct.pack(">I", chance.choice((1, 9, 100))))
    talk.frame(SETTINGS, 0, 0, struct.pack(">HI", 4, chance.choice((0, 65535))))


def _windows(talk: Talk) -> None:
    number = talk.begin()
    for _ in talk.times(1000):
        amount = talk.chance.choice(_AMOUNTS) if talk.chance.random() < 0.002 else talk.chance.choice((1, 100, 16384))
        stream = talk.chance.choice(_STREAMS) if talk.chance.random() < 0.002 else talk.chance.choice((0, number))
        talk.frame(WINDOW, 0, stream, struct.pack(">I", amount))


def _pings(talk: Talk) -> None:
    for _ in talk.times(3000):
        data = talk.chance.choice((b"12345678", b"goodbye!")) if talk.chance.random() < 0.999 else b"short"
        talk.frame(PING, talk.chance.choice((0, 0, ACK)), 0, data)


def _continuations(talk: Talk) -> None:
    """A header block that never ends, ends late, or is interrupted by another frame."""
    chance = talk.chance
    number = talk.begin(flags=chance.choice((0, END_STREAM)))
    for _ in talk.times(500):
        talk.frame(CONTINUATION, 0, number, chance.choice((b"", b"\x82", b"\x40\x01a\x01b", b"x" * 100)))
    if chance.random() < 0.3:
        talk.frame(chance.randrange(10), 0, chance.choice(_STREAMS), b"12345678")
    talk.frame(CONTINUATION, END_HEADERS, number, chance.choice((b"", b"\xff")))


def _header_bombs(talk: Talk) -> None:
    """Short header blocks that decode to large ones: references to the dynamic table, and endless integers."""
    chance, number = talk.chance, talk.number()
    block = talk.headers("/x", ("bomb", "x" * 4000))
    more = (
        b"\xbe" * 5000,
        b"\xff" * 50,
        b"\x3f\xe1\xff\x03" * 20,
        b"\x80",
        b"\x40" + b"\x7f" + b"\xff" * 9,
        b"\x20" * 99,
    )
    talk.frame(HEADERS, END_HEADERS | chance.choice((0, END_STREAM)), number, block + chance.choice(more))


def _empty_data(talk: Talk) -> None:
    number = talk.begin()
    for _ in talk.times(3000):
        talk.frame(DATA, 0, number)
    talk.frame(DATA, END_STREAM, number)


def _padding(talk: Talk) -> None:
    number = talk.begin()
    for _ in talk.times(100):
        payload = bytes([talk.chance.choice((0, 1, 10, 255))]) + bytes(talk.chance.choice((0, 1, 10, 255)))
        talk.frame(DATA, PADDED | talk.chance.choice((0, 0, END_STREAM)), number, payload)


def _trailers(talk: Talk) -> None:
    """Trailers of any kind, with or without the end of the stream; gRPC clients never send trailers."""
    number = talk.call(ended=False)
    for _ in talk.times(10):
        pairs = talk.chance.sample(_ODD_HEADERS, 2)
        flags = END_HEADERS | talk.chance.choice((0, END_STREAM, PRIORITISED, PADDED))
        talk.frame(HEADERS, flags, number, Encoder().encode(pairs))


def _open_streams(talk: Talk) -> None:
    """Calls that send headers only."""
    for _ in talk.times(1100):
        talk.begin()


def _stream_numbers(talk: Talk) -> None:
    for _ in talk.times(20):
        number = talk.chance.choice((*_STREAMS, 9, 101, 2**31 - 3))
        talk.frame(HEADERS, END_HEADERS, number, talk.headers("/x"))
        talk.frame(DATA, talk.chance.choice((0, END_STREAM)), talk.chance.choice(_STREAMS), b"\0\0\0\0\0")


def _goodbye(talk: Talk) -> None:
    talk.call()
    said = struct.pack(">II", talk.chance.choice(_STREAMS), talk.chance.choice((0, 0, 1, 11, 2**32 - 1)))
    talk.frame(GOAWAY, 0, 0, said + talk.chance.choice((b"", b"why", bytes(5000))))
    talk.call()


def _priorities(talk: Talk) -> None:
    for _ in talk.times(2000):
        number, parent = talk.chance.choice(
            ((1, 3), (3, 1), (5, 0), (7, 5), (1, 1 if talk.chance.random() < 0.01 else 0))
        )
        payload = struct.pack(">IB", parent, 5)
        talk.frame(PRIORITY, 0, number, payload if talk.chance.random() < 0.999 else payload[1:])


def _noise(talk: Talk) -> None:
    chance = talk.chance
    for _ in talk.times(30):
        payload = chance.randbytes(chance.choice((0, 1, 4, 5, 6, 8, 9, 40)))
        talk.frame(chance.randrange(14), chance.randrange(256), chance.choice(_STREAMS), payload)


def _other_protocols(talk: Talk) -> None:
    """Replace everything so far with bytes that are not valid HTTP/2."""
    del talk.said[:]
    said = (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        PREFACE,
        PREFACE[:10],
        b"\x16\x03\x01\x02\x00\x01",
        PREFACE.lower(),
    )
    talk.said += talk.chance.choice(said) * talk.chance.choice((1, 1, 50))


SCENES: tuple[Scene, ...] = (
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
    *(_open_streams, _stream_numbers, _goodbye, _priorities, _noise, _noise, _other_protocols),
)
