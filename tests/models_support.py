"""What tests of models share: versions of models in a repository of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, ModelPart, built_in_part
from ocrsvc.model_repository.manifest import write_manifest
from ocrsvc.model_repository.repository import ModelRepository
from ocrsvc.model_repository.version import ModelVersion


def make_version(
    repository: Path, name: str, number: int, model: str, files: Mapping[str, bytes] | None = None
) -> ModelVersion:
    """A version with that `model.toml` and those files, its manifest written last."""
    folder = repository / name / str(number)
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(model)
    for file, content in (files or {}).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    write_manifest(folder)
    return ModelRepository(repository).open(name, number)


def make_fake(repository: Path, number: int, name: str = "fake", **settings: object) -> ModelVersion:
    """A version of the fake engine that says which one it is: it reads the line `NAME/NUMBER` on every page."""
    told = {"fake_text": f"{name}/{number}", **settings}
    rows = [f"{setting} = {_as_toml(value)}" for setting, value in told.items()]
    return make_version(repository, name, number, "\n".join(['engine = "fake"', "[settings]", *rows]))


def _as_toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


@cache
def built_in() -> tuple[ModelPart, ModelPart]:
    """The detector and the recognizer of the built-in model."""
    return built_in_part(DETECTION), built_in_part(RECOGNITION)
