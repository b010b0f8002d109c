"""Which versions are wanted, and which one reads a request: policies, labels, shares, languages, the state file."""

import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models_support import make_fake
from support import data_of

from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import OperatorError, SettingsError, UnknownModel
from ocrsvc.models.model_control import ModelControl
from ocrsvc.models.model_name import WantedModel
from ocrsvc.models.policy import FILE, TENSORFLOW_FILE, parse_policies, read_policies
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import DAMAGED_FILE, MAX_VERDICTS, ModelState, StateStore, Verdict
from ocrsvc.models.state import FILE as STATE_FILE
from ocrsvc.models.version_selection import VersionSelector
from ocrsvc.results import ReadOptions

ACCEPTED = Verdict(accepted=True)
POLICIES = data_of("model_policies")


class Models:
    """A repository and its state: three accepted versions of a model."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder / "models", 0.0
        self.store = StateStore(folder / "state")
        self.loaded: set[str] = set()
        for number in (1, 2, 3):
            self.add("mine", number)

    def add(self, name: str, number: int, verdict: Verdict | None = ACCEPTED, **more: object) -> ModelVersion:
        version = make_fake(self.folder, number, name, **more)  # type: ignore[arg-type]
        if verdict is not None:
            self.store.record_verdict(version.digest, verdict)
        return version

    def policy(self, text: str) -> None:
        (self.folder / FILE).write_text(text)

    def control(self) -> ModelControl:
        return ModelControl(
            ModelRepository(self.folder), self.store, lambda one: str(one) in self.loaded, lambda: self.now_s
        )

    def selector(self, draw: float = 0.5, default: str = "mine") -> VersionSelector:
        return VersionSelector(self.control(), WantedModel(default), draw=lambda: draw)

    def available(self) -> list[str]:
        return [str(one) for one in self.control().catalogue().available]


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path)


@pytest.mark.parametrize(("versions", "available"), POLICIES["valid"])
def test_policy_selects_the_versions_that_may_serve(models: Models, versions: str, available: list[str]) -> None:
    models.policy(f"[mine]\nversions = {versions}")
    assert models.available() == [*available, "ppocr/1"]


@pytest.mark.parametrize(("text", "said"), POLICIES["invalid"])
def test_invalid_policy_stops_the_start_and_is_ignored_later(
    models: Models, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    control = models.control()
    models.policy(text)
    with pytest.raises(SettingsError, match=said):
        models.control()
    with caplog.at_level(logging.ERROR):
        control.reread()
    assert said in caplog.text
    assert [str(one) for one in control.catalogue().available] == ["mine/3", "ppocr/1"]


def test_new_worker_uses_the_last_valid_policies(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    models.policy("[mine]\nversions = [1]")
    assert models.available() == ["mine/1", "ppocr/1"]
    models.policy("[mine")
    with caplog.at_level(logging.ERROR):
        assert models.available() == ["mine/1", "ppocr/1"]
    assert "stay in use: models.toml is not valid TOML" in caplog.text


@pytest.mark.parametrize("base_path", ["mine", "{folder}/mine", ""])
def test_models_config_is_equivalent_to_models_toml(models: Models, base_path: str) -> None:
    text = POLICIES["models_config"] % base_path.format(folder=models.folder)
    (models.folder / TENSORFLOW_FILE).write_text(text)
    # As in TensorFlow Serving, models that the file does not name are not wanted.
    assert models.available() == ["mine/3", "mine/1"]
    assert models.selector().select(ReadOptions(model="mine:canary")).number == 3


@pytest.mark.parametrize(("text", "said"), POLICIES["invalid_models_config"])
def test_error_names_the_fault_in_models_config(models: Models, text: str, said: str) -> None:
    (models.folder / TENSORFLOW_FILE).write_text(text)
    with pytest.raises(SettingsError, match=said):
        read_policies(models.folder)


def test_two_files_of_policies_are_refused(models: Models) -> None:
    models.policy("")
    (models.folder / TENSORFLOW_FILE).write_text("")
    with pytest.raises(SettingsError, match="both"):
        models.control()


@pytest.mark.parametrize(("asked", "name"), POLICIES["tiers and languages"])
def test_tier_and_language_select_a_model_default_first(models: Models, asked: dict[str, Any], name: str) -> None:
    models.add("mine", 4, languages=("en", "zh"))
    models.add("cyrillic", 1, tier="tiny", languages=("ru", "en"))
    assert models.selector().select(ReadOptions(**asked)).name == name


@pytest.mark.parametrize(("draw", "number"), [(0.04, 3), (0.05, 2), (0.99, 2)])
def test_a_share_of_requests_goes_to_a_label_and_the_rest_to_stable(models: Models, draw: float, number: int) -> None:
    models.policy("[mine]\nlabels = {stable = 2, canary = 3}\nshares = {canary = 0.05}")
    assert models.selector(draw).select(ReadOptions()).number == number


def test_loads_and_unloads_override_the_policy(models: Models) -> None:
    control = models.control()
    control.unload("mine")
    assert models.available() == ["ppocr/1"]
    control.load("mine", 1)
    assert models.available() == ["mine/3", "mine/1", "ppocr/1"]
    control.unload("mine", 3)
    assert models.available() == ["mine/2", "mine/1", "ppocr/1"]
    with pytest.raises(UnknownModel, match="yours"):
        control.load("yours")


def test_operators_labels_override_those_of_the_policy(models: Models) -> None:
    models.policy('[mine]\nversions = "all"\nlabels = {stable = 3, old = 1}')
    control = models.control()
    control.set_labels("mine", {"stable": 2, "old": None})
    assert models.selector().select(ReadOptions()).number == 2
    assert [one.labels for one in control.status("mine")] == [(), ("stable",), ()]
    models.add("mine", 4, verdict=None)
    for wrong in (4, 9):
        with pytest.raises(UnknownModel, match=f"mine/{wrong}"):
            control.set_labels("mine", {"stable": wrong})


def test_state_survives_restarts_and_damaged_files_are_kept(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    models.control().unload("mine")
    assert StateStore(models.store.folder).read().unloads == {"mine"}
    (models.store.folder / STATE_FILE).write_text('{"verdicts": 1}')
    with caplog.at_level(logging.ERROR):
        assert StateStore(models.store.folder).read() == ModelState()
    assert "is damaged and treated as empty: verdicts" in caplog.text
    models.control().unload("ppocr")
    assert StateStore(models.store.folder).read().unloads == {"ppocr"}
    assert (models.store.folder / DAMAGED_FILE).read_text() == '{"verdicts": 1}'


def _count(folder: Path, times: int) -> None:
    store = StateStore(folder)
    for number in range(times):
        store.record_verdict(f"{os.getpid()}-{number}", Verdict(accepted=True, at=number))


def test_concurrent_changes_of_the_state_are_all_kept(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_count, args=(tmp_path, 20)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert len(StateStore(tmp_path).read().verdicts) == 80
    assert sorted(one.name for one in tmp_path.iterdir()) == ["state.json", "state.lock"]


@pytest.mark.parametrize("make", [lambda folder: folder.mkdir() or folder.chmod(0o777), Path.touch])
def test_unsafe_state_folder_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "state")
    with pytest.raises(OperatorError, match="OCRSVC_MODELS_STATE"):
        StateStore(tmp_path / "state").record_verdict("a", ACCEPTED)


def test_error_says_why_an_existing_version_does_not_serve(models: Models) -> None:
    models.policy("[mine]\nversions = [3, 4, 5]\nlabels = {canary = 5}")
    models.add("mine", 4, verdict=None)
    models.add("mine", 5, verdict=Verdict(accepted=False, reason="It reads garbage."))
    models.add("new", 1, verdict=None)
    for name, why in (
        ("mine/2", "it is not wanted"),
        ("mine/4", "it is not proved yet"),
        ("mine/5", "it was refused"),
        ("mine:canary", "it was refused"),
        ("new", "it is not proved yet"),
    ):
        with pytest.raises(UnknownModel) as refused:
            models.selector().select(ReadOptions(model=name))
        assert refused.value.detail == f"The model {name} does not serve: {why}."
    for name in ("other", "mine/9", "mine:other"):
        with pytest.raises(UnknownModel, match=f"There is no model {name}"):
            models.selector().select(ReadOptions(model=name))


@pytest.mark.parametrize("text", ["[" * 20_000, f"a = {'9' * 5000}", f"{'.'.join('a' * 30_000)} = 1"])
def test_hostile_policies_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not valid TOML"):
        parse_policies(text)


def test_many_refusals_and_labels_do_not_evict_accepted_verdicts(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.record_verdict("serves", Verdict(accepted=True, at=1.0))
    refused = {f"digest {number}": Verdict(accepted=False, at=time.time() + number) for number in range(MAX_VERDICTS)}
    store.change(lambda state: state.model_copy(update={"verdicts": {**state.verdicts, **refused}}))
    assert len(store.read().verdicts) == MAX_VERDICTS
    labels = {"mine": {f"{'l' * 60}{number}": 1 for number in range(100_000)}}
    with pytest.raises(OperatorError, match="more than"):
        store.change(lambda state: state.model_copy(update={"labels": labels}))
    assert StateStore(store.folder).read().verdicts["serves"].accepted
