"""The dictionary of a recognizer: the text of each of its classes."""

from __future__ import annotations

from collections.abc import Mapping

from ocrsvc.engines.model.description import Recognition
from ocrsvc.engines.ppocr.runtime.model_parts import ModelPart
from ocrsvc.engines.ppocr.runtime.models import CHARACTERS, CLASSES
from ocrsvc.errors import BadModel


def read_dictionary(part: ModelPart, properties: Mapping[str, str]) -> list[str]:
    """The text of each class: blank, those of the dictionary, and the space where the model has it besides.

    Args:
        part: A recognizer.
        properties: Of the prepared model.

    Raises:
        BadModel: There is no dictionary, or it is another model's, of more or fewer classes.
    """
    described = part.described
    assert isinstance(described, Recognition), "a detector has no dictionary"
    texts, source = _texts_of(part, described, properties)
    classes = ["", *texts, *([" "] if described.adds_space else [])]
    wanted = int(properties[CLASSES])
    if len(classes) != wanted:
        beside = "the blank and a space" if described.adds_space else "the blank"
        raise BadModel(
            f"{part} has {wanted} classes, and its dictionary, {source}, has {len(classes)} with {beside}.",
            "Name the model's own dictionary in model.toml, and see whether adds_space is right.",
        )
    return classes


def _texts_of(part: ModelPart, described: Recognition, properties: Mapping[str, str]) -> tuple[list[str], str]:
    """The texts, and where they stand."""
    if described.dictionary is not None:
        return _texts_in(part, described.dictionary), described.dictionary
    if CHARACTERS not in properties:
        raise BadModel(
            f"{part} carries no dictionary (its property {CHARACTERS!r}), and model.toml names none.",
            'Name the file with the text of each class in a line: dictionary = "dict.txt".',
        )
    return properties[CHARACTERS].split("\n"), f"its property {CHARACTERS!r}"


def _texts_in(part: ModelPart, file: str) -> list[str]:
    """The lines of a dictionary's file. A text may be of spaces, so nothing but the ends of lines is taken off."""
    try:
        content = part.version.read(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadModel(f"{part.version}: {file} is no text in UTF-8: {error}.", "Copy the dictionary again.") from error
    return [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
