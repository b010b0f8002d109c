"""Hostile HTTP/1.1 clients by name: the pieces that each connection sends, and its timing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Final

from hostile_texts import HEADER_VALUES, QUERIES, repeated
from support import data_of

MakePieces = Callable[[int], Iterable[bytes]]

PIECE_BYTES: Final = 1 << 16
SLOW_PIECES: Final = 300
_HOST: Final = b"Host: localhost\r\n"
_END: Final = b"Connection: close\r\n\r\n"
_ROWS: Final = data_of("hostile_heads")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The bytes that each of several connections sends: `size` bytes in a full run, `short` in a quick test.

    The client pauses for `pause_s` between pieces. After the last piece it keeps the connection open for `hold_s`,
    answered or not; 0 waits for the answer. `reads`: whether the client reads answers that arrive.
    """

    pieces: MakePieces
    size: int = 0
    short: int = 0
    connections: int = 1
    short_connections: int = 1
    pause_s: float = 0.0
    reads: bool = True
    hold_s: float = 0.0


def head(path: str, *fields: bytes, method: str = "POST") -> bytes:
    return f"{method} {path} HTTP/1.1\r\n".encode() + _HOST + b"".join(line + b"\r\n" for line in fields)


def request(path: str, content_type: str, body: bytes, *fields: bytes) -> list[bytes]:
    """A complete request with Connection: close."""
    kind = (b"Content-Type: " + content_type.encode("latin-1"),) if content_type else ()
    return [head(path, *kind, *fields, b"Content-Length: %d" % len(body)) + _END, body]


def _get(*fields: bytes, path: str = "/v1/ocr") -> list[bytes]:
    return [head(path, *fields, b"Content-Length: 1") + _END + b"x"]


def _fields(fields: Sequence[str], _size: int) -> list[bytes]:
    return _get(*(field.encode() for field in fields))


def _plain(text: bytes) -> MakePieces:
    return lambda _size: [text]


def _flooded(start: bytes, piece: bytes, end: bytes = b"") -> MakePieces:
    many = repeated(piece, PIECE_BYTES)
    return lambda size: chain([start], repeat(many, max(1, size // len(many))), [end] if end else [])


_CHUNKED_HEAD: Final = head("/v1/ocr", b"Content-Type: image/png", b"Transfer-Encoding: chunked")


def _chunked(chunk: bytes) -> MakePieces:
    return _flooded(_CHUNKED_HEAD + _END, chunk, b"0\r\n\r\n")


def _large_body(size: int) -> list[bytes]:
    return request("/v1/ocr", "image/png", bytes(size))


# The first bytes of a TLS ClientHello; its length fields announce 512 bytes.
CLIENT_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)

_MB: Final = 1_000_000


def _slow(start: bytes, pieces: Sequence[bytes]) -> Conversation:
    """Send a piece every 0.1 s: 1.2 kB/s with pieces of 120 bytes."""
    return Conversation(lambda _: [start, *pieces], pause_s=0.1, connections=120, short_connections=24, short=1)


def _silent(text: bytes, connections: int = 120) -> Conversation:
    return Conversation(_plain(text), connections=connections, short_connections=24, hold_s=30.0)


def _field(name: str, value: bytes) -> Conversation:
    return Conversation(lambda _size: _get(name.encode() + b": " + value))


CONVERSATIONS: Final[Mapping[str, Conversation]] = {
    "slow_bodies": _slow(
        head("/v1/ocr", b"Content-Type: image/png", b"Content-Length: 1000000") + b"\r\n", [b"\x89" * 120] * SLOW_PIECES
    ),
    "slow_forms": _slow(
        head("/ocr", b"Content-Type: multipart/form-data; boundary=x", b"Content-Length: 1000000") + b"\r\n--x\r\n",
        [b"A" * 120] * SLOW_PIECES,
    ),
    "slow_chunks": _slow(_CHUNKED_HEAD + b"\r\n", [b"1\r\na\r\n"] * SLOW_PIECES),
    "slow_heads": _slow(
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", [b"X-%d: a\r\n" % number for number in range(SLOW_PIECES)]
    ),
    "half_tls_handshakes": _silent(CLIENT_HELLO, 80),
    "large_bodies_at_once": Conversation(_large_body, 60 * _MB, 100_000, connections=12, short_connections=4),
    "endless_request_line": Conversation(_flooded(b"GET /", b"a"), 60 * _MB, 200_000),
    "endless_header": Conversation(_flooded(head("/v1/ocr") + b"A: ", b"a"), 60 * _MB, 200_000),
    "endless_headers": Conversation(_flooded(head("/v1/ocr"), b"A: b\r\n"), 60 * _MB, 200_000),
    "line_breaks": Conversation(_flooded(b"", b"\r\n"), 60 * _MB, 200_000),
    "nulls": Conversation(_flooded(b"", b"\0"), 60 * _MB, 200_000),
    "chunks_of_a_byte": Conversation(_chunked(b"1\r\na\r\n"), 12 * _MB, 200_000),
    "chunks_with_zeros": Conversation(_chunked(b"0" * 4000 + b"1\r\na\r\n"), 12 * _MB, 200_000),
    "chunk_extensions": Conversation(_chunked(b"1;" + b"a=b;" * 1000 + b"\r\na\r\n"), 60 * _MB, 200_000),
    "endless_chunk_size": Conversation(_chunked(b"0"), 12 * _MB, 200_000),
    "endless_chunk_extension": Conversation(
        _flooded(head("/v1/ocr", b"Transfer-Encoding: chunked") + b"\r\n1;", b"a"), 60 * _MB, 200_000
    ),
    "large_chunks": Conversation(_chunked(b"10000\r\n" + bytes(65536) + b"\r\n"), 60 * _MB, 200_000, connections=4),
    "trailers": Conversation(
        _flooded(_CHUNKED_HEAD + _END + b"1\r\na\r\n0\r\n", b"A: b\r\n", b"\r\n"), 60 * _MB, 200_000
    ),
    "pipelined": Conversation(
        _flooded(b"", b"GET /version HTTP/1.1\r\n" + _HOST + b"\r\n"), 2 * _MB, 70_000, reads=False, hold_s=5.0
    ),
    "pipelined_bodies": Conversation(
        _flooded(b"", head("/v1/ocr", b"Content-Length: 1") + b"\r\nx"), 2 * _MB, 70_000, reads=False, hold_s=5.0
    ),
    "hundred_headers": Conversation(lambda _: _get(*[b"A%d: b" % number for number in range(90)])),
    "large_headers": Conversation(lambda _: _get(*[b"A%d: " % number + b"b" * 8000 for number in range(90)])),
    "cookie_of_60_kb": _field("Cookie", b"a=b; " * 12_000),
    "strange_host": Conversation(_plain(b"GET /healthz HTTP/1.1\r\nHost: " + b"a" * 8000 + b"\r\n" + _END)),
    "folded_headers": Conversation(lambda _: _get(b"A: b" + b"\r\n c" * 2000)),
    "long_length": Conversation(lambda _: [head("/v1/ocr", b"Content-Length: " + b"9" * 4000) + _END]),
    **{name: Conversation(partial(_fields, fields)) for name, fields in _ROWS["fields"].items()},
    **{name: Conversation(_plain(text.encode())) for name, text in _ROWS["requests"].items()},
    **{name: _silent(text.encode()) for name, text in _ROWS["silent"].items()},
    "expects_nonsense": _field("Expect", b"a" * 4000),
}


def header_conversations() -> dict[str, Conversation]:
    """Each header with each hostile value of up to 8,000 bytes."""
    return {
        f"header {name} {kind}": _field(name, make(8_000))
        for name, makes in HEADER_VALUES.items()
        for kind, make in makes.items()
    }


def _query(path: str, text: str, _size: int) -> list[bytes]:
    return _get(path=f"{path}?{text}")


def query_conversations(path: str) -> dict[str, Conversation]:
    """Each hostile query string on a path, up to the maximum length of a request line."""
    texts = {kind: make(3_800).decode() for kind, make in QUERIES.items()}
    return {f"query {kind}": Conversation(partial(_query, path, text)) for kind, text in texts.items()}
