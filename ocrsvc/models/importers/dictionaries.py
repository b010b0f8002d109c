"""Recognizers' dictionaries: found in the model, its `inference.yml` or a file near it, by the number of its classes.

And the languages that a dictionary can write.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from string import ascii_lowercase
from typing import Final

from ocrsvc.engines.ppocr.graph.inspection import OnnxGraph
from ocrsvc.errors import BadModel
from ocrsvc.models.importers.source_files import SourceFile

_ENDINGS: Final = frozenset({".txt", ".dict", ".keys"})
# Of a dictionary that is looked for: 20,000 characters are 100 kB.
_LARGEST_BYTES: Final = 2 << 20


@dataclass(frozen=True, slots=True)
class Dictionary:
    """The texts of a recognizer's classes between the blank and, if one is added, the space.

    `is_property` is whether the model carries it, so that no file is needed; `origin` is for people.
    """

    characters: tuple[str, ...]
    adds_space: bool
    is_property: bool
    origin: str


def find_dictionary(
    file: SourceFile, graph: OnnxGraph, listed: Sequence[str] | None, files: Sequence[SourceFile]
) -> Dictionary:
    """The dictionary of the recognizer in a file: its property, those listed in `inference.yml`, or the nearest file.

    Raises BadModel: none fits the classes of the model, or two do that differ.
    """
    seen, classes = list[tuple[str, int]](), _classes_of(graph)
    if graph.characters is not None:
        if found := _from_property(graph.characters, classes):
            return found
        seen.append(("its property `character`", graph.characters.count("\n") + 1))
    if listed is not None:
        if found := fit(listed, classes, "inference.yml"):
            return found
        seen.append(("its inference.yml", len(listed)))
    depth = len(file.folder.relative_to(file.root).parts)
    for folder in (file.folder, *file.folder.parents)[: depth + 1]:
        if found := _in_folder(folder, file.name, classes, files, seen):
            return found
    raise _mismatch(seen, classes, file.name)


def read_dictionary(file: SourceFile, graph: OnnxGraph, name: str) -> Dictionary:
    """The dictionary that the operator names for a recognizer. Raises BadModel: it does not fit its classes."""
    lines, classes = lines_of(file.read_text()), _classes_of(graph)
    if found := fit(lines, classes, file.name):
        return found
    raise _mismatch([(file.name, len(lines))], classes, name)


def fit(characters: Sequence[str], classes: int, origin: str, *, is_property: bool = False) -> Dictionary | None:
    """The dictionary that these texts make for a number of classes; None if they are too many or too few."""
    texts = tuple(characters)
    # Some dictionaries begin with the blank itself.
    if len(texts) == classes and texts[0].strip("<[]>").lower() == "blank":
        texts, is_property = texts[1:], False
    if classes - len(texts) not in (1, 2):
        return None
    return Dictionary(texts, classes - len(texts) == 2, is_property, origin)


def lines_of(text: str) -> tuple[str, ...]:
    """The texts of a dictionary's file: its lines, whose spaces are characters, too."""
    lines = text.removesuffix("\n").split("\n")
    return tuple(line.removesuffix("\r") for line in lines)


def languages_of(characters: Iterable[str]) -> tuple[str, ...]:
    """The languages all of whose letters, small and capital, are among a recognizer's characters.

    That a letter can be read does not say how well: only a measurement does. A character may be several letters.
    """
    known = {letter for text in characters for letter in text}

    def can_write(letter: str) -> bool:
        capital = letter.upper()
        return letter in known and (len(capital) > 1 or capital in known)

    return tuple(tag for tag, letters in letters_of_languages().items() if all(map(can_write, letters)))


@cache
def letters_of_languages() -> dict[str, str]:
    """By language, its small letters (languages.toml); those of scripts that few recognizers have come first."""
    text = resources("ocrsvc.models.importers").joinpath("languages.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    return {**tables["letters"], **{tag: ascii_lowercase + more for tag, more in tables["latin_and"].items()}}


def _classes_of(graph: OnnxGraph) -> int:
    assert graph.classes is not None, "of a recognizer, whose classes were counted"
    return graph.classes


def _from_property(text: str, classes: int) -> Dictionary | None:
    origin, lines, split = "the property `character`", lines_of(text), text.split("\n")
    # The engine splits a property at line feeds; where its lines are others, it gets a file.
    found = fit(lines, classes, origin, is_property=list(lines) == split)
    return found or fit(split, classes, origin, is_property=True)


def _in_folder(
    folder: Path, name: str, classes: int, files: Sequence[SourceFile], seen: list[tuple[str, int]]
) -> Dictionary | None:
    """The one in a folder that fits; adds what was looked at to `seen`. Raises BadModel for two that differ."""
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
            f"{name} has {classes} classes, which several dictionaries fit: {origins}.",
            "Name the right one with --dictionary FILE.",
        )
    return fitting[0] if fitting else None


def _may_be_one(file: SourceFile) -> bool:
    try:
        return file.ending in _ENDINGS and file.path.stat().st_size <= _LARGEST_BYTES
    except OSError:
        return False


def _lines(file: SourceFile) -> Sequence[str]:
    """Empty for a text that is no UTF-8: no dictionary."""
    try:
        return lines_of(file.read_text())
    except BadModel:
        return ()


def _mismatch(found: Sequence[tuple[str, int]], classes: int, name: str) -> BadModel:
    """The error for a recognizer none of whose dictionaries fits; each with its number of entries."""
    seen = "; ".join(f"{origin} has {count}" for origin, count in found)
    return BadModel(
        f"{name} has {classes} classes, and no dictionary with {classes - 2} or {classes - 1} entries was found"
        f"{f' ({seen})' if seen else ''}.",
        "Name its dictionary with --dictionary FILE: a character in each line, without the blank.",
    )
