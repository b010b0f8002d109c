"""What a version is made of before it is written: its description, and where each of its files comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ocrsvc.model_import.source_files import SourceFile
from ocrsvc.model_repository.description import Description


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the operator says of a model; what is left out is found.

    Attributes:
        sources: Files and folders.
        tier: Also chooses among several models in the sources.
        languages: Of the first recognizer.
        recognizers: More of them, by name: an ONNX model, or a folder with one.
        dictionary: Of the first recognizer.
        licence: Its name, such as Apache-2.0.
        reference: A folder of pages, which become those of the version.
    """

    sources: Sequence[Path]
    tier: str | None = None
    languages: Sequence[str] = ()
    recognizers: Mapping[str, Path] = field(default_factory=dict)
    dictionary: Path | None = None
    licence: str | None = None
    reference: Path | None = None


@dataclass(frozen=True, slots=True)
class NewModel:
    """A version that is to be written.

    Attributes:
        description: Its `model.toml`, unless `files` has one.
        files: Content, or a file with it, by name in the version's folder.
        notes: What was found, and what was left out; a sentence each.
    """

    description: Description
    files: Mapping[str, SourceFile | bytes]
    notes: Sequence[str] = ()
