"""Finds a recognizer's dictionary in the model, its `inference.yml` or a nearby file, by the number of classes.

Also determines the languages that a dictionary covers.
"""

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
_LARGEST_BYTES: Final = 2 << 20  # size limit of a dictionary file; 20,000 characters take 100 kB


@dataclass(frozen=True, slots=True)
class Dictionary:
    """The texts of a recognizer's classes, without the CTC blank and an added space.

    `is_property`: the ONNX model contains the texts, so no file is needed. `origin` names their source, for messages.
    """

    characters: tuple[str, ...]
    adds_space: bool
    is_property: bool
    origin: str


def find_dictionary(
    file: SourceFile, graph: OnnxGraph, listed: Sequence[str] | None, files: Sequence[SourceFile]
) -> Dictionary:
    """Find a recognizer's dictionary: the model's property, the list in `inference.yml`, or the nearest file.

    Raises BadModel if no dictionary fits the model's number of classes, or if several that differ fit.
    """
    seen, classes = list[tuple[str, int]](), _classes_of(graph)
    if graph.characters is not None:
        if dictionary := _from_property(graph.characters, classes):
            return dictionary
        seen.append(("its property `character`", graph.characters.count("\n") + 1))
    if listed is not None:
        if dictionary := fit(listed, classes, "inference.yml"):
            return dictionary
        seen.append(("its inference.yml", len(listed)))
    depth = len(file.folder.relative_to(file.root).parts)
    for folder in (file.folder, *file.folder.parents)[: depth + 1]:
        if dictionary := _in_folder(folder, file.name, classes, files, seen):
            return dictionary
    raise _mismatch(seen, classes, file.name)


def read_dictionary(file: SourceFile, graph: OnnxGraph, name: str) -> Dictionary:
    """Read the dictionary that the operator chose for the model file `name`. Raises BadModel: wrong number of lines."""
    lines, classes = lines_of(file.read_text()), _classes_of(graph)
    if dictionary := fit(lines, classes, file.name):
        return dictionary
    raise _mismatch([(file.name, len(lines))], classes, name)


def fit(characters: Sequence[str], classes: int, origin: str, *, is_property: bool = False) -> Dictionary | None:
    """Make the dictionary of a recognizer with this number of classes; None if the number of texts does not fit."""
    texts = tuple(characters)
    # Some dictionaries begin with the CTC blank, which is left out.
    if len(texts) == classes and texts[0].strip("<[]>").lower() == "blank":
        texts, is_property = texts[1:], False
    if classes - len(texts) not in (1, 2):
        return None
    return Dictionary(texts, classes - len(texts) == 2, is_property, origin)


def lines_of(text: str) -> tuple[str, ...]:
    """The texts of a dictionary file: one per line, with the line's spaces."""
    lines = text.removesuffix("\n").split("\n")
    return tuple(line.removesuffix("\r") for line in lines)


def languages_of(characters: Iterable[str]) -> tuple[str, ...]:
    """Languages whose letters, lower-case and capital, are all among a recognizer's characters.

    This says nothing about accuracy, which must be measured. An entry of `characters` may consist of several letters.
    """
    known = {letter for text in characters for letter in text}

    def can_write(letter: str) -> bool:
        capital = letter.upper()
        return letter in known and (len(capital) > 1 or capital in known)

    return tuple(tag for tag, letters in letters_of_languages().items() if all(map(can_write, letters)))


@cache
def letters_of_languages() -> dict[str, str]:
    """Lower-case letters by language, as ordered in languages.toml: scripts that few recognizers support come first."""
    text = resources("ocrsvc.models.importers").joinpath("languages.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    return {**tables["letters"], **{tag: ascii_lowercase + more for tag, more in tables["latin_and"].items()}}


def _classes_of(graph: OnnxGraph) -> int:
    assert graph.classes is not None, "an inspected recognizer has a number of classes"
    return graph.classes


def _from_property(text: str, classes: int) -> Dictionary | None:
    origin, lines, split = "the property `character`", lines_of(text), text.split("\n")
    # The engine splits this property only at "\n". If that gives texts other than `lines`, store `lines` in a file.
    dictionary = fit(lines, classes, origin, is_property=list(lines) == split)
    return dictionary or fit(split, classes, origin, is_property=True)


def _in_folder(
    folder: Path, name: str, classes: int, files: Sequence[SourceFile], seen: list[tuple[str, int]]
) -> Dictionary | None:
    """The fitting dictionary in a folder; adds all candidates to `seen`. Raises BadModel if several that differ fit."""
    fitting = list[Dictionary]()
    for file in files:
        if file.folder == folder and _may_be_one(file):
            lines = _lines(file)
            seen.append((file.name, len(lines)))
            fitting += [dictionary] if (dictionary := fit(lines, classes, file.name)) else []
    # Prefer dictionaries that leave one class for the space, as all of PP-OCR's dictionaries do.
    fitting = [dictionary for dictionary in fitting if dictionary.adds_space] or fitting
    if len({dictionary.characters for dictionary in fitting}) > 1:
        origins = ", ".join(dictionary.origin for dictionary in fitting)
        raise BadModel(
            f"{name} has {classes} classes, and several dictionaries fit: {origins}.",
            "Choose one with --dictionary FILE.",
        )
    return fitting[0] if fitting else None


def _may_be_one(file: SourceFile) -> bool:
    try:
        return file.ending in _ENDINGS and file.path.stat().st_size <= _LARGEST_BYTES
    except OSError:
        return False


def _lines(file: SourceFile) -> Sequence[str]:
    """The lines of a file; empty if it is not UTF-8 and therefore cannot be a dictionary."""
    try:
        return lines_of(file.read_text())
    except BadModel:
        return ()


def _mismatch(seen: Sequence[tuple[str, int]], classes: int, name: str) -> BadModel:
    """The error if no dictionary fits; `seen` has the origin and the number of entries of each dictionary found."""
    origins = "; ".join(f"{origin} has {count}" for origin, count in seen)
    return BadModel(
        f"{name} has {classes} classes, and no dictionary with {classes - 2} or {classes - 1} entries was found"
        f"{f' ({origins})' if origins else ''}.",
        "Name its dictionary with --dictionary FILE: one character per line, without the blank.",
    )
