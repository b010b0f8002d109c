"""The model repository: which folders are versions, and the errors of unusable ones."""

import errno
import os
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from models_support import make_version
from support import ROOT, data_of

from ocrsvc.engines.model.files import MANIFEST
from ocrsvc.engines.model.version import built_in_model
from ocrsvc.errors import BadModel, SettingsError
from ocrsvc.models.repository import ModelRepository

MODEL = (ROOT / "tests" / "data" / "two_recognizers.toml").read_text("utf-8")


def a_version(repository: Path, name: str = "mine", number: int = 2, model: str = MODEL) -> Path:
    """Create a version with dummy model files and return its folder."""
    parts = {f"{part}.onnx": part.encode() for part in ("det", "rec", "cyrillic")}
    with suppress(BadModel):
        make_version(repository, name, number, model, parts)
    return repository / name / str(number)


def test_without_a_repository_only_the_built_in_model_exists() -> None:
    scan = ModelRepository(None).scan()
    assert [str(one) for one in scan.versions] == ["ppocr/1"]
    assert not scan.bad
    assert len(built_in_model().read("PP-OCRv6_det_small.onnx")) > 9_000_000


def test_version_without_manifest_is_ignored(tmp_path: Path) -> None:
    (a_version(tmp_path) / MANIFEST).unlink()
    scan = ModelRepository(tmp_path).scan()
    assert scan.find("mine", 2) is None
    assert not scan.bad


def test_a_changed_file_is_refused_when_it_is_read(tmp_path: Path) -> None:
    folder = a_version(tmp_path)
    (folder / "rec.onnx").write_bytes(b"other")
    found = ModelRepository(tmp_path).scan().find("mine", 2)
    assert found is not None
    with pytest.raises(BadModel, match=r"mine/2: rec\.onnx does not match the manifest"):
        found.read("rec.onnx")


@pytest.mark.parametrize(("model", "reason"), data_of("bad_descriptions"))
def test_bad_description_names_its_fault(tmp_path: Path, model: str, reason: str) -> None:
    a_version(tmp_path, model=model)
    (bad,) = ModelRepository(tmp_path).scan().bad
    assert (bad.name, bad.number, len(bad.digest)) == ("mine", 2, 64)
    with pytest.raises(BadModel, match=reason):
        raise BadModel(bad.reason)


def test_number_of_the_built_in_version_is_reserved(tmp_path: Path) -> None:
    a_version(tmp_path, "ppocr", 1)
    (bad,) = ModelRepository(tmp_path).scan().bad
    assert "built-in" in bad.reason


def test_missing_repository_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="OCRSVC_MODELS"):
        ModelRepository(tmp_path / "none").scan()
    with pytest.raises(SettingsError, match=r"OCRSVC_MODELS is .*/none, which is not a folder\. Name an existing"):
        ModelRepository(tmp_path / "none").check_key()


def test_unlistable_model_does_not_affect_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_version(tmp_path)
    closed, really = a_version(tmp_path, "closed").parent, Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        # Fake the error, because root is never denied.
        if folder == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return really(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    repository = ModelRepository(tmp_path)
    scan = repository.scan()
    assert [str(one) for one in scan.versions] == ["mine/2", "ppocr/1"]
    [bad] = scan.bad
    assert (bad.name, bad.number) == ("closed", 0)
    assert bad.reason == "closed cannot be read: Permission denied. Let the service's user read it."
    assert not repository.incomplete()


@pytest.mark.parametrize("file", [MANIFEST, "model.toml", "rec.onnx"])
def test_pipe_instead_of_a_file_is_refused(tmp_path: Path, file: str) -> None:
    folder = a_version(tmp_path)
    (folder / file).unlink()
    os.mkfifo(folder / file)
    scan = ModelRepository(tmp_path).scan()
    found = scan.find("mine", 2)
    with pytest.raises(BadModel, match="not a regular file"):
        raise BadModel(found.read(file).decode() if found is not None else scan.bad[0].reason)


def test_huge_manifest_is_read_in_part_only(tmp_path: Path) -> None:
    folder = a_version(tmp_path)
    with (folder / MANIFEST).open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        (bad,) = ModelRepository(tmp_path).scan().bad
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert "sha256sum" in bad.reason


@pytest.mark.parametrize("file", ["../../3/model.toml", "/etc/hostname", "reference/../../../secret.txt"])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path: Path, file: str) -> None:
    folder = a_version(tmp_path)
    with (folder / MANIFEST).open("a") as manifest:
        manifest.write(f"{'0' * 64}  {file}\n")
    (bad,) = ModelRepository(tmp_path).scan().bad
    assert "outside the folder" in bad.reason


@pytest.mark.parametrize(
    "model",
    [
        f"title = {'[' * 20_000}",
        f"title = {'{a=' * 5000}",
        f"title = {'9' * 5000}",
        f"{'.'.join('a' * 30_000)} = 1",
        f"title = 'x' # {'x' * 70_000}",
    ],
    ids=["nested", "tables", "number", "dots", "long"],
)
def test_hostile_description_is_a_bad_version(tmp_path: Path, model: str) -> None:
    a_version(tmp_path, model=model)
    began_s = time.process_time()
    assert [one.name for one in ModelRepository(tmp_path).scan().bad] == ["mine"]
    assert time.process_time() - began_s < 2
