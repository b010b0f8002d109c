"""`ocrsvc models`: list, check, add, remove, load and unload versions of a repository."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_files import LETTERS, detector, real_models, recognizer
from models_support import make_fake
from pydantic import BaseModel
from support import ROOT, data_of

from ocrsvc.cli.check import describe_models
from ocrsvc.cli.main import run
from ocrsvc.cli.models import unfinished
from ocrsvc.engines.model.description import Description, Detection, Recognition, Reference
from ocrsvc.engines.model.files import MANIFEST
from ocrsvc.errors import BadModel
from ocrsvc.models.importers.find_model import find_model
from ocrsvc.models.importers.source_files import NewModel, Wanted
from ocrsvc.models.importers.write_version import write_version
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import StateStore, Verdict
from ocrsvc.settings.load import read_settings

Models = Callable[..., str]


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a repository and set it and its state folder in the environment."""
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("OCRSVC_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("OCRSVC_MODELS_STATE", str(tmp_path / "state"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def models(capsys: pytest.CaptureFixture[str]) -> Models:
    """Run `ocrsvc models`, expect the exit code `code`, and return the output."""

    def command(*args: object, code: int = 0) -> str:
        found = run(["models", *map(str, args)])
        out, err = capsys.readouterr()
        assert found == code, out + err
        return out + err

    return command


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "state")


def source(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "det.onnx").write_bytes(detector())
    (folder / "rec.onnx").write_bytes(recognizer())
    (folder / "dict.txt").write_text("\n".join(LETTERS) + "\n")
    return folder


def states(models: Models) -> dict[str, str]:
    return {f"{one['name']}/{one['version']}": one["state"] for one in entries(models)}


def entries(models: Models) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(models("list", "--json"))
    return found


def test_added_versions_are_numbered_and_their_manifests_hold(models: Models, repository: Path, tmp_path: Path) -> None:
    folder = source(tmp_path / "source")
    assert models("add", "mine", folder, "--language", "en", "--licence", "MIT").startswith("mine/1: source, MIT\n")
    assert "mine/2:" in models("add", "mine", folder)
    assert "mine/7:" in models("add", "mine", folder, "--version", 7)
    assert "mine/8:" in models("add", "mine", folder)
    models("add", "mine", folder, "--models", tmp_path / "other")
    assert ModelRepository(tmp_path / "other").scan().numbers("mine") == (1,)
    check = ["sha256sum", "--strict", "-c", MANIFEST]
    assert subprocess.run(check, cwd=repository / "mine" / "7", check=False, capture_output=True).returncode == 0
    assert ModelRepository(repository).scan().numbers("mine") == (1, 2, 7, 8)
    assert ModelRepository(repository).open("mine", 1).description.languages == ("en",)
    assert {one.name for one in (repository / "mine").iterdir()} == {"1", "2", "7", "8"}


@pytest.mark.parametrize(("args", "code", "words"), data_of("models_command")["failed"])
def test_failed_commands_say_why(models: Models, tmp_path: Path, args: list[str], code: int, words: str) -> None:
    folder = source(tmp_path / "source")
    models("add", "mine", folder)
    before = entries(models)
    assert words in models(*(arg.replace("SOURCE", str(folder)) for arg in args), code=code)
    assert entries(models) == before


def test_a_repository_must_be_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("OCRSVC_MODELS", raising=False)
    assert run(["models", "add", "mine", "."]) == 78
    assert "--models" in capsys.readouterr().err
    assert run(["models", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("ppocr/1  serving")


def test_a_version_that_cannot_be_written_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    model = find_model(Wanted([source(tmp_path / "source")]))
    (tmp_path / "source" / "rec.onnx").unlink()
    with pytest.raises(BadModel, match=r"rec\.onnx cannot be read"):
        write_version(model, repository, "mine")
    assert list(repository.iterdir()) == []


def test_no_file_is_written_outside_the_folder_of_its_version(repository: Path) -> None:
    for name in ("../escape", "/etc/escape", "a/../../escape", "two\nlines", ""):
        with pytest.raises(BadModel, match="no name for a file"):
            write_version(NewModel(Description(engine="fake"), {name: b"1"}), repository, "mine")
    assert list(repository.iterdir()) == []


def test_list_shows_the_state_of_every_version(models: Models, repository: Path, store: StateStore) -> None:
    versions = {number: make_fake(repository, number) for number in range(1, 7)}
    for number in (1, 2, 3):
        store.record_verdict(versions[number].digest, Verdict(accepted=True))
    store.record_verdict(versions[4].digest, Verdict(accepted=False, reason="It reads garbage."))
    (repository / "fake" / "5" / MANIFEST).unlink()
    (repository / "fake" / "6" / "model.toml").write_text("engine = 3")
    (repository / "models.toml").write_text("[fake]\nversions = [2, 3, 4]\nlabels = {canary = 2}\n")
    found = {one["version"]: one for one in entries(models) if one["name"] == "fake"}
    assert {number: one["state"] for number, one in found.items()} == {
        1: "unwanted", 2: "available", 3: "serving", 4: "refused", 5: "copying", 6: "bad"
    }  # fmt: skip
    assert (found[4]["reason"], found[2]["labels"]) == ("It reads garbage.", ["canary"])
    assert f"{repository}, " in describe_models(read_settings())
    assert "fake/6: model.toml does not match the manifest" in models("check", "fake/6", code=65)
    table = models("list")
    assert "fake/4: It reads garbage.\n" in table


def test_check_opens_one_model(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        make_fake(repository, number)
    for named, code, found in (("fake/1", 0, "fake 1, cpu"), ("fake", 0, "fake 2, cpu"), ("fake/3", 65, "")):
        assert run(["check", "--model", named]) == code
        assert capsys.readouterr().out.startswith(found)


def test_serving_version_is_removed_only_with_force(models: Models, repository: Path, store: StateStore) -> None:
    for number in (1, 2, 3):
        store.record_verdict(make_fake(repository, number).digest, Verdict(accepted=True))
    models("label", "fake", "stable", 2)
    assert "label stable, requests for fake" in models("remove", "fake/2", "--yes", code=78)
    models("remove", "fake/1", "--yes")
    models("label", "fake", "stable", "none")
    assert "in use by requests for fake" in models("remove", "fake/3", "--yes", code=78)
    models("remove", "fake/3", "--yes", "--force")
    assert states(models) == {"fake/2": "serving", "ppocr/1": "serving"}
    models("remove", "fake/2", "--yes", "--force")
    assert list(repository.iterdir()) == []


def test_removal_begins_with_the_manifest(models: Models, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_fake(repository, 1)
    seen = []

    def is_visible(folder: Path) -> None:
        seen.append((folder.name, (folder / MANIFEST).exists(), ModelRepository(repository).scan().numbers("fake")))

    monkeypatch.setattr(shutil, "rmtree", is_visible)
    models("remove", "fake/1", "--yes", "--force")
    [(name, has_manifest, numbers)] = seen
    assert name.startswith(".removing-")
    assert (has_manifest, numbers) == (False, ())


def test_versions_are_loaded_unloaded_and_proved_again(models: Models, repository: Path, store: StateStore) -> None:
    digests = [make_fake(repository, number).digest for number in (1, 2)]
    store.record_verdict(digests[0], Verdict(accepted=True))
    store.record_verdict(digests[1], Verdict(accepted=False, reason="No."))
    assert states(models) == {"fake/1": "serving", "fake/2": "refused", "ppocr/1": "serving"}
    models("forget", "fake/2")
    assert states(models)["fake/2"] == "waiting"
    models("unload", "fake")
    assert states(models) == {"fake/1": "unloaded", "fake/2": "unloaded", "ppocr/1": "serving"}
    models("load", "fake/1")
    assert states(models)["fake/1"] == "serving"


def test_the_verdict_of_a_check_counts(models: Models, repository: Path) -> None:
    for number in (1, 2):
        make_fake(repository, number)
    assert {states(models)[name] for name in ("fake/1", "fake/2")} <= {"waiting", "unwanted"}
    assert models("check", "fake/2").startswith("fake/2: good. ")
    assert states(models)["fake/2"] == "serving"


def test_a_check_leaves_verdicts_alone(models: Models, repository: Path, store: StateStore) -> None:
    digests = [make_fake(repository, number).digest for number in (1, 2)]
    store.record_verdict(digests[0], Verdict(accepted=True, reason="Kept."))
    store.record_verdict(digests[1], Verdict(accepted=False, reason="3 workers ended.", kind="crash"))
    models("unload", "fake/1")
    assert "It stays refused until `ocrsvc models forget fake/2`." in models("check", "fake")
    assert [store.read().verdicts[one].reason for one in digests] == ["Kept.", "3 workers ended."]


def test_a_check_reports_a_verdict_that_it_cannot_keep(models: Models, repository: Path, tmp_path: Path) -> None:
    make_fake(repository, 1)
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    assert "The verdict is not kept: " in models("check", "fake/1")


def test_a_check_of_new_versions_compares_each_with_the_one_before(models: Models, repository: Path) -> None:
    for number in (1, 2):
        make_fake(repository, number)
    assert "fake/2: It reads 0.75 of the words of fake/1 " in models("check", "fake", code=65)


@pytest.mark.parametrize(("change", "reason"), data_of("models_command")["defects"])
def test_check_names_the_defective_part(
    models: Models, repository: Path, tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    models("add", "mine", source(tmp_path / "source"))
    again = tmp_path / "again"
    shutil.copytree(repository / "mine" / "1", again)
    text = (again / "model.toml").read_text()
    assert change[0] in text
    (again / "model.toml").write_text(text.replace(*change))
    models("add", "mine", again)
    assert reason in models("check", "mine/2", code=65)
    assert states(models)["mine/2"] == "refused"


def test_check_reports_incomplete_versions_and_leftovers(repository: Path) -> None:
    (make_fake(repository, 1).folder / MANIFEST).unlink()
    (repository / "fake" / ".adding-0123").mkdir()
    first, second = unfinished(repository)
    assert first.startswith("fake/1: still being copied")
    assert second.startswith("fake/.adding-0123: a command is writing it or was interrupted.")


def test_real_model_passes_the_check(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fix the precision; measuring the fastest one takes seconds for a new model.
    monkeypatch.setenv("OCRSVC_PRECISION", "fp32")
    models("add", "tiny", real_models() / "ppocrv6" / "tiny")
    out = models("check", "tiny/1")
    assert out.startswith("tiny/1: good. ")
    assert "1.00 of the words" in out


def test_every_field_of_a_model_description_is_documented() -> None:
    text = (ROOT / "docs" / "models.md").read_text("utf-8").partition("## model.toml")[2].partition("\n## ")[0]
    whole, *tables = text.split("| `[")
    assert [name for name in Description.model_fields if f"`{name}`" not in whole] == []
    parts: dict[str, type[BaseModel]] = {"detection": Detection, "[recognition": Recognition, "reference": Reference}
    assert {table.partition("]")[0] for table in tables} == set(parts)
    for table in tables:
        part = parts[table.partition("]")[0]]
        assert [name for name in part.model_fields if f"`{name}`" not in table] == [], part
