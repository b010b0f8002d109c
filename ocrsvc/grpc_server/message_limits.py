"""Counts the fields of a protobuf message before it is parsed, and refuses one with too many.

Two bytes on the wire can become a hundred in memory: an empty field of a repeated one. So fields are counted first.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from ocrsvc.grpc_server.status_codes import CallFailed, Code
from ocrsvc.serving.memory_budget import Share

MAX_FIELDS: Final = 10_000
"""Fields and elements in one message, with all that is nested in it; a request for 64 images has a few hundred."""

FIELD_BYTES: Final = 256
"""What a field becomes, at most, beside its content."""

COPIES: Final = 3
"""How often its content is held while a message is answered: parsed, as a field's value, as the elements in that."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_GROUPS: Final = (3, 4)


def parse(kind: Any, data: bytes | memoryview, share: Share) -> Any:
    """The message of a class; the share keeps what it and its parts will hold.

    Raises:
        CallFailed: It has too many fields, or cannot be decoded.
        QueueFull: Others hold the memory.
        BodyTooLarge: It needs more than there is.
    """
    try:
        share.take(_count(kind.DESCRIPTOR, data) * FIELD_BYTES + COPIES * len(data))
        return kind.FromString(data)
    except (DecodeError, IndexError, ValueError) as error:
        raise CallFailed(Code.INVALID_ARGUMENT, "The message cannot be decoded.") from error


def _count(descriptor: Any, data: bytes | memoryview) -> int:
    """The fields; raises CallFailed beyond MAX_FIELDS, IndexError or ValueError for what is malformed."""
    count, open_ = 0, [(descriptor, 0, len(data))]
    while open_:
        inside, at, end = open_.pop()
        while at < end:
            tag, at = _varint(data, at)
            count += 1
            at, length = _skip(tag & 7, data, at)
            field = inside.fields_by_number.get(tag >> 3)
            if length and field is not None and field.message_type is not None:
                open_.append((field.message_type, at - length, at))
            elif length and field is not None and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
                # Numbers side by side, each of a byte at least.
                count += length
            if count > MAX_FIELDS:
                raise CallFailed(Code.RESOURCE_EXHAUSTED, f"The message has more than {MAX_FIELDS} fields.")
    return count


def _skip(wire_type: int, data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Where the field's value ends, and the length of one that says its own."""
    if wire_type == _VARINT:
        return _varint(data, at)[1], 0
    if wire_type == _BYTES:
        length, at = _varint(data, at)
        return at + length, length
    if wire_type in _GROUPS:
        return at, 0
    return at + {_FIXED64: 8, _FIXED32: 4}.get(wire_type, len(data)), 0


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 10 bytes")
