"""How do gRPC's messages, time limits and status texts look on the wire (HTTP/2 aside)?"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ocrsvc.rpc.codes import CallFailed, Code
from ocrsvc.serving.limits import Share
from ocrsvc.serving.unpacking import Damaged, TooMuch, unpack

ENCODINGS: Final = {"gzip": 31, "deflate": 15}
"""Compressions that are read, and the window bits of each in zlib."""

_PREFIX: Final = struct.Struct(">BI")
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as it came.

    Attributes:
        data: As it is, or packed.
        encoding: How it is packed, one of ENCODINGS; None if it is not.
    """

    data: bytes
    encoding: str | None = None

    @property
    def size(self) -> int:
        """Bytes on the wire, with those in front of it."""
        return _PREFIX.size + len(self.data)

    def plain(self, most_bytes: int, share: Share) -> bytes:
        """The message itself; what unpacking makes is counted in the share.

        Raises:
            CallFailed: It is too large, or cannot be unpacked.
            QueueFull: Others hold the memory.
        """
        if self.encoding is None:
            return self.data
        try:
            return unpack(self.data, ENCODINGS[self.encoding], most_bytes, share)
        except TooMuch as error:
            raise CallFailed(
                Code.RESOURCE_EXHAUSTED, f"The message unpacks to more than {most_bytes} bytes."
            ) from error
        except Damaged as error:
            raise CallFailed(Code.INTERNAL, f"The compressed message is damaged: {error}.") from error


class MessageReader:
    """Cuts what arrives on one stream into messages.

    Args:
        encoding: What grpc-encoding says.
        most_bytes: Largest message, as it comes.
    """

    def __init__(self, encoding: str, most_bytes: int) -> None:
        self._encoding = encoding
        self._most_bytes = most_bytes
        self._pieces: list[bytes] = []
        self._at = 0
        self._held = 0
        self._prefix: tuple[int, int] | None = None

    @property
    def unfinished(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._held) or self._prefix is not None

    def feed(self, data: bytes) -> Iterator[Sent]:
        """The messages that are complete with this data.

        Raises:
            CallFailed: A message is too large, or packed in a way that is not known.
        """
        self._pieces.append(data)
        self._held += len(data)
        while self._held >= (_PREFIX.size if self._prefix is None else self._prefix[1]):
            if self._prefix is None:
                self._prefix = self._checked(*_PREFIX.unpack(self._take(_PREFIX.size)))
            else:
                packed, length = self._prefix
                self._prefix = None
                yield Sent(self._take(length), self._encoding if packed else None)
        self._drop_taken()

    def _take(self, size: int) -> bytes:
        """The next bytes. They stay where they are: to cut off each small message would copy all that follow it."""
        if len(self._pieces) > 1:
            self._drop_taken()
            self._pieces = [b"".join(self._pieces)]
        taken = self._pieces[0][self._at : self._at + size] if size else b""
        self._at += size
        self._held -= size
        return taken

    def _drop_taken(self) -> None:
        if self._at:
            rest = self._pieces[0][self._at :]
            self._pieces[:1] = [rest] if rest else []
            self._at = 0

    def _checked(self, packed: int, length: int) -> tuple[int, int]:
        if length > self._most_bytes:
            told = f"The message has more than {self._most_bytes} bytes ({length})."
            raise CallFailed(Code.RESOURCE_EXHAUSTED, told)
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
