"""Finds the dictionary of a recognizer: its property, its `inference.yml`, or a file near it that fits its classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ocrsvc.errors import BadModel
from ocrsvc.model_import.candidates import Candidate
from ocrsvc.model_import.dictionary import Dictionary, fit, from_property, lines_of, mismatch
from ocrsvc.model_import.source_files import SourceFile

_ENDINGS: Final = frozenset({".txt", ".dict", ".keys"})
_LARGEST_BYTES: Final = 2 << 20
"""Of a dictionary that is looked for: 20,000 characters are 100 kB."""


def find_dictionary(candidate: Candidate, files: Sequence[SourceFile]) -> Dictionary:
    """The dictionary of a recognizer.

    Args:
        candidate: The recognizer.
        files: Where to look: those of its own folder win over those of folders around it.

    Raises:
        BadModel: None fits the classes of the model, or two do that differ.
    """
    graph, config, seen = candidate.graph, candidate.config, list[tuple[str, int]]()
    assert graph.classes is not None
    if graph.characters is not None:
        if found := from_property(graph.characters, graph.classes):
            return found
        seen.append(("its property `character`", graph.characters.count("\n") + 1))
    if config.characters is not None:
        if found := fit(config.characters, graph.classes, "inference.yml"):
            return found
        seen.append(("its inference.yml", len(config.characters)))
    return _from_files(candidate, files, seen)


def read_dictionary(file: SourceFile, candidate: Candidate) -> Dictionary:
    """A dictionary that the operator names. Raises BadModel: it does not fit the classes of the recognizer."""
    lines, classes = lines_of(file.read_text()), candidate.graph.classes
    assert classes is not None
    found = fit(lines, classes, file.name)
    if found is None:
        raise mismatch([(file.name, len(lines))], classes, candidate.file.name)
    return found


def _from_files(candidate: Candidate, files: Sequence[SourceFile], seen: list[tuple[str, int]]) -> Dictionary:
    classes = candidate.graph.classes
    assert classes is not None
    for folder in _folders(candidate.file):
        fitting = list[Dictionary]()
        for file in files:
            if file.folder == folder and _may_be_one(file):
                lines = _lines(file)
                seen.append((file.name, len(lines)))
                fitting += [found] if (found := fit(lines, classes, file.name)) else []
        # All of PP-OCR's add a space.
        fitting = [one for one in fitting if one.adds_space] or fitting
        if len({one.characters for one in fitting}) > 1:
            origins = ", ".join(one.origin for one in fitting)
            raise BadModel(
                f"{candidate.file.name} has {classes} classes, which several dictionaries fit: {origins}.",
                "Name the right one with --dictionary FILE.",
            )
        if fitting:
            return fitting[0]
    raise mismatch(seen, classes, candidate.file.name)


def _folders(file: SourceFile) -> Iterator[object]:
    """Its folder, and those around it up to the source's."""
    for folder in (file.folder, *file.folder.parents):
        yield folder
        if folder == file.root:
            return


def _may_be_one(file: SourceFile) -> bool:
    try:
        return file.ending in _ENDINGS and file.path.stat().st_size <= _LARGEST_BYTES
    except OSError:
        return False


def _lines(file: SourceFile) -> Sequence[str]:
    """None of a text that is no UTF-8: no dictionary."""
    try:
        return lines_of(file.read_text())
    except BadModel:
        return ()
