"""An engine opens the version of a model that it is given, with the settings that this version has."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_support import noise
from isolation_support import a_task
from models_support import make_fake, make_version

from ocrsvc.engines.model.files import write_manifest
from ocrsvc.engines.model.version import ModelVersion, built_in_model
from ocrsvc.engines.open_engine import open_engine, own_settings, settings_of_model
from ocrsvc.errors import BadModel
from ocrsvc.plugins import engines
from ocrsvc.settings.settings import Settings, settings_class
from ocrsvc.system.thread_plan import ThreadPlan

PLAN = ThreadPlan(1, 1, 1)


def read_texts(settings: Settings, model: ModelVersion) -> tuple[list[str], str]:
    """What the model reads on noise, and what it says it is."""
    engine = open_engine(settings, PLAN, model=model)
    try:
        handle = engine.open_handle()
        (page,) = handle.read([a_task(noise(1))])
        info = engine.describe()
        handle.close()
    finally:
        engine.close()
    assert not isinstance(page, Exception), page
    return [line.text for line in page.lines], f"{info.name} {info.model} {info.version}"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_engine_of_the_model_overrides_the_setting(tmp_path: Path, isolation: str) -> None:
    model = make_fake(tmp_path, 7, "mine", fake_confidence=0.25)
    texts, who = read_texts(Settings.model_validate({"isolation": isolation, "models": tmp_path}), model)
    assert texts[2:] == ["mine/7"]
    assert who == "fake mine 7"


@pytest.mark.parametrize("left", ["changed", "gone"])
def test_child_refuses_a_version_that_changed_after_it_was_chosen(tmp_path: Path, left: str) -> None:
    model = make_fake(tmp_path, 1)
    if left == "gone":
        model.folder.rename(tmp_path / "fake" / "2")
    else:
        (model.folder / "more.txt").write_text("more")
        write_manifest(model.folder)
    said = {"gone": "fake/1 cannot be read", "changed": "fake/1 has changed since the worker chose it"}[left]
    with pytest.raises(BadModel, match=said):
        open_engine(Settings(isolation="process", models=tmp_path), PLAN, model=model)


@pytest.mark.parametrize(
    ("model", "fault", "remedy"),
    [
        (
            "[settings]\nworkers = 4",
            r"fake/1: model\.toml: settings\.workers is not a setting of the engine fake",
            "fake_",
        ),
        ("[settings]\nfake_txt = 'a'", r"settings\.fake_txt is not a setting", "fake_text"),
        ("[settings]\nfake_latency_s = 'long'", r"settings\.fake_latency_s is 'long'", "a number from 0"),
        ("[settings]\nfake_latency_s = true", r"settings\.fake_latency_s is True", "a number from 0"),
        ("[settings]\nfake_text = './../b'", r"settings\.fake_text is '\./\.\./b', which leaves", "below"),
        ("[settings]\nfake_fault_on = { a = 1 }", r"settings\.fake_fault_on is", "names, separated"),
    ],
)
def test_error_names_a_setting_that_a_model_may_not_set(tmp_path: Path, model: str, fault: str, remedy: str) -> None:
    version = make_version(tmp_path, "fake", 1, f"engine = 'fake'\n{model}")
    with pytest.raises(BadModel, match=fault) as raised:
        settings_of_model(Settings(), version)
    assert remedy in raised.value.remedy


def test_error_names_an_unknown_engine(tmp_path: Path) -> None:
    version = make_version(tmp_path, "a", 1, "engine = 'reader'")
    with pytest.raises(BadModel, match="unknown engine 'reader'") as raised:
        open_engine(Settings(), PLAN, model=version)
    assert "ppocr" in raised.value.remedy


def test_path_settings_are_in_the_versions_folder_and_verified(tmp_path: Path) -> None:
    version = make_version(tmp_path, "tr", 2, "engine='tr'\n[settings]\ntr_home='./tr'", {"tr/a": b"1", "tra": b"2"})
    service = Settings(models_code=True)
    (version.folder / "tra").write_bytes(b"3")
    assert settings_of_model(service, version).tr_home == version.folder / "tr"
    (version.folder / "tr" / "a").write_bytes(b"3")
    with pytest.raises(BadModel, match=r"tr/a does not match the manifest"):
        settings_of_model(service, version)


@pytest.mark.parametrize(
    ("model", "service", "fault"),
    [
        ("engine = 'tr'\n[settings]\ntr_home = './'", Settings(), "runs programs from the model's folder"),
        ("engine = 'tr'\n[settings]\ntr_home = '/tmp'", Settings(models_code=True), "outside the model's folder"),
        ("engine = 'tr'\n[settings]\ntr_home = 'tr'", Settings(models_code=True), "outside the model's folder"),
        ("[settings]\nmodel_cache = './cache'", Settings(), "not a setting of the engine ppocr"),
    ],
)
def test_model_cannot_run_programs_or_name_folders_outside(
    tmp_path: Path, model: str, service: Settings, fault: str
) -> None:
    version = make_version(tmp_path, "mine", 2, model, {"libtr.so": b"1"})
    with pytest.raises(BadModel, match=fault):
        open_engine(service, PLAN, model=version)


def test_service_settings_apply_unless_the_model_sets_them(tmp_path: Path) -> None:
    service = settings_class()(fake_latency_s=2.0, workers=3, engine="tr")
    settings = settings_of_model(service, make_fake(tmp_path, 1, fake_burn_s=1))
    changed = {name for name in type(service).model_fields if getattr(settings, name) != getattr(service, name)}
    assert changed == {"engine", "fake_text", "fake_burn_s"}
    assert type(settings) is type(service)
    assert settings_of_model(Settings(), built_in_model()) == Settings()


def test_each_engine_has_its_own_settings() -> None:
    every = [own_settings(entry) for entry in engines().values()]
    assert "gpu_streams" in own_settings(engines()["ppocr"])
    assert sum(map(len, every)) == len(frozenset().union(*every))
