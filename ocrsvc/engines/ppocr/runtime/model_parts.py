"""The networks of a ppocr model: a detector, one or more recognizers, and their dictionaries."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ocrsvc.engines.model.description import Description, Detection, Recognition
from ocrsvc.engines.model.version import ModelVersion, built_in_model
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, InputFormat
from ocrsvc.errors import BadModel

Kind = Literal["detection", "recognition"]
DETECTION: Final = "detection"
RECOGNITION: Final = "recognition"
CHARACTERS: Final = "character"  # ONNX metadata property that holds a recognizer's dictionary, one class per line
CLASSES: Final = "ocrsvc.classes"  # property with a recognizer's number of classes, added by preparation
# Metadata property that preparation adds to a recognizer that ends in a matrix product, bias and softmax.
PRODUCT: Final = "ocrsvc.product"
# The recognizer that reads first in a cascade; benchmarks/tiny_model.py made the file.
_TINY: Final = Recognition(file="PP-OCRv6_rec_tiny.onnx")
_TINY_DESCRIPTION: Final = Description(title="PP-OCRv6 tiny", tier="tiny", recognition=(_TINY,))
_WEIGHTS: Final = Path(__file__).parents[1] / "weights"


@dataclass(frozen=True, slots=True, eq=False)
class ModelPart:
    """One ONNX model of a version, verified against the manifest."""

    version: ModelVersion
    described: Detection | Recognition  # the part's table in `model.toml`
    shipped: bytes  # content of the ONNX file as delivered, before preparation

    @property
    def kind(self) -> Kind:
        """DETECTION or RECOGNITION."""
        return DETECTION if isinstance(self.described, Detection) else RECOGNITION

    @property
    def file(self) -> str:
        """The ONNX file's name in the version's folder."""
        return self.described.file

    @property
    def input_format(self) -> InputFormat:
        """The input format that the model expects."""
        height_px = self.described.height_px if isinstance(self.described, Recognition) else HEIGHT_PX
        return InputFormat(self.described.mean, self.described.std, height_px)

    def __str__(self) -> str:
        return f"{self.version}: {self.file}"

    @property
    def cache_name(self) -> str:
        """The name of this part's entries in the model cache."""
        file = self.file.replace("/", "_")
        return file if self.version.is_built_in else f"{self.version.name}.{file}"

    @property
    def smallest_shape(self) -> tuple[int, int, int, int]:
        """The shape (N, 3, H, W) of a small input for trial runs of the model."""
        return (1, 3, 160, 160) if self.kind == DETECTION else (1, 3, self.input_format.height_px, 96)


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A detector, and recognizers by name, of which the first is the default."""

    detection: ModelPart
    recognition: Mapping[str, ModelPart]


def read_parts(model: ModelVersion) -> ModelParts:
    """Read the parts of a model. Raises BadModel if a part is missing or does not match the manifest."""
    described = model.description
    if described.detection is None or not described.recognition:
        missing = "[detection]" if described.detection is None else "[[recognition]]"
        raise BadModel(f"{model}: model.toml has no {missing}, which the engine ppocr needs.", "Add it, with its file.")
    names = [part.name for part in described.recognition]
    if len(set(names)) < len(names):
        raise BadModel(f"{model}: model.toml: two recognizers have the same name.", "Give each its own name.")
    recognition = {part.name: _read_part(model, part) for part in described.recognition}
    return ModelParts(_read_part(model, described.detection), recognition)


def _read_part(version: ModelVersion, described: Detection | Recognition) -> ModelPart:
    return ModelPart(version, described, version.read(described.file))


def detection_part(model: ModelVersion | None) -> ModelPart:
    """The detector of a model, or the built-in one if the model has none. Raises BadModel, EngineUnavailable."""
    described = None if model is None else model.description.detection
    return built_in_part(DETECTION) if model is None or described is None else _read_part(model, described)


def built_in_part(kind: Kind) -> ModelPart:
    """The detector or the recognizer of the built-in model. Raises EngineUnavailable if its package is missing."""
    model = built_in_model()
    detection, recognition = model.description.detection, model.description.recognition[0]
    assert detection is not None, "the built-in model has both"
    return _read_part(model, detection if kind == DETECTION else recognition)


def tiny_part() -> ModelPart:
    """The tiny recognizer, which reads lines first and leaves those that it may read wrong to the built-in one."""
    return _read_part(ModelVersion("ppocr-tiny", 1, _TINY_DESCRIPTION, _WEIGHTS, digest=""), _TINY)


def read_dictionary(part: ModelPart, properties: Mapping[str, str]) -> list[str]:
    """The text of each class: blank, dictionary, space if `adds_space`. Raises BadModel if their number is wrong."""
    described = part.described
    assert isinstance(described, Recognition), "a detector has no dictionary"
    if described.dictionary is not None:
        source = described.dictionary
        try:
            content = part.version.read(source).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            reason = f"{part.version}: {source} is not UTF-8 text: {error}."
            raise BadModel(reason, "Copy the dictionary again.") from error
        # Remove line ends only: a dictionary line may consist of spaces.
        texts = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
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
