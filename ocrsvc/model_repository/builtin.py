"""The built-in model ppocr/1: PP-OCRv6 small, as the `rapidocr` wheel carries it (Apache-2.0, PaddlePaddle authors).

The package is never imported: only its folder is asked for.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from ocrsvc.errors import EngineUnavailable
from ocrsvc.model_repository.description import Description, Detection, Recognition
from ocrsvc.model_repository.version import ModelVersion

NAME: Final = "ppocr"
NUMBER: Final = 1
TITLE: Final = "PP-OCRv6 small"
DETECTION: Final = "PP-OCRv6_det_small.onnx"
RECOGNITION: Final = "PP-OCRv6_rec_small.onnx"

LANGUAGES: Final = (
    *("zh", "zh-hant", "ja", "en", "de", "fr", "es", "pt", "it", "nl", "sv", "da", "nb", "fi", "is", "et", "lv", "lt"),
    *("pl", "cs", "sl", "hr", "sr-latn", "hu", "ro", "tr", "id", "ms", "tl", "sw", "af", "sq", "eu", "ca", "gl", "ga"),
    *("mt",),
)
"""What its dictionary of 18,708 characters can write, but for Slovak, Azerbaijani and Esperanto: of their own letters
75 %, 53 % and none are read in ordinary sentences (docs/design/languages.md)."""

DESCRIPTION: Final = Description(
    engine="ppocr",
    title=TITLE,
    tier="small",
    licence="Apache-2.0",
    source="the wheel rapidocr",
    detection=Detection(file=DETECTION),
    recognition=(Recognition(file=RECOGNITION, languages=LANGUAGES),),
)


@cache
def built_in_model() -> ModelVersion:
    """The built-in model. Raises EngineUnavailable when the wheel is missing, or carries other models."""
    return ModelVersion(NAME, NUMBER, DESCRIPTION, _models_folder(), wheel_version())


def wheel_version() -> str:
    """The wheel and its version, which stand for the model's digest."""
    return f"rapidocr {metadata.version('rapidocr')}"


def _models_folder() -> Path:
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        raise EngineUnavailable(
            "The package `rapidocr`, whose wheel carries the PP-OCRv6 models, is not installed.",
            "Install it with `pip install 'rapidocr>=3.10,<4'`, or choose another OCRSVC_ENGINE.",
        )
    folder = Path(spec.submodule_search_locations[0]) / "models"
    if not (folder / DETECTION).is_file():
        raise EngineUnavailable(
            f"The installed `rapidocr` holds no {DETECTION}.",
            "Install a version of it that carries the PP-OCRv6 small models (>=3.10,<4).",
        )
    return folder
