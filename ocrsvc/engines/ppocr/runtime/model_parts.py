"""The parts of a model that ppocr runs: a detector, one recognizer or several, and the dictionaries of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ocrsvc.engines.model.description import Detection, Recognition
from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.version import ModelVersion, built_in_model
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, InputFormat
from ocrsvc.errors import BadModel

Kind = Literal["detection", "recognition"]

DETECTION: Final = "detection"
RECOGNITION: Final = "recognition"

CHARACTERS: Final = "character"  # the property with a recognizer's dictionary, a text a line
CLASSES: Final = "ocrsvc.classes"  # the property with the number of a recognizer's classes, which preparation adds
PRODUCT: Final = "ocrsvc.product"
"""The property of a recognizer that ends in a product, a bias and a softmax, which preparation adds."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelPart:
    """One ONNX model of a version, read and held against the manifest."""

    version: ModelVersion
    described: Detection | Recognition  # what its `model.toml` says of it
    shipped: bytes  # what its file holds

    @classmethod
    def read(cls, version: ModelVersion, described: Detection | Recognition) -> ModelPart:
        """Read a part's file. Raises BadModel."""
        return cls(version, described, version.read(described.file))

    @property
    def kind(self) -> Kind:
        """Whether it finds lines or reads them."""
        return DETECTION if isinstance(self.described, Detection) else RECOGNITION

    @property
    def file(self) -> str:
        """Its name in the version's folder."""
        return self.described.file

    @property
    def input_format(self) -> InputFormat:
        """What the model takes."""
        height_px = self.described.height_px if isinstance(self.described, Recognition) else HEIGHT_PX
        return InputFormat(self.described.mean, self.described.std, height_px)

    def __str__(self) -> str:
        return f"{self.version}: {self.file}"

    @property
    def cache_name(self) -> str:
        """Of its entries in the model cache, where each name keeps a few."""
        file = self.file.replace("/", "_")
        return file if self.version.is_built_in else f"{self.version.name}.{file}"

    @property
    def smallest_shape(self) -> tuple[int, int, int, int]:
        """(N, 3, H, W) of a first run."""
        return (1, 3, 160, 160) if self.kind == DETECTION else (1, 3, self.input_format.height_px, 96)


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A detector, and the recognizers by their names, the usual one first."""

    detection: ModelPart
    recognition: Mapping[str, ModelPart]

    @property
    def key(self) -> ModelKey | None:
        """What is made of the parts is cached encrypted with it; None for plain ones."""
        return self.detection.version.key

    @property
    def names(self) -> tuple[str, str]:
        """The model's title and version, for people."""
        version = self.detection.version
        number = version.digest if version.is_built_in else str(version.number)
        return version.description.title or version.name, number


def read_parts(model: ModelVersion) -> ModelParts:
    """The parts of a model. Raises BadModel: one is missing, or is not the file of the manifest."""
    described = model.description
    if described.detection is None or not described.recognition:
        missing = "[detection]" if described.detection is None else "[[recognition]]"
        raise BadModel(f"{model}: model.toml has no {missing}, which the engine ppocr needs.", "Add it, with its file.")
    names = [one.name for one in described.recognition]
    if len(set(names)) < len(names):
        raise BadModel(f"{model}: model.toml: two recognizers have one name.", "Give each [[recognition]] its own.")
    recognition = {one.name: ModelPart.read(model, one) for one in described.recognition}
    return ModelParts(ModelPart.read(model, described.detection), recognition)


def built_in_part(kind: Kind) -> ModelPart:
    """The detector or the recognizer of the built-in model. Raises EngineUnavailable without its wheel."""
    model = built_in_model()
    detection, recognition = model.description.detection, model.description.recognition[0]
    assert detection is not None, "it has both"
    return ModelPart.read(model, detection if kind == DETECTION else recognition)


def read_dictionary(part: ModelPart, properties: Mapping[str, str]) -> list[str]:
    """The text of each class: blank, those of the dictionary, and the space where the model has it besides.

    `properties` are those of the prepared model. Raises BadModel: there is no dictionary, or it is another model's.
    """
    described = part.described
    assert isinstance(described, Recognition), "a detector has no dictionary"
    if described.dictionary is not None:
        texts, source = _texts_in(part, described.dictionary), described.dictionary
    elif CHARACTERS in properties:
        texts, source = properties[CHARACTERS].split("\n"), f"its property {CHARACTERS!r}"
    else:
        raise BadModel(
            f"{part} carries no dictionary (its property {CHARACTERS!r}), and model.toml names none.",
            'Name the file with the text of each class in a line: dictionary = "dict.txt".',
        )
    classes = ["", *texts, *([" "] if described.adds_space else [])]
    wanted = int(properties[CLASSES])
    if len(classes) != wanted:
        beside = "the blank and a space" if described.adds_space else "the blank"
        raise BadModel(
            f"{part} has {wanted} classes, and its dictionary, {source}, has {len(classes)} with {beside}.",
            "Name the model's own dictionary in model.toml, and see whether adds_space is right.",
        )
    return classes


def _texts_in(part: ModelPart, file: str) -> list[str]:
    """The lines of a dictionary's file. A text may be of spaces, so nothing but the ends of lines is taken off."""
    try:
        content = part.version.read(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadModel(f"{part.version}: {file} is no text in UTF-8: {error}.", "Copy the dictionary again.") from error
    return [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
