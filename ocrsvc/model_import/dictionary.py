"""A recognizer's dictionary: the text of each class, and how many classes stand beside it (the blank, the space)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ocrsvc.errors import BadModel


@dataclass(frozen=True, slots=True)
class Dictionary:
    """The texts of a recognizer's classes.

    Attributes:
        characters: Of each class between the blank and, if one is added, the space.
        adds_space: As description.Recognition has it.
        is_property: Whether the model carries it, so that no file is needed.
        origin: Where it was found, for people.
    """

    characters: tuple[str, ...]
    adds_space: bool
    is_property: bool
    origin: str


def fit(characters: Sequence[str], classes: int, origin: str, *, is_property: bool = False) -> Dictionary | None:
    """The dictionary that these texts make for so many classes; None if they are too many or too few."""
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


def from_property(text: str, classes: int) -> Dictionary | None:
    """What a model's property `character` makes of its classes."""
    origin, lines, split = "the property `character`", lines_of(text), text.split("\n")
    # The engine splits a property at line feeds; where its lines are others, it gets a file.
    found = fit(lines, classes, origin, is_property=list(lines) == split)
    return found or fit(split, classes, origin, is_property=True)


def mismatch(found: Sequence[tuple[str, int]], classes: int, name: str) -> BadModel:
    """The error for a recognizer none of whose dictionaries fits; each with its number of entries."""
    seen = "; ".join(f"{origin} has {count}" for origin, count in found)
    return BadModel(
        f"{name} has {classes} classes, and no dictionary with {classes - 2} or {classes - 1} entries was found"
        f"{f' ({seen})' if seen else ''}.",
        "Name its dictionary with --dictionary FILE: a character in each line, without the blank.",
    )
