"""Hostile HTTP/2 and gRPC conversations by name: floods, decompression bombs, and clients that never finish."""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Final

from hostile_files import jpeg
from hostile_texts import repeated
from hostile_wire import Conversation
from hpack import Encoder

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, _, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
TURBOOCR: Final = "/ocr.OCRService/"
LIVE: Final = "/inference.GRPCInferenceService/ServerLive"
STREAM_METHOD: Final = "/inference.GRPCInferenceService/ModelStreamInfer"

_FRAME_BYTES: Final = 1 << 14
_MB: Final = 1_000_000
_FIELDS: Final = ((":method", "POST"), (":scheme", "http"), (":authority", "localhost"))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def greeting(*pairs: tuple[int, int]) -> bytes:
    """The connection preface and a SETTINGS frame with these (identifier, value) pairs."""
    return PREFACE + frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


@cache
def fields(path: str = METHOD, *more: tuple[str, str]) -> bytes:
    """The header block of a call, encoded without references to earlier blocks."""
    own = [*_FIELDS, (":path", path), ("content-type", "application/grpc"), ("te", "trailers")]
    return bytes(Encoder().encode([*own, *more]))


def call(stream: int, message: bytes, path: str = METHOD, *more: tuple[str, str]) -> bytes:
    body = struct.pack(">BI", 0, len(message)) + message
    frames = [body[at : at + _FRAME_BYTES] for at in range(0, len(body), _FRAME_BYTES)]
    data = b"".join(frame(DATA, 0, stream, piece) for piece in frames)
    return frame(HEADERS, END_HEADERS, stream, fields(path, *more)) + data + frame(DATA, END_STREAM, stream)


def _flood(begin: bytes, again: bytes) -> Callable[[int], Iterator[bytes]]:
    """Send `begin` once, then `again` repeatedly until `size` bytes are sent."""
    many = again * max(1, (1 << 16) // len(again))

    def pieces(size: int) -> Iterator[bytes]:
        yield greeting() + begin
        for _ in range(max(1, size // len(many))):
            yield many

    return pieces


def _of_streams(make: Callable[[int], bytes], *settings: tuple[int, int]) -> Callable[[int], Iterator[bytes]]:
    """Send the frames that `make` returns for new stream numbers until `size` bytes are sent."""

    def pieces(size: int) -> Iterator[bytes]:
        yield greeting(*settings)
        sent, stream = 0, 1
        while sent < size:
            piece = b"".join(make(number) for number in range(stream, stream + 200, 2))
            sent, stream = sent + len(piece), stream + 200
            yield piece

    return pieces


def begin(stream: int, path: str = METHOD, *more: tuple[str, str]) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, fields(path, *more))


def _one_call(make: Callable[[int], bytes], path: str = METHOD) -> Callable[[int], Iterator[bytes]]:
    return lambda size: iter([greeting() + call(1, make(size), path)])


def _header_bomb(size: int) -> Iterator[bytes]:
    """A header table entry of 4 kB, and thousands of one-byte references to it."""
    block = fields(METHOD, ("bomb", "x" * 4000))
    yield greeting()
    for stream in range(1, max(3, size // 5000 * 2), 2):
        yield frame(HEADERS, END_HEADERS, stream, (block if stream == 1 else fields()) + b"\xbe" * 5000)


def _packed_message(size: int) -> Iterator[bytes]:
    """A gzip message that unpacks to `size` zero bytes."""
    packer = zlib.compressobj(9, wbits=31)
    piece = bytes(1 << 20)
    packed = b"".join([packer.compress(piece) for _ in range(max(1, size >> 20))]) + packer.flush()
    body = struct.pack(">BI", 1, len(packed)) + packed
    yield greeting() + frame(HEADERS, END_HEADERS, 1, fields(METHOD, ("grpc-encoding", "gzip")))
    for at in range(0, len(body), _FRAME_BYTES):
        yield frame(DATA, 0, 1, body[at : at + _FRAME_BYTES])
    yield frame(DATA, END_STREAM, 1)


def _messages_in_one_frame(size: int) -> Iterator[bytes]:
    """Frames of a megabyte full of empty messages, for a method with a request stream."""
    yield greeting() + begin(1, STREAM_METHOD)
    most = 1_000_000
    for _ in range(max(1, size // most)):
        yield frame(DATA, 0, 1, bytes(5) * (min(size, most) // 5))


def _large_message(size: int) -> Iterator[bytes]:
    yield greeting() + begin(1)
    yield frame(DATA, 0, 1, struct.pack(">BI", 0, size))
    sent = 0
    while sent < size:
        yield frame(DATA, 0, 1, bytes(_FRAME_BYTES))
        sent += _FRAME_BYTES


def _small_window(_size: int) -> Iterator[bytes]:
    """Calls whose answers the client accepts one byte at a time."""
    yield greeting((4, 1))
    yield b"".join(call(stream, b"", "/inference.GRPCInferenceService/ServerMetadata") for stream in range(1, 101, 2))
    for _ in range(100):
        yield b"".join(frame(WINDOW, 0, stream, struct.pack(">I", 1)) for stream in range(1, 101, 2))


def _bytes_field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def _turboocr_pixels(size: int) -> Iterator[bytes]:
    """An image with fewer pixels than its declared maximum size, then one with as many as declared."""
    side = 16384
    sizes = b"".join(bytes([number << 3]) + _varint(side) for number in (7, 8)) + b"\x48\x03"
    lying = _bytes_field(6, bytes(size)) + sizes
    honest = _bytes_field(6, bytes(size // 3 * 3)) + b"\x38" + _varint(size // 3) + b"\x40\x01\x48\x03"
    yield greeting() + call(1, lying, TURBOOCR + "Recognize")
    yield call(3, honest, TURBOOCR + "Recognize")


_BLOCK: Final = frame(HEADERS, 0, 1, fields())
"""A header block without END_HEADERS."""
_TRAILERS: Final = bytes(Encoder().encode([(f"x-{number}", "y" * 250) for number in range(80)]))
_METADATA: Final = (("x", "y" * 10_000), ("z", "y" * 10_000), ("grpc-timeout", "1" * 9_000))


def _setting(number: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", number, value))


FLOODS: Final[Mapping[str, Callable[[int], Iterator[bytes]]]] = {
    "large_continuations": _flood(_BLOCK, frame(CONTINUATION, 0, 1, bytes(1 << 20))),
    "small_continuations": _flood(_BLOCK, frame(CONTINUATION, 0, 1, b"\x82")),
    # A DATA frame of 16 MB, and a PING of 16 MB, which may have only 8 bytes.
    "large_frame": _flood(begin(1) + b"\xff\xff\xff\0\0\0\0\0\1", bytes(1 << 16)),
    "large_ping": _flood(b"\xff\xff\xff\6\0\0\0\0\0", bytes(1 << 16)),
    # Header table sizes, and tens of thousands of unknown settings.
    "table_sizes": _flood(b"", _setting(1, 2**32 - 1) + _setting(1, 0)),
    "unknown_settings": _of_streams(lambda number: _setting(100 + number % 65_000, 1)),
    "padding": _flood(begin(1), frame(DATA, PADDED, 1, b"\xff" + bytes(255))),
    "small_data": _flood(begin(1) + frame(DATA, 0, 1, b"\0\0\x10\0\0"), frame(DATA, 0, 1, b"x")),
    # Window updates that overflow, so that the server resets their streams.
    "server_resets": _of_streams(lambda stream: begin(stream) + frame(WINDOW, 0, stream, struct.pack(">I", 2**31 - 1))),
    # Per stream: large trailers, 30 kB of Huffman-coded headers, and as many headers as fit in a block.
    "trailers": _of_streams(lambda stream: begin(stream) + frame(HEADERS, END_HEADERS | END_STREAM, stream, _TRAILERS)),
    "large_metadata": _of_streams(lambda stream: begin(stream, METHOD, *_METADATA)),
    "small_headers": _of_streams(lambda stream: frame(HEADERS, END_HEADERS, stream, fields() + b"\0\1x\0" * 7000)),
}
"""Endless frames for which the server must close the connection."""

HELD: Final[Mapping[str, Callable[[int], Iterator[bytes]]]] = {
    "half_a_frame": lambda _: iter([greeting() + begin(1) + b"\0\x80\0\0\0\0\0\0\1" + bytes(30_000)]),
    # Each stream starts a large message and does not finish it.
    "beginnings": _of_streams(
        lambda stream: begin(stream) + frame(DATA, 0, stream, struct.pack(">BI", 0, 1 << 25) + b"x" * 100)
    ),
    "large_messages": _large_message,
    "small_messages": _flood(begin(1, STREAM_METHOD), frame(DATA, 0, 1, bytes(_FRAME_BYTES // 5 * 5))),
    "answers_without_window": _of_streams(lambda stream: call(stream, b"", LIVE), (4, 0)),
    "window_of_a_byte": _small_window,
}
"""Frames that make the server hold received data or unsent answers."""

# No answer ends these conversations, so stop after 2 s.
_talk: Final = partial(Conversation, hold_s=2.0)


FRAMES: Final[Mapping[str, Conversation]] = {
    "continuations": _talk(
        _flood(frame(HEADERS, 0, 1, fields()), frame(CONTINUATION, 0, 1, b"\x00" * _FRAME_BYTES)),
        64 * _MB, 1_000_000, connections=20, short_connections=4
    ),
    "empty_continuations": _talk(
        _flood(frame(HEADERS, 0, 1, fields()), frame(CONTINUATION, 0, 1)), 20 * _MB, 100_000, connections=4
    ),
    "empty_data": _talk(_flood(begin(1), frame(DATA, 0, 1)), 20 * _MB, 100_000, connections=4),
    "settings": _talk(_flood(b"", frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100))), 20 * _MB, 100_000),
    "window_settings": _talk(
        _flood(begin(1), frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1) * 100)), 20 * _MB, 100_000
    ),
    "pings": _talk(_flood(b"", frame(PING, 0, 0, bytes(8))), 20 * _MB, 100_000, reads=False),
    "priorities": _talk(_flood(b"", frame(PRIORITY, 0, 3, struct.pack(">IB", 1, 5))), 20 * _MB, 100_000),
    "windows": _talk(_flood(begin(1), frame(WINDOW, 0, 1, struct.pack(">I", 1))), 20 * _MB, 100_000),
    "unknown_frames": _talk(_flood(b"", frame(250, 0, 0, b"a")), 20 * _MB, 100_000),
    "resets": _talk(_of_streams(lambda stream: begin(stream) + frame(RESET, 0, stream, bytes(4))), 10 * _MB, 100_000),
    "open_streams": _talk(_of_streams(begin), 10 * _MB, 100_000, connections=4),
    "calls": _talk(_of_streams(lambda stream: call(stream, b"")), 5 * _MB, 50_000, reads=False),
    "header_bomb": _talk(_header_bomb, 20 * _MB, 50_000),
    "packed_message": _talk(_packed_message, 1 << 30, 1 << 22),
    "empty_messages": _talk(_messages_in_one_frame, 3 * _MB, 100_000),
    "large_messages": _talk(_large_message, 60 * _MB, 500_000, connections=8, short_connections=2),
    # Repeated inputs, raw contents, nested inputs, and a varint that does not end.
    "message_of_inputs": _talk(_one_call(partial(repeated, b"\x2a\x00")), 3 * _MB, 100_000),
    "message_of_contents": _talk(_one_call(partial(repeated, b"\x3a\x00")), 3 * _MB, 100_000),
    "message_of_nested_inputs": _talk(_one_call(partial(repeated, b"\x2a\x02\x2a\x00")), 3 * _MB, 100_000),
    "message_of_varints": _talk(_one_call(partial(repeated, b"\xff")), 3 * _MB, 100_000),
    "turboocr_no_images": _talk(
        _one_call(partial(repeated, b"\x0a\x00"), TURBOOCR + "RecognizeBatch"), 3 * _MB, 100_000
    ),
    # A batch of many small valid images.
    "turboocr_images": _talk(
        _one_call(partial(repeated, _bytes_field(1, jpeg())), TURBOOCR + "RecognizeBatch"), 10 * _MB, 100_000
    ),
    "turboocr_pixels": _talk(_turboocr_pixels, 20 * _MB, 100_000),
    "small_window": _talk(_small_window, pause_s=0.1, connections=10),
    "silent": _talk(lambda _: iter([b""]), connections=120, short_connections=24, hold_s=30.0),
    "silent_after_greeting": _talk(lambda _: iter([greeting()]), connections=120, short_connections=24, hold_s=30.0),
    "calls_without_end": _talk(
        lambda _: iter([greeting() + begin(1)]), connections=120, short_connections=24, hold_s=30.0
    ),
    "http1": _talk(lambda _: iter([b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])),
    "nonsense": _talk(_flood(b"", b"\xff" * 9), 20 * _MB, 100_000)
}  # fmt: skip
