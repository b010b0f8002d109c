"""Makes message classes of the .proto files beside this one, without generated code.

They are read at run time into a pool of our own. Generated code would go into protobuf's one global pool, where it
clashes with that of every client package for the same service in the same process, and would tie us to one range of
protobuf versions. The files here keep to the part of the language that `_Parser` knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

FOLDER: Final = Path(__file__).parent / "protos"

_TOKEN: Final = re.compile(r'//[^\n]*|"[^"]*"|[\w.]+|[{}<>=;,]')
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
            file = _Parser(name, (FOLDER / name).read_text(encoding="utf-8")).file()
            self._pool.AddSerializedFile(file.SerializeToString())

    def __getitem__(self, name: str) -> Any:
        """The class of a message, such as "inference.ModelInferRequest"."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))


class _Parser:
    """Reads one file: proto3 messages, enums, oneofs, maps and imports; no options, services or extensions."""

    def __init__(self, name: str, text: str) -> None:
        self._tokens: Iterator[str] = (token for token in _TOKEN.findall(text) if not token.startswith("//"))
        self._file = descriptor_pb2.FileDescriptorProto(name=name)

    def file(self) -> Any:
        """The whole file as a descriptor."""
        for word in self._tokens:
            if word == "message":
                self._message(self._file.message_type.add(name=self._next()))
            elif word == "enum":
                self._enum(self._file.enum_type.add(name=self._next()))
            else:
                self._statement(word)
        return self._file

    def _statement(self, word: str) -> None:
        value = [word for word in iter(self._next, ";") if word != "="]
        if word == "syntax":
            self._file.syntax = value[0].strip('"')
        elif word == "package":
            self._file.package = value[0]
        else:
            assert word == "import", word
            self._file.dependency.append(value[0].strip('"'))

    def _message(self, message: Any) -> None:
        assert self._next() == "{"
        for word in iter(self._next, "}"):
            if word == "message":
                self._message(message.nested_type.add(name=self._next()))
            elif word == "enum":
                self._enum(message.enum_type.add(name=self._next()))
            elif word == "oneof":
                self._oneof(message)
            else:
                self._field(message, word)

    def _enum(self, enum: Any) -> None:
        assert self._next() == "{"
        for word in iter(self._next, "}"):
            assert self._next() == "="
            enum.value.add(name=word, number=int(self._next()))
            assert self._next() == ";"

    def _oneof(self, message: Any) -> None:
        message.oneof_decl.add(name=self._next())
        assert self._next() == "{"
        for word in iter(self._next, "}"):
            self._field(message, word).oneof_index = len(message.oneof_decl) - 1

    def _field(self, message: Any, word: str) -> Any:
        field = message.field.add(label=_FIELD.LABEL_OPTIONAL)
        if word in ("repeated", "map"):
            field.label = _FIELD.LABEL_REPEATED
        kind = self._next() if word == "repeated" else word
        if word == "map":
            assert self._next() == "<"
            key, _, value, _ = self._next(), self._next(), self._next(), self._next()
            field.name = self._next()
            kind = self._map_entry(message, field.name, key, value)
        else:
            field.name = self._next()
        _set_type(field, kind)
        assert self._next() == "="
        field.number = int(self._next())
        assert self._next() == ";"
        return field

    def _map_entry(self, message: Any, name: str, key: str, value: str) -> str:
        """Add the message that a map is made of; its name."""
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for number, (part, kind) in enumerate((("key", key), ("value", value)), start=1):
            _set_type(entry.field.add(name=part, number=number, label=_FIELD.LABEL_OPTIONAL), kind)
        return str(entry.name)

    def _next(self) -> str:
        return next(self._tokens)


def _set_type(field: Any, kind: str) -> None:
    """Set a scalar's type; else the name, from which the pool finds out whether it is a message or an enum."""
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind
