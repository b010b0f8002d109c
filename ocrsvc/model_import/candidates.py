"""The detectors and recognizers among some files, each with the `inference.yml` that belongs to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

from ocrsvc.errors import BadModel
from ocrsvc.model_import.onnx_graph import OnnxGraph, inspect_model
from ocrsvc.model_import.paddle_config import DETECTORS, RECOGNIZERS, PaddleConfig, parse_config
from ocrsvc.model_import.source_files import MOST_MODEL_BYTES, SourceFile
from ocrsvc.model_repository.description import Tier

_WORD: Final = re.compile(r"[a-z0-9]+")
_TIERS: Final = frozenset(get_args(Tier))
_CONFIGS: Final = (".yml", ".yaml")
_MAKES: Final = {DETECTORS: "detector", RECOGNIZERS: "recognizer"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may become a part.

    Attributes:
        file: It.
        graph: What it is.
        config: What its `inference.yml` says; empty without one.
    """

    file: SourceFile
    graph: OnnxGraph
    config: PaddleConfig

    @property
    def tier(self) -> str | None:
        """The tier that its name, or that of one of its folders, says."""
        found = _TIERS & set(_WORD.findall(f"{self.file.name} {self.config.model_name}".lower()))
        return min(found) if len(found) == 1 else None

    @property
    def script(self) -> str | None:
        """The script that it is for, where it lies in rec/SCRIPT/, as TurboOCR has them."""
        folders = self.file.folder.relative_to(self.file.root).parts
        return folders[-1].lower() if len(folders) > 1 and folders[-2] == "rec" else None


def find_candidates(files: Sequence[SourceFile]) -> list[Candidate]:
    """What each ONNX model among the files is. Raises BadModel: one cannot be read."""
    models = [file for file in files if file.ending == ".onnx"]
    if not models:
        raise _no_models(files)
    return [_candidate(file, inspect_model(file.read(MOST_MODEL_BYTES), file.name), files) for file in models]


def _candidate(file: SourceFile, graph: OnnxGraph, files: Sequence[SourceFile]) -> Candidate:
    for config_file in files:
        if config_file.ending in _CONFIGS and config_file.folder == file.folder:
            config = parse_config(config_file.read_text(), config_file.name)
            # A folder may hold both models, and the configuration of one.
            if _MAKES.get(config.post_process) == graph.kind:
                return Candidate(file, graph, config)
            if graph.kind == "recognizer" and config.post_process and config.post_process not in _MAKES:
                what = f"a model whose output {config.post_process} decodes, accepted is {RECOGNIZERS}"
                return Candidate(file, OnnxGraph("other", what), config)
    return Candidate(file, graph, PaddleConfig())


def _no_models(files: Sequence[SourceFile]) -> BadModel:
    """Why nothing was found: PaddlePaddle's own files say that they are to be converted."""
    paddle = next((file for file in files if file.ending in (".pdmodel", ".pdiparams")), None)
    if paddle is None:
        return BadModel(
            "There is no ONNX model among these files.",
            "Accepted are a detector (.onnx) and a recognizer (.onnx) with its dictionary; PaddleOCR's folders with "
            "inference.onnx and inference.yml; a folder with libtr.so, ctpn.bin and crnn.bin; or a folder with a "
            "model.toml.",
        )
    names = {file.base for file in files if file.folder == paddle.folder}
    program = "inference.pdmodel" if "inference.pdmodel" in names else "inference.json"
    return BadModel(
        f"{paddle.name} is a model of PaddlePaddle, which has to be converted to ONNX first.",
        "In a virtual environment of its own: pip install paddlepaddle paddle2onnx; then in the folder: paddle2onnx "
        f"--model_dir . --model_filename {program} --params_filename inference.pdiparams --save_file inference.onnx. "
        "Leave inference.yml beside it.",
    )
