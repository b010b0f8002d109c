"""Writes a `model.toml`; the standard library only reads TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ocrsvc.model_repository.description import Description


def write_description(description: Description) -> str:
    """The text of a `model.toml` that `parse_description` reads as this description; parts with all their entries."""
    lines, tables = list[str](), list[str]()
    for name, field in Description.model_fields.items():
        # What nobody has said stays out, so that a better default holds one day.
        if getattr(description, name) == field.get_default():
            continue
        value = description.model_dump(include={name}, exclude_none=True)[name]
        if isinstance(value, dict):
            tables += ["", f"[{name}]", *_pairs(value)]
        elif value and isinstance(value[0], dict):
            tables += [line for one in value for line in ("", f"[[{name}]]", *_pairs(one))]
        else:
            lines += _pairs({name: value})
    return "\n".join([*lines, *tables]) + "\n"


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        yield f"{name if name.isidentifier() and name.isascii() else _string(name)} = {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)


def _string(text: str) -> str:
    """JSON's strings are TOML's, but for the character that deletes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
