"""What is wrong with the parts of a version, each by itself: what its models are, and how many classes they have."""

from __future__ import annotations

from collections.abc import Iterator

from ocrsvc.errors import BadModel
from ocrsvc.model_import.dictionary import lines_of
from ocrsvc.model_import.onnx_graph import OnnxGraph, inspect_model
from ocrsvc.model_repository.description import Detection, Recognition
from ocrsvc.model_repository.version import ModelVersion


def faults_of(version: ModelVersion) -> Iterator[str]:
    """What is wrong with a version's files and parts, a sentence each; all of them are read.

    Raises:
        EncryptionMissing: It is encrypted, and the package that decrypts is not installed.
    """
    for file in sorted(version.digests):
        try:
            version.read(file)
        except BadModel as error:
            yield str(error)
            return
    description = version.description
    for part in (description.detection, *description.recognition) if description.engine == "ppocr" else ():
        try:
            yield from _faults(version, part) if part is not None else ()
        except BadModel as error:
            yield str(error)


def _faults(version: ModelVersion, part: Detection | Recognition) -> Iterator[str]:
    """Raises BadModel: a file is missing, or no ONNX model."""
    graph = inspect_model(version.read(part.file), part.file)
    wanted = "detector" if isinstance(part, Detection) else "recognizer"
    if graph.kind != wanted:
        yield f"{part.file} is {graph.what}, and stands as the {wanted}."
    elif isinstance(part, Recognition):
        yield from _recognizer_faults(version, part, graph)


def _recognizer_faults(version: ModelVersion, part: Recognition, graph: OnnxGraph) -> Iterator[str]:
    if graph.height_px is not None and graph.height_px != part.height_px:
        yield f"{part.file} takes lines of {graph.height_px} px, and height_px is {part.height_px}."
    if part.dictionary is not None:
        count, where = len(lines_of(version.read(part.dictionary).decode("utf-8", "replace"))), part.dictionary
    elif graph.characters is not None:
        count, where = graph.characters.count("\n") + 1, "its property `character`"
    else:
        yield f"{part.file} carries no dictionary, and dictionary names none."
        return
    classes = count + 1 + part.adds_space
    if graph.classes is not None and graph.classes != classes:
        space = " and the space" if part.adds_space else ""
        yield f"{part.file} has {graph.classes} classes, and {where} makes {classes} with the blank{space}."
