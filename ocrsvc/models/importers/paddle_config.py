"""Reads PaddleOCR's `inference.yml` of a detector or a recognizer.

It uses YAML's events only: scalars stay text (`no` is a character, not false), tags create no objects, and aliases
become None, so a hostile file costs only time linear in its size.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from ocrsvc.engines.model.description import Triple
from ocrsvc.errors import BadModel

DETECTORS: Final = "DBPostProcess"
RECOGNIZERS: Final = "CTCLabelDecode"
_DEEPEST: Final = 32
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALE: Final = 1 / 255


@dataclass(frozen=True, slots=True)
class PaddleConfig:
    """Values from an `inference.yml` that an import uses, in the units of description.py; None if absent.

    `characters` are the entries of a recognizer's dictionary, without blank and space.
    """

    model_name: str = ""
    post_process: str = ""
    mean: Triple | None = None
    std: Triple | None = None
    map_threshold: float | None = None
    box_threshold: float | None = None
    unclip_ratio: float | None = None
    height_px: int | None = None
    characters: tuple[str, ...] | None = None


def parse_config(text: str, name: str) -> PaddleConfig:
    """Parse an `inference.yml`; `name` is the file's name, for messages. Raises BadModel."""
    try:
        return _config(_table(_read(text)))
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        raise BadModel(f"{name} is not in PaddleOCR's format: {error}.", "Export the model again.") from error


def _config(whole: Mapping[str, Any]) -> PaddleConfig:
    post, steps = _table(whole.get("PostProcess")), _table(whole.get("PreProcess")).get("transform_ops")
    operations: dict[str, Any] = {}
    for step in steps if isinstance(steps, list) else []:
        operations.update(_table(step))
    normalize, image = _table(operations.get("NormalizeImage")), _table(operations.get("DecodeImage"))
    if image.get("img_mode", "BGR") != "BGR":
        raise ValueError(f"its images are {str(image['img_mode'])[:20]}, accepted is BGR")
    if not math.isclose(_quotient(normalize.get("scale", "1/255")), _SCALE, rel_tol=1e-4):
        raise ValueError(f"it scales pixels by {str(normalize['scale'])[:40]!r}, accepted is 1./255.")
    shape = _table(operations.get("RecResizeImg")).get("image_shape")
    characters = post.get("character_dict")
    return PaddleConfig(
        str(_table(whole.get("Global")).get("model_name", "")),
        str(post.get("name", "")),
        _triple(normalize.get("mean")),
        _triple(normalize.get("std")),
        _number(post.get("thresh")),
        _number(post.get("box_thresh")),
        _number(post.get("unclip_ratio")),
        None if shape is None else int(shape[1]),
        None if characters is None else tuple(map(_character, characters)),
    )


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _character(value: object) -> str:
    if not isinstance(value, str) or "\n" in value:
        raise ValueError("character_dict contains entries that are not single lines of text")
    return value


def _quotient(text: str) -> float:
    """The value of a quotient such as 1./255. (PaddleOCR's form), or of a number. Raises ValueError."""
    above, _, below = text.partition("/")
    return float(above) / (float(below or 1) or math.nan)


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _triple(values: Sequence[str] | None) -> Triple | None:
    if values is None:
        return None
    first, second, third = map(float, values)
    return first, second, third


def _read(text: str) -> object:
    """Parse YAML to dicts, lists and texts, with None for an alias. Raises YAMLError, ValueError."""
    stack: list[list[object]] = [[]]
    mappings: list[bool] = []
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.ScalarEvent):
            stack[-1].append(event.value)
        elif isinstance(event, yaml.AliasEvent):
            stack[-1].append(None)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            stack.append([])
            mappings.append(isinstance(event, yaml.MappingStartEvent))
            if len(stack) > _DEEPEST:
                raise ValueError("it is nested too deeply")
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            values = stack.pop()
            pairs = zip(values[::2], values[1::2], strict=False)
            stack[-1].append({str(key): value for key, value in pairs} if mappings.pop() else values)
    return stack[0][0] if stack[0] else None
