"""Options of a job's reading in its record. Not in job.py, since the arbiter loads that and must not load numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ocrsvc.errors import CallerError
from ocrsvc.records import ReadOptions


def pack_options(options: ReadOptions) -> dict[str, Any]:
    """Every field of the options that is not at its default, as JSON takes it."""
    default = ReadOptions()
    values = {each.name: getattr(options, each.name) for each in fields(options)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}


def unpack_options(packed: Mapping[str, Any]) -> ReadOptions:
    """The options that were packed. Raises CallerError for those of another version that this one does not know."""
    if unknown := sorted(packed.keys() - {each.name for each in fields(ReadOptions)}):
        raise CallerError(f"This version of the service does not know the options {', '.join(unknown)}.")
    values: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in packed.items()}
    return ReadOptions(**values)
