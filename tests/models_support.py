"""Model versions and repositories for tests."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ocrsvc.engines.model.files import write_manifest
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, ModelPart, built_in_part
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import StateStore, Verdict


def make_version(
    repository: Path, name: str, number: int, model: str, files: Mapping[str, bytes] | None = None
) -> ModelVersion:
    """Write a version with this `model.toml` and these files, and its manifest."""
    folder = repository / name / str(number)
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(model)
    for file, content in (files or {}).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    write_manifest(folder)
    return ModelRepository(repository).open(name, number)


def make_fake(
    repository: Path,
    number: int,
    name: str = "fake",
    *,
    tier: str = "",
    languages: Sequence[str] = (),
    **settings: object,
) -> ModelVersion:
    """Write a fake-engine version that reads the line `NAME/NUMBER` on every page; `settings` are the engine's."""
    lines = ['engine = "fake"', *([f'tier = "{tier}"'] if tier else [])]
    if languages:
        lines += ["[[recognition]]", 'file = "rec.onnx"', f"languages = {list(languages)}"]
    values = {"fake_text": f"{name}/{number}", **settings}
    lines += ["[settings]", *(f"{setting} = {json.dumps(value)}" for setting, value in values.items())]
    return make_version(repository, name, number, "\n".join(lines), {"rec.onnx": b"nothing"} if languages else {})


def accept(folder: Path, *versions: ModelVersion) -> None:
    """Record these versions as accepted, in the state folder `state` beside their repository."""
    store = StateStore(folder / "state")
    for version in versions:
        store.record_verdict(version.digest, Verdict(accepted=True))


@cache
def built_in() -> tuple[ModelPart, ModelPart]:
    """The built-in model's detector and recognizer."""
    return built_in_part(DETECTION), built_in_part(RECOGNITION)


def make_several(folder: Path) -> dict[str, str]:
    """Write a repository of accepted fake-engine versions and its state; returns the variables that configure it.

    east/1 (stable, the default) and east/2 (canary) read zh and en and are small; north/1 reads ru and th and is tiny.
    """
    repository = folder / "models"
    for name, number, tier, languages in (
        ("east", 1, "small", ("zh", "en")),
        ("east", 2, "small", ("zh", "en")),
        ("north", 1, "tiny", ("ru", "th")),
    ):
        accept(folder, make_fake(repository, number, name, tier=tier, languages=languages))
    (repository / "models.toml").write_text('[east]\nversions = "all"\nlabels = {stable = 1, canary = 2}\n')
    variables = {"OCRSVC_MODELS": repository, "OCRSVC_MODELS_STATE": folder / "state", "OCRSVC_MODEL": "east"}
    return {"OCRSVC_ENGINE": "fake"} | {name: str(value) for name, value in variables.items()}
