"""Creates message classes from the .proto files in `protos/` at run time, without generated code.

They have a descriptor pool of their own. Generated code would use protobuf's global pool, conflict there with client
packages for the same services, and need certain protobuf versions. The files use only syntax that `_parse` supports.
"""

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
    """The message classes of .proto files, by full name; each file must come after the files that it imports."""

    def __init__(self, *names: str) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for known in (any_pb2, wrappers_pb2):
            self._pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        for name in names:
            file = _parse(name, (FOLDER / name).read_text(encoding="utf-8"))
            self._pool.AddSerializedFile(file.SerializeToString())

    def __getitem__(self, name: str) -> Any:
        """The class of a message with a full name such as "inference.ModelInferRequest"."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))


def _parse(name: str, text: str) -> Any:
    """Parse a .proto file with proto3 messages, enums, oneofs, maps and imports; not with options or services."""
    file = descriptor_pb2.FileDescriptorProto(name=name)
    blocks: list[Any] = [file]
    for statement, end in _STATEMENT.findall(_COMMENT.sub("", text)):
        words = _WORD.findall(statement)
        if end == "}":
            blocks.pop()
        elif end == "{":
            blocks.append(_add_block(blocks[-1], *words))
        elif words[0] == "import":
            file.dependency.append(words[1])
        elif words[0] in ("syntax", "package"):
            setattr(file, *words)
        elif isinstance(blocks[-1], descriptor_pb2.EnumDescriptorProto):
            blocks[-1].value.add(name=words[0], number=int(words[1]))
        elif isinstance(blocks[-1], descriptor_pb2.OneofDescriptorProto):
            _add_field(blocks[-2], *words).oneof_index = len(blocks[-2].oneof_decl) - 1
        else:
            _add_field(blocks[-1], *words)
    return file


def _add_block(outer: Any, word: str, name: str) -> Any:
    if word == "enum":
        return outer.enum_type.add(name=name)
    if word == "oneof":
        return outer.oneof_decl.add(name=name)
    assert word == "message", word
    return (outer.message_type if hasattr(outer, "message_type") else outer.nested_type).add(name=name)


def _add_field(message: Any, *words: str) -> Any:
    """Add a field, given the tokens of its .proto line, such as "repeated", "int64", "shape", "2"."""
    *before, kind, name, number = words
    if before[:1] == ["map"]:
        # protobuf represents a map as a repeated message with key and value.
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, before[1], "key", "1")
        _add_field(entry, kind, "value", "2")
        kind = str(entry.name)
    label = _FIELD.LABEL_REPEATED if before else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        # The descriptor pool finds out whether the type is a message or an enum.
        field.type_name = kind
    return field
