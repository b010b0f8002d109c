"""Makes message classes of the .proto files beside this one, without generated code.

They are read at run time into a pool of our own. Generated code would go into protobuf's one global pool, where it
clashes with that of every client package for the same service in the same process, and would tie us to one range of
protobuf versions. The files here keep to the part of the language that `_read` knows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

FOLDER: Final = Path(__file__).parent / "protos"

_COMMENT: Final = re.compile(r"//[^\n]*")
_STATEMENT: Final = re.compile(r"([^;{}]*)([;{}])")
_WORD: Final = re.compile(r"[\w./]+")
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    name: getattr(_FIELD, f"TYPE_{name.upper()}")
    for name in ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32")
}


class Messages:
    """The message classes of some .proto files, by their full names.

    Args:
        names: Files of this package, each after those that it imports.
    """

    def __init__(self, *names: str) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for known in (any_pb2, wrappers_pb2):
            self._pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        for name in names:
            file = _read(name, (FOLDER / name).read_text(encoding="utf-8"))
            self._pool.AddSerializedFile(file.SerializeToString())

    def __getitem__(self, name: str) -> Any:
        """The class of a message, such as "inference.ModelInferRequest"."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))


def _read(name: str, text: str) -> Any:
    """One file as its descriptor: proto3 messages, enums, oneofs, maps and imports; no options or services."""
    open_: list[Any] = [descriptor_pb2.FileDescriptorProto(name=name)]
    for statement, end in _STATEMENT.findall(_COMMENT.sub("", text)):
        words = _WORD.findall(statement)
        if end == "{":
            open_.append(_begin(open_[-1], *words))
        elif end == "}":
            open_.pop()
        elif len(open_) == 1:
            _declare(open_[0], *words)
        else:
            _add(open_[-2], open_[-1], words)
    return open_[0]


def _begin(outer: Any, word: str, name: str) -> Any:
    """Add what a block stands for to what the block is in."""
    if word == "enum":
        return outer.enum_type.add(name=name)
    if word == "oneof":
        return outer.oneof_decl.add(name=name)
    assert word == "message", word
    return (outer.message_type if hasattr(outer, "message_type") else outer.nested_type).add(name=name)


def _declare(file: Any, word: str, value: str) -> None:
    """A statement outside all blocks."""
    if word == "import":
        file.dependency.append(value)
    else:
        assert word in ("syntax", "package"), word
        setattr(file, word, value)


def _add(outer: Any, inner: Any, words: list[str]) -> None:
    """Add a field to a message, or to the message that a oneof is in; or a value to an enum."""
    if isinstance(inner, descriptor_pb2.EnumDescriptorProto):
        inner.value.add(name=words[0], number=int(words[1]))
    elif isinstance(inner, descriptor_pb2.OneofDescriptorProto):
        _add_field(outer, *words).oneof_index = len(outer.oneof_decl) - 1
    else:
        _add_field(inner, *words)


def _add_field(message: Any, *words: str) -> Any:
    """Add a field: its kind, name and number; in front of them `repeated`, or `map` and the kind of the keys."""
    *before, kind, name, number = words
    if before[:1] == ["map"]:
        kind = _add_map_entry(message, name, before[1], kind)
    label = _FIELD.LABEL_REPEATED if before else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    _set_type(field, kind)
    return field


def _add_map_entry(message: Any, name: str, key: str, value: str) -> str:
    """Add the message that a map is made of; its name."""
    entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
    entry.options.map_entry = True
    for number, (part, kind) in enumerate((("key", key), ("value", value)), start=1):
        _set_type(entry.field.add(name=part, number=number, label=_FIELD.LABEL_OPTIONAL), kind)
    return str(entry.name)


def _set_type(field: Any, kind: str) -> None:
    """Set a scalar's type; else the name, from which the pool finds out whether it is a message or an enum."""
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind
