"""Repositories of models for tests: versions of the fake engine, which cost nothing to open."""

from __future__ import annotations

from pathlib import Path

from ocrsvc.model_repository.manifest import write_manifest
from ocrsvc.model_repository.repository import ModelRepository
from ocrsvc.model_repository.version import ModelVersion


def make_fake_version(
    repository: Path, name: str, number: int, *, tier: str = "", languages: tuple[str, ...] = (), settings: str = ""
) -> ModelVersion:
    """A version of the engine `fake`.

    Args:
        repository: The folder of models.
        name, number: Of the version.
        tier, languages: As of a description; the languages are those of one recognizer.
        settings: Lines of the table `settings`.
    """
    folder = repository / name / str(number)
    folder.mkdir(parents=True)
    lines = ['engine = "fake"', *([f'tier = "{tier}"'] if tier else [])]
    if languages:
        lines += ["[[recognition]]", 'file = "rec.onnx"', f"languages = {list(languages)}"]
        (folder / "rec.onnx").write_bytes(b"nothing")
    lines += ["[settings]", settings]
    (folder / "model.toml").write_text("\n".join(lines) + "\n")
    # So that no two have one digest.
    (folder / "note.txt").write_text(f"{name}/{number}")
    write_manifest(folder)
    found = ModelRepository(repository).scan().find(name, number)
    assert found is not None
    return found
