"""Splitting, decompressing, parsing and serializing of gRPC messages.

Fields are counted before parsing, because two bytes of a message can become an object of a hundred bytes.
"""

import re
import struct
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from google.protobuf.message import DecodeError

from ocrsvc.grpc_server import limits
from ocrsvc.grpc_server.method import CallFailed, Code
from ocrsvc.serving.decompression import Damaged, TooLarge, decompress
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.request_guard import take_body

ENCODINGS: Final = {"gzip": 31, "deflate": 15}
"""zlib's window bits per accepted compression."""

_PREFIX: Final = struct.Struct(">BI")
PREFIX_BYTES: Final = _PREFIX.size
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
# Characters not percent-encoded in grpc-message: printable ASCII except "%".
_UNESCAPED: Final = bytes(range(0x20, 0x7F)).replace(b"%", b"")
_VARINT, _BYTES = 0, 2
# Size of a value by wire type: 1 has 64 bits, 3 and 4 begin and end a group, 5 has 32 bits.
_FIXED_BYTES: Final = {1: 8, 3: 0, 4: 0, 5: 4}


@dataclass(slots=True)
class ReceivedMessage:
    """A received message; `encoding` is one of ENCODINGS or None, `max_bytes` limits the decompressed size."""

    data: memoryview
    encoding: str | None
    max_bytes: int

    def parse(self, kind: Any, share: Share) -> Any:
        """Parse as class `kind`, freeing the bytes; `share` holds the result's memory. Raises CallFailed, QueueFull."""
        take_body(self.data)
        data = self.decompress(share)
        self.data, received_bytes = memoryview(b""), share.held_bytes
        parsed = parse(kind, data, share)
        share.give_back(received_bytes)
        return parsed

    def decompress(self, share: Share) -> memoryview | bytes:
        """The decompressed bytes; takes their memory from `share`. Raises as `parse`."""
        if self.encoding is None:
            return self.data
        try:
            return decompress(self.data, ENCODINGS[self.encoding], self.max_bytes, share)
        except TooLarge as error:
            text = f"The decompressed message exceeds {self.max_bytes} bytes."
            raise CallFailed(Code.RESOURCE_EXHAUSTED, text) from error
        except Damaged as error:
            raise CallFailed(Code.INTERNAL, f"The compressed message is damaged: {error}.") from error


class MessageReader:
    """Splits the bytes of one call into messages; `encoding` is the value of its grpc-encoding."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._encoding, self._max_bytes = encoding, max_bytes
        # Received bytes that `take` has not returned yet.
        self.data = bytearray()

    def is_plain(self, max_bytes: int) -> bool:
        """Whether the next message (must be complete) is uncompressed and has at most `max_bytes` with its prefix."""
        compressed, length = self._next()
        return not compressed and PREFIX_BYTES + length <= max_bytes

    def is_last(self) -> bool:
        """Whether no bytes follow the next message. Call it only when that message is complete."""
        return len(self.data) == PREFIX_BYTES + self._next()[1]

    def is_ready(self) -> bool:
        """Whether the next message is complete. Raises CallFailed if it is too large or has an unknown encoding."""
        return len(self.data) >= PREFIX_BYTES and len(self.data) >= PREFIX_BYTES + self._next()[1]

    @property
    def waits(self) -> bool:
        """Whether the next message needs no more bytes: it is complete, or too large."""
        if len(self.data) < PREFIX_BYTES:
            return False
        length = int.from_bytes(self.data[1:PREFIX_BYTES])
        return length > self._max_bytes or len(self.data) >= PREFIX_BYTES + length

    def take(self) -> ReceivedMessage:
        """Remove and return the next message, which must be complete. Raises as `is_ready`."""
        compressed, length = self._next()
        end = PREFIX_BYTES + length
        if self.is_last():
            # Usually no bytes follow the message, so that the buffer itself can be used without a copy.
            data, self.data = memoryview(self.data)[PREFIX_BYTES:], bytearray()
        else:
            data = memoryview(bytes(self.data[PREFIX_BYTES:end]))
            del self.data[:end]
        return ReceivedMessage(data, self._encoding if compressed else None, self._max_bytes)

    def _next(self) -> tuple[int, int]:
        """The next message's flag "compressed" and its length. Raises CallFailed."""
        compressed, length = _PREFIX.unpack_from(self.data)
        if length > self._max_bytes:
            message = f"The message has more than {self._max_bytes} bytes ({length})."
            raise CallFailed(Code.RESOURCE_EXHAUSTED, message)
        if compressed and (compressed > 1 or self._encoding not in ENCODINGS):
            raise CallFailed(Code.UNIMPLEMENTED, f"Unknown grpc-encoding {self._encoding[:40]!r}.")
        return compressed, length


@dataclass(slots=True)
class Answer:
    """The unsent rest of a serialized answer; `share` holds its memory until it is sent."""

    data: memoryview
    share: Share


def pack(response: Any, share: Share) -> Answer:
    """Serialize a response, and take its memory from `share`. Raises QueueFull, BodyTooLarge."""
    share.take(limits.ANSWER_COPIES * (PREFIX_BYTES + response.ByteSize()))
    data = frame(response.SerializeToString())
    share.give_back((limits.ANSWER_COPIES - 1) * len(data))
    return Answer(memoryview(data), share)


def frame(message: bytes) -> bytes:
    """Add the 5-byte gRPC prefix of an uncompressed message."""
    return _PREFIX.pack(0, len(message)) + message


def timeout_s(text: str) -> float:
    """Parse a grpc-timeout such as "500m" into seconds. Raises CallFailed."""
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise CallFailed(Code.INVALID_ARGUMENT, f"grpc-timeout is {text[:40]!r}, which is not a time.")
    return int(match[1]) * _UNITS_S[match[2]]


def escaped(text: str) -> str:
    """Percent-encode the first 4000 characters of a status text for grpc-message."""
    return quote(text[:4000], safe=_UNESCAPED)


def parse(kind: Any, data: bytes | memoryview, share: Share) -> Any:
    """Parse a message of class `kind`, and take its memory from `share`. Raises as ReceivedMessage.parse."""
    try:
        share.take(_count_fields(kind.DESCRIPTOR, data) * limits.FIELD_BYTES + limits.CONTENT_COPIES * len(data))
        return kind.FromString(data)
    except (DecodeError, IndexError, ValueError) as error:
        raise CallFailed(Code.INVALID_ARGUMENT, "The message cannot be decoded.") from error


def _count_fields(descriptor: Any, data: bytes | memoryview) -> int:
    """Count a message's fields. Raises CallFailed above limits.MAX_FIELDS; IndexError, ValueError if malformed."""
    count, open_ = 0, [(descriptor, 0, len(data))]
    while open_:
        inside, at, end = open_.pop()
        while at < end:
            tag, at = _read_varint(data, at)
            count += 1
            at, length = _skip(tag & 7, data, at)
            field = inside.fields_by_number.get(tag >> 3)
            if length and field is not None and field.message_type is not None:
                open_.append((field.message_type, at - length, at))
            elif length and field is not None and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
                # Count a packed list as one number per byte, the maximum, without decoding it.
                count += length
            if count > limits.MAX_FIELDS:
                raise CallFailed(Code.RESOURCE_EXHAUSTED, f"The message has more than {limits.MAX_FIELDS} fields.")
    return count


def _skip(wire_type: int, data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The offset after a field's value at `at`, and the value's length if it is length-delimited, else 0."""
    if wire_type == _VARINT:
        return _read_varint(data, at)[1], 0
    if wire_type == _BYTES:
        length, at = _read_varint(data, at)
        return at + length, length
    return at + _FIXED_BYTES.get(wire_type, len(data)), 0


def _read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number encoded at offset `at`, and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 10 bytes")
