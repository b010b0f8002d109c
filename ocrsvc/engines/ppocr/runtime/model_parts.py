"""The networks of a ppocr model: a detector, one or more recognizers, and their dictionaries."""

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

CHARACTERS: Final = "character"  # ONNX metadata property with a recognizer's dictionary, one text per line
CLASSES: Final = "ocrsvc.classes"  # property with a recognizer's number of classes, added by preparation
PRODUCT: Final = "ocrsvc.product"
"""Property of a recognizer that ends in a matrix product, a bias and a softmax, added by preparation."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelPart:
    """One ONNX model of a version, read and checked against the manifest."""

    version: ModelVersion
    described: Detection | Recognition  # its table in `model.toml`
    shipped: bytes  # its file's content

    @classmethod
    def read(cls, version: ModelVersion, described: Detection | Recognition) -> ModelPart:
        """Read a part's file. Raises BadModel."""
        return cls(version, described, version.read(described.file))

    @property
    def kind(self) -> Kind:
        """Detection or recognition."""
        return DETECTION if isinstance(self.described, Detection) else RECOGNITION

    @property
    def file(self) -> str:
        """Its name in the version's folder."""
        return self.described.file

    @property
    def input_format(self) -> InputFormat:
        """The input that the model expects."""
        height_px = self.described.height_px if isinstance(self.described, Recognition) else HEIGHT_PX
        return InputFormat(self.described.mean, self.described.std, height_px)

    def __str__(self) -> str:
        return f"{self.version}: {self.file}"

    @property
    def cache_name(self) -> str:
        """Name of its entries in the model cache."""
        file = self.file.replace("/", "_")
        return file if self.version.is_built_in else f"{self.version.name}.{file}"

    @property
    def smallest_shape(self) -> tuple[int, int, int, int]:
        """(N, 3, H, W) shape for trial runs."""
        return (1, 3, 160, 160) if self.kind == DETECTION else (1, 3, self.input_format.height_px, 96)


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A detector, and the recognizers by name, the default first."""

    detection: ModelPart
    recognition: Mapping[str, ModelPart]

    @property
    def key(self) -> ModelKey | None:
        """Key that encrypts cached models; None if the files are plain."""
        return self.detection.version.key

    @property
    def names(self) -> tuple[str, str]:
        """The model's title and version, for people."""
        version = self.detection.version
        number = version.digest if version.is_built_in else str(version.number)
        return version.description.title or version.name, number


def read_parts(model: ModelVersion) -> ModelParts:
    """Read the parts of a model. Raises BadModel: a part is missing, or does not match the manifest."""
    described = model.description
    if described.detection is None or not described.recognition:
        missing = "[detection]" if described.detection is None else "[[recognition]]"
        raise BadModel(f"{model}: model.toml has no {missing}, which the engine ppocr needs.", "Add it, with its file.")
    names = [part.name for part in described.recognition]
    if len(set(names)) < len(names):
        raise BadModel(
            f"{model}: model.toml: two recognizers have the same name.", "Give each [[recognition]] its own name."
        )
    recognition = {part.name: ModelPart.read(model, part) for part in described.recognition}
    return ModelParts(ModelPart.read(model, described.detection), recognition)


def built_in_part(kind: Kind) -> ModelPart:
    """The detector or the recognizer of the built-in model. Raises EngineUnavailable without its wheel."""
    model = built_in_model()
    detection, recognition = model.description.detection, model.description.recognition[0]
    assert detection is not None, "the built-in model has both"
    return ModelPart.read(model, detection if kind == DETECTION else recognition)


def read_dictionary(part: ModelPart, properties: Mapping[str, str]) -> list[str]:
    """The text of each class: blank, those of the dictionary, and the space if `adds_space`.

    `properties` are those of the prepared model. Raises BadModel: the dictionary is missing, or of a wrong length.
    """
    described = part.described
    assert isinstance(described, Recognition), "a detector has no dictionary"
    if described.dictionary is not None:
        texts, source = _texts_in(part, described.dictionary), described.dictionary
    elif CHARACTERS in properties:
        texts, source = properties[CHARACTERS].split("\n"), f"its property {CHARACTERS!r}"
    else:
        raise BadModel(
            f"{part} contains no dictionary (property {CHARACTERS!r}), and model.toml names none.",
            'Name a text file with one class per line: dictionary = "dict.txt".',
        )
    classes = ["", *texts, *([" "] if described.adds_space else [])]
    expected = int(properties[CLASSES])
    if len(classes) != expected:
        added = "the blank and a space" if described.adds_space else "the blank"
        raise BadModel(
            f"{part} has {expected} classes, but its dictionary, {source}, has {len(classes)} including {added}.",
            "Name the model's own dictionary in model.toml, and check adds_space.",
        )
    return classes


def _texts_in(part: ModelPart, file: str) -> list[str]:
    """The lines of a dictionary file. A line may consist of spaces, so only line ends are removed."""
    try:
        content = part.version.read(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadModel(f"{part.version}: {file} is not UTF-8 text: {error}.", "Copy the dictionary again.") from error
    return [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
