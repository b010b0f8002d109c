"""The output formats of a run, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.batch.outputs.contract import OutputWriter
from ocrsvc.batch.outputs.json_lines import JsonLines
from ocrsvc.errors import BadOption


@dataclass(frozen=True, slots=True)
class WriterRequest:
    """What a writer is opened with.

    Attributes:
        folder: In which it writes: "", or one that ends in a slash.
        identity: Engine, model and version that read, as `PageReader.start` gives them.
    """

    folder: str
    identity: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BatchFormat:
    """One format: what opens its writer, and one phrase for people."""

    open: Callable[[WriterRequest], OutputWriter]
    help: str


BATCH_FORMATS: Final[Mapping[str, BatchFormat]] = {
    "jsonl": BatchFormat(lambda request: JsonLines(request.folder), "one line of JSON for each page"),
}


def check_formats(names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raises BadOption unless the formats are known, each named once, and fit how pages are to be read."""
    del options
    for name in names:
        if name not in BATCH_FORMATS:
            raise BadOption(f"--format is {name!r}: accepted are {', '.join(BATCH_FORMATS)}, separated by commas.")
    if len(set(names)) < len(names):
        raise BadOption("--format names a format twice.")


def open_writers(names: Sequence[str], identity: Mapping[str, str]) -> list[OutputWriter]:
    """The writers of formats that were checked; where there are several, each writes in a folder of its own."""
    folders = [f"{name.replace(':', '-')}/" if len(names) > 1 else "" for name in names]
    return [
        BATCH_FORMATS[name].open(WriterRequest(folder, identity)) for name, folder in zip(names, folders, strict=True)
    ]
