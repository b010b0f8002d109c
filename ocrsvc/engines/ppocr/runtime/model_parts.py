"""The networks of a ppocr model: a detector, one or more recognizers, and their dictionaries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ocrsvc.engines.model.description import Detection, Recognition
from ocrsvc.engines.model.version import ModelVersion, built_in_model
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, InputFormat
from ocrsvc.errors import BadModel

Kind = Literal["detection", "recognition"]
DETECTION: Final = "detection"
RECOGNITION: Final = "recognition"
CHARACTERS: Final = "character"  # ONNX metadata property with a recognizer's dictionary, one text per line
CLASSES: Final = "ocrsvc.classes"  # property with a recognizer's number of classes, added by preparation
# Property of a recognizer that ends in a matrix product, a bias and a softmax, added by preparation.
PRODUCT: Final = "ocrsvc.product"


@dataclass(frozen=True, slots=True, eq=False)
class ModelPart:
    """One ONNX model of a version, read and checked against the manifest."""

    version: ModelVersion
    described: Detection | Recognition  # its table in `model.toml`
    shipped: bytes  # its file's content

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


def read_parts(model: ModelVersion) -> ModelParts:
    """Read the parts of a model. Raises BadModel: a part is missing, or does not match the manifest."""
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


def built_in_part(kind: Kind) -> ModelPart:
    """The detector or the recognizer of the built-in model. Raises EngineUnavailable without its wheel."""
    model = built_in_model()
    detection, recognition = model.description.detection, model.description.recognition[0]
    assert detection is not None, "the built-in model has both"
    return _read_part(model, detection if kind == DETECTION else recognition)


def read_dictionary(part: ModelPart, properties: Mapping[str, str]) -> list[str]:
    """The text of each class: blank, dictionary, space if `adds_space`. Raises BadModel: missing, wrong length."""
    described = part.described
    assert isinstance(described, Recognition), "a detector has no dictionary"
    if described.dictionary is not None:
        source = described.dictionary
        try:
            content = part.version.read(source).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            reason = f"{part.version}: {source} is not UTF-8 text: {error}."
            raise BadModel(reason, "Copy the dictionary again.") from error
        # A line may consist of spaces, so only line ends are removed.
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
