"""gRPC's length-prefixed messages, timeouts and status texts on the wire (HTTP/2 aside)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from ocrsvc.grpc_server.status_codes import CallFailed, Code
from ocrsvc.serving.decompression import Damaged, TooLarge, decompress
from ocrsvc.serving.memory_budget import Share

ENCODINGS: Final = {"gzip": 31, "deflate": 15}
"""Compressions that are read, and the window bits of each in zlib."""

_PREFIX: Final = struct.Struct(">BI")
PREFIX_BYTES: Final = _PREFIX.size
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as it came.

    Attributes:
        data: As it is, or packed.
        encoding: How it is packed, one of ENCODINGS; None if it is not.
    """

    data: memoryview
    encoding: str | None = None

    @property
    def size(self) -> int:
        """Bytes on the wire, with those in front of it."""
        return PREFIX_BYTES + len(self.data)

    def plain(self, most_bytes: int, share: Share) -> memoryview | bytes:
        """The message itself; what unpacking makes is counted in the share.

        Raises:
            CallFailed: It is too large, or cannot be unpacked.
            QueueFull: Others hold the memory.
        """
        if self.encoding is None:
            return self.data
        try:
            return decompress(self.data, ENCODINGS[self.encoding], most_bytes, share)
        except TooLarge as error:
            raise CallFailed(
                Code.RESOURCE_EXHAUSTED, f"The message unpacks to more than {most_bytes} bytes."
            ) from error
        except Damaged as error:
            raise CallFailed(Code.INTERNAL, f"The compressed message is damaged: {error}.") from error


class MessageReader:
    """Cuts what arrives on one stream into messages, one at a time as they are asked for.

    Args:
        encoding: What grpc-encoding says.
        most_bytes: Largest message, as it comes.
    """

    def __init__(self, encoding: str, most_bytes: int) -> None:
        self._encoding = encoding
        self._most_bytes = most_bytes
        self._data = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes that came and were not taken."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """What came."""
        self._data += data

    def is_plain(self, most_bytes: int) -> bool:
        """Whether the next message, which is complete, is not packed and has at most so many bytes."""
        packed, length = self._next()
        return not packed and PREFIX_BYTES + length <= most_bytes

    def is_last(self) -> bool:
        """Whether nothing came behind the next message, which is complete."""
        return len(self._data) == PREFIX_BYTES + self._next()[1]

    def is_ready(self) -> bool:
        """Whether the next message is complete.

        Raises:
            CallFailed: It is too large, or packed in a way that is not known.
        """
        return len(self._data) >= PREFIX_BYTES and len(self._data) >= PREFIX_BYTES + self._next()[1]

    @property
    def waits(self) -> bool:
        """Whether the next message is complete, or can never be taken."""
        if len(self._data) < PREFIX_BYTES:
            return False
        length = int.from_bytes(self._data[1:PREFIX_BYTES])
        return length > self._most_bytes or len(self._data) >= PREFIX_BYTES + length

    def take(self) -> ReceivedMessage:
        """The next message, which is complete. Raises CallFailed as `is_ready`."""
        packed, length = self._next()
        end = PREFIX_BYTES + length
        if self.is_last():
            # Most messages come alone, and need no copy.
            data, self._data = memoryview(self._data)[PREFIX_BYTES:], bytearray()
        else:
            data = memoryview(bytes(self._data[PREFIX_BYTES:end]))
            del self._data[:end]
        return ReceivedMessage(data, self._encoding if packed else None)

    def clear(self) -> None:
        """Nothing of it is wanted any more."""
        self._data = bytearray()

    def _next(self) -> tuple[int, int]:
        """Whether the next message is packed, and its length."""
        packed, length = _PREFIX.unpack_from(self._data)
        if length > self._most_bytes:
            message = f"The message has more than {self._most_bytes} bytes ({length})."
            raise CallFailed(Code.RESOURCE_EXHAUSTED, message)
        if packed and (packed > 1 or self._encoding not in ENCODINGS):
            raise CallFailed(Code.UNIMPLEMENTED, f"The grpc-encoding {self._encoding[:40]!r} is not known.")
        return packed, length


def frame(message: bytes) -> bytes:
    """A message as it is sent: not compressed, its length in front."""
    return _PREFIX.pack(0, len(message)) + message


def timeout_s(text: str) -> float:
    """Seconds of a grpc-timeout such as "500m". Raises CallFailed."""
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise CallFailed(Code.INVALID_ARGUMENT, f"grpc-timeout is {text[:40]!r}, which is no time.")
    return int(match[1]) * _UNITS_S[match[2]]


def escaped(text: str) -> str:
    """A status text as grpc-message wants it: visible ASCII and blanks as they are, everything else per cent."""
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in text[:4000].encode()
    )
