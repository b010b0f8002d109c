"""The output formats of a run, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ocrsvc.batch.outputs.contract import OutputWriter
from ocrsvc.batch.outputs.json_lines import JsonLines


@dataclass(frozen=True, slots=True)
class BatchFormat:
    """One format: what opens its writer, and one phrase for people."""

    open: Callable[[], OutputWriter]
    help: str


BATCH_FORMATS: Final[Mapping[str, BatchFormat]] = {
    "jsonl": BatchFormat(JsonLines, "one line of JSON for each page"),
}
