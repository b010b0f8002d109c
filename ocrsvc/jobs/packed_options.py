"""The options of a job as they lie in its folder: JSON without what is at its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ocrsvc.errors import CallerError
from ocrsvc.records import ReadOptions


def pack_options(options: ReadOptions) -> dict[str, Any]:
    """Every field of the options that is not at its default, as JSON takes it."""
    default = ReadOptions()
    return {
        each.name: value
        for each in fields(options)
        if (value := getattr(options, each.name)) != getattr(default, each.name)
    }


def unpack_options(packed: Mapping[str, Any]) -> ReadOptions:
    """The options that were packed. Raises CallerError for those of another version that this one does not know."""
    known = {each.name for each in fields(ReadOptions)}
    if unknown := sorted(packed.keys() - known):
        raise CallerError(f"This version of the service does not know the options {', '.join(unknown)}.")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in packed.items()
    }
    return ReadOptions(**values)
