"""A worker sees new versions, has them proved once on the machine, switches, rolls back, and is never without one."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from models_support import make_fake

from ocrsvc.errors import EngineUnavailable, OcrsvcError
from ocrsvc.model_repository.manifest import write_manifest
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.candidate_prover import MOST_BAD, MOST_REASON, CandidateProver
from ocrsvc.model_serving.control import ModelControl, open_control
from ocrsvc.model_serving.live_checks import make_live_checks
from ocrsvc.model_serving.machine_lock import LOAD, PROOF, machine_lock
from ocrsvc.model_serving.proof.judgement import Judgement
from ocrsvc.model_serving.repository_changes import look_at_repository
from ocrsvc.model_serving.state import ModelState, Verdict
from ocrsvc.model_serving.verdict_basis import basis_of, outdated_verdicts
from ocrsvc.model_serving.version_switch import LONGEST_WAIT_S, MOST_FAILURES
from ocrsvc.model_serving.watcher import ModelWatcher, make_watcher
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.metric import Metric
from ocrsvc.telemetry.metrics_store import MetricsStore
from ocrsvc.telemetry.model_metrics import MODEL_REFUSALS, MODEL_REFUSED, MODEL_SWAPS

PLAN = ThreadPlan(1, 1, 1)


@dataclass
class FakeLoaded:
    """What a worker has loaded, with room for so many; what is retired is closed at once."""

    loaded: list[ModelVersion] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    room: int = 2
    done: list[str] = field(default_factory=list)

    def versions(self) -> tuple[ModelVersion, ...]:
        """See LoadedModels."""
        return tuple(self.loaded)

    def has_room_for(self, version: ModelVersion) -> bool:
        """See LoadedModels."""
        return version in self.loaded or len(self.loaded) < self.room

    def preload(self, version: ModelVersion, deadline: float = math.inf) -> None:
        """See LoadedModels."""
        assert deadline > 0
        self.done.append(f"load {version}")
        if str(version) in self.broken:
            raise EngineUnavailable("It is broken.")
        if version not in self.loaded:
            self.loaded.append(version)

    def retire(self, version: ModelVersion) -> None:
        """See LoadedModels."""
        self.done.append(f"retire {version}")
        self.loaded = [one for one in self.loaded if one != version]


class Worker:
    """A watcher without its thread, whose proofs are what `judge` says."""

    def __init__(self, folder: Path, judge: Callable[[ModelVersion, ModelVersion | None], Judgement]) -> None:
        self.control: ModelControl = open_control(folder / "models", folder / "state")
        self.loaded, self.now_s, self.proved = FakeLoaded(), 100.0, list[str]()
        settings = Settings.model_validate({"engine": "fake", "models": folder / "models", "models_poll_s": 0.1})
        self.checks, self.store = make_live_checks(settings), MetricsStore()
        self.store.claim(0)
        metrics = self.store.worker_metrics()
        self.watcher: ModelWatcher = make_watcher(settings, PLAN, self.control, self.loaded, self.checks, metrics)

        def prove(candidate: ModelVersion, serving: ModelVersion | None) -> Judgement:
            self.proved.append(f"{candidate} beside {serving}")
            return judge(candidate, serving)

        self.prover = CandidateProver(self.control, prove, "basis", metrics, lambda: self.now_s)
        self.watcher._prover = self.prover
        self.watcher._switch._clock = lambda: self.now_s

    def round(self) -> list[str]:
        """See what has changed, prove it, follow; what was loaded and closed meanwhile."""
        self.loaded.done.clear()
        self.control.rescan()
        self.prover.run()
        self.control.rescan()
        if self.watcher.is_behind(self.watcher.refresh()):
            self.watcher.follow()
        return list(self.loaded.done)

    def count(self, metric: Metric, *labels: str) -> float:
        """What was counted."""
        return self.store.read().get(metric.of(*labels), [0.0])[0]

    def available(self) -> list[int]:
        """The numbers that may serve."""
        return [version.number for version in self.control.rescan().models["fake"].available]


def accept(_candidate: ModelVersion, _serving: ModelVersion | None) -> Judgement:
    """Every version is good."""
    return Judgement(None, "It reads well.")


def refuse_even(candidate: ModelVersion, _serving: ModelVersion | None) -> Judgement:
    """Versions with even numbers are not."""
    return Judgement(
        "text" if candidate.number % 2 == 0 else None, "It reads nothing." if candidate.number % 2 == 0 else ""
    )


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with one version of the model fake."""
    make_fake(tmp_path / "models", 1)
    return tmp_path / "models"


def serving_worker(models: Path, judge: Callable[[ModelVersion, ModelVersion | None], Judgement] = accept) -> Worker:
    """One that serves the first version."""
    worker = Worker(models.parent, judge)
    worker.round()
    worker.loaded.preload(worker.control.rescan().models["fake"].available[0])
    return worker


def test_a_new_version_takes_the_place_of_the_one_that_serves(models: Path) -> None:
    worker = serving_worker(models)
    make_fake(models, 2)
    assert worker.round() == ["load fake/2", "retire fake/1"]
    assert worker.proved == ["fake/1 beside None", "fake/2 beside fake/1"]
    assert worker.count(MODEL_SWAPS) == 1
    assert worker.round() == []


def test_of_many_that_cannot_be_opened_a_few_are_noted_and_once(models: Path) -> None:
    worker = serving_worker(models)
    for number in range(2, MOST_BAD + 12):
        (models / "fake" / str(number)).mkdir()
        (models / "fake" / str(number) / "SHA256SUMS").write_text(f"nonsense {number}")
    worker.round()
    assert worker.count(MODEL_REFUSALS, "open") == MOST_BAD
    assert not worker.prover.is_wanted(worker.control.rescan())
    assert worker.available() == [1]


def test_a_reason_as_long_as_a_model_can_make_it_is_cut(models: Path) -> None:
    worker = serving_worker(models)
    broken = models / "fake" / "2"
    broken.mkdir()
    (broken / "model.toml").write_text(f"{'k' * 60_000} = 1")
    write_manifest(broken)
    worker.round()
    [verdict] = [one for one in worker.control.store.read().verdicts.values() if not one.accepted]
    assert len(verdict.reason) <= MOST_REASON + 1


def test_a_refused_version_is_not_tried_again_until_it_changes(models: Path) -> None:
    worker = serving_worker(models, refuse_even)
    bad = make_fake(models, 2)
    assert worker.round() == []
    assert worker.round() == []
    assert worker.proved[1:] == ["fake/2 beside fake/1"]
    assert (worker.count(MODEL_REFUSALS, "text"), worker.count(MODEL_REFUSED)) == (1, 1)
    [status] = [one for one in worker.control.status() if one.number == 2]
    assert (status.state, status.reason) == ("END", "It reads nothing.")
    (bad.folder / "more.txt").write_text("changed")
    write_manifest(bad.folder)
    worker.round()
    assert worker.proved[2:] == ["fake/2 beside fake/1"]


def test_a_version_refused_for_its_files_is_tried_again_when_they_are_copied_again(models: Path) -> None:
    worker = serving_worker(models, lambda one, _serving: Judgement("files" if one.number == 2 else None, ""))
    bad = make_fake(models, 2)
    (bad.folder / "note.txt").write_text("whole")
    write_manifest(bad.folder)
    (bad.folder / "note.txt").write_text("cut")
    for _ in range(3):
        worker.round()
        worker.watcher._look_s = -math.inf
    assert worker.proved[1:] == ["fake/2 beside fake/1"]
    (bad.folder / "note.txt").write_text("whole")
    worker.prover.forget_mended(worker.control.rescan())
    worker.round()
    assert worker.proved[2:] == ["fake/2 beside fake/1"]


def test_a_version_refused_for_a_reference_page_is_tried_again_when_the_pages_change(models: Path) -> None:
    worker = serving_worker(models, lambda one, _serving: Judgement("reference" if one.number == 2 else None, ""))
    (models / "reference").mkdir()
    (models / "reference" / "orphan.txt").write_text("no page")
    make_fake(models, 2)
    for _ in range(2):
        worker.round()
    assert worker.proved[1:] == ["fake/2 beside fake/1"]
    (models / "reference" / "orphan.txt").unlink()
    worker.prover.forget_mended(worker.control.rescan())
    worker.round()
    assert worker.proved[2:] == ["fake/2 beside fake/1"]


def test_a_version_whose_description_is_mended_is_tried_though_its_manifest_is_the_same(models: Path) -> None:
    worker = serving_worker(models)
    bad = make_fake(models, 2)
    right = (bad.folder / "model.toml").read_text()
    (bad.folder / "model.toml").write_text("# cut")
    worker.round()
    assert worker.count(MODEL_REFUSALS, "open") == 1
    (bad.folder / "model.toml").write_text(right)
    worker.prover.forget_mended(worker.control.rescan())
    worker.round()
    assert worker.available() == [2]


def test_a_copy_of_an_accepted_version_proves_itself(models: Path) -> None:
    worker = serving_worker(models, refuse_even)
    shutil.copytree(models / "fake" / "1", models / "fake" / "2")
    worker.round()
    assert worker.proved[1:] == ["fake/2 beside fake/1"]
    assert worker.available() == [1]


def test_a_version_that_cannot_be_opened_at_all_is_refused_once(models: Path) -> None:
    worker = serving_worker(models)
    bad = make_fake(models, 2)
    (bad.folder / "model.toml").write_text("engine = 3")
    write_manifest(bad.folder)
    for _ in range(2):
        assert worker.round() == []
    assert (worker.count(MODEL_REFUSALS, "open"), worker.count(MODEL_REFUSED)) == (1, 1)


def test_what_the_machine_did_not_let_be_proved_is_tried_again_later(models: Path) -> None:
    worker = serving_worker(models)
    found = [Judgement("unknown", "No process."), Judgement(None, "Good.")]
    worker.prover._prove = lambda _candidate, _serving: found.pop(0)
    make_fake(models, 2)
    worker.round()
    assert (worker.available(), len(found)) == ([1], 1)
    worker.now_s += 59
    worker.round()
    assert len(found) == 1
    worker.now_s += 2
    worker.round()
    assert worker.available() == [2]


def test_a_worker_begins_when_its_model_is_proved_and_does_not_wait_for_others(models: Path) -> None:
    worker = Worker(models.parent, accept)
    make_fake(models, 1, name="another")
    worker.watcher.prove_until("fake", lambda: bool(worker.available()))
    assert worker.proved == ["fake/1 beside None"]
    worker.watcher.prove_until("none", lambda: False)
    assert worker.proved == ["fake/1 beside None"]


def test_one_worker_proves(models: Path) -> None:
    worker = serving_worker(models)
    make_fake(models, 2)
    with machine_lock(worker.control.store.folder, PROOF) as is_ours:
        assert is_ours
        assert worker.round() == []
    assert worker.round() == ["load fake/2", "retire fake/1"]


def test_a_worker_follows_what_another_has_proved(models: Path) -> None:
    one, other = serving_worker(models), serving_worker(models)
    make_fake(models, 2)
    one.round()
    assert other.round() == ["load fake/2", "retire fake/1"]
    assert other.proved == []


def test_workers_load_one_after_the_other(models: Path) -> None:
    worker = serving_worker(models)
    make_fake(models, 2)
    with machine_lock(worker.control.store.folder, LOAD):
        assert worker.round() == []
        worker.now_s += LONGEST_WAIT_S
        assert worker.round() == ["load fake/2", "retire fake/1"]


def test_without_room_for_both_the_old_one_leaves_first(models: Path) -> None:
    worker = serving_worker(models)
    worker.loaded.room = 1
    make_fake(models, 2)
    assert worker.round() == ["retire fake/1", "load fake/2"]


def test_one_that_cannot_be_loaded_leaves_the_old_one_serving(models: Path) -> None:
    worker = serving_worker(models)
    worker.loaded.room, worker.loaded.broken = 1, {"fake/2"}
    make_fake(models, 2)
    assert worker.round() == ["retire fake/1", "load fake/2", "load fake/1"]
    assert worker.round() == []
    for _ in range(MOST_FAILURES - 1):
        worker.now_s += 61
        assert worker.round()[:2] == ["retire fake/1", "load fake/2"]
    worker.now_s += 61
    assert worker.round() == []
    assert worker.available() == [1]
    assert [str(version) for version in worker.loaded.versions()] == ["fake/1"]


def test_a_version_that_is_removed_while_it_serves_serves_until_it_is_replaced(models: Path) -> None:
    worker = serving_worker(models)
    shutil.rmtree(models / "fake" / "1")
    assert worker.round() == []
    assert worker.available() == [1]
    make_fake(models, 2)
    assert worker.round() == ["load fake/2", "retire fake/1"]
    assert worker.available() == [2]


def test_a_version_that_is_changed_while_it_serves_is_replaced_when_it_is_accepted(models: Path) -> None:
    worker = serving_worker(models, refuse_even)
    (models / "fake" / "1" / "more.txt").write_text("changed")
    write_manifest(models / "fake" / "1")
    before = worker.loaded.versions()
    worker.control.rescan()
    assert worker.control.catalogue().models["fake"].available == before
    assert worker.round() == ["load fake/1", "retire fake/1"]
    assert worker.loaded.versions() != before


def test_an_unloaded_version_leaves(models: Path) -> None:
    worker = serving_worker(models)
    worker.control.unload("fake")
    assert worker.round() == ["retire fake/1"]


def test_live_traffic_rolls_a_version_back_everywhere(models: Path) -> None:
    worker, other = serving_worker(models), serving_worker(models)
    old = worker.loaded.versions()[0]
    new = make_fake(models, 2)
    for _ in range(200):
        worker.checks.add_page(old, 0.9, is_failed=False)
    worker.round()
    other.round()
    for _ in range(40):
        worker.checks.add_page(new, None, is_failed=True)
    assert worker.round() == ["load fake/1", "retire fake/2"]
    assert other.round() == ["load fake/1", "retire fake/2"]
    assert worker.count(MODEL_REFUSALS, "live") == 1
    reason = next(one.reason for one in worker.control.status() if one.number == 2)
    assert reason == "It was rolled back. It fails on 100.0% of 30 pages, and fake/1 on 0.0%."


def test_the_last_version_is_not_rolled_back(models: Path) -> None:
    worker = serving_worker(models)
    worker.watcher._roll_back(worker.loaded.versions()[0], "It fails.")
    assert worker.available() == [1]


def test_a_repository_that_is_away_leaves_everything_as_it_is(models: Path) -> None:
    worker = serving_worker(models)
    models.rename(models.parent / "away")
    with pytest.raises(OcrsvcError):
        worker.control.rescan()
    assert not look_at_repository(models)
    assert [version.number for version in worker.control.catalogue().models["fake"].available] == [1]


def test_verdicts_hold_where_they_are_right() -> None:
    state = ModelState(
        verdicts={
            "good": Verdict(accepted=True, made_on="other"),
            "slow": Verdict(accepted=False, kind="slow", made_on="other"),
            "slow here": Verdict(accepted=False, kind="slow", made_on="this"),
            "torn": Verdict(accepted=False, kind="files", made_on="other"),
            "live": Verdict(accepted=False, kind="live", made_on="other"),
        }
    )
    assert outdated_verdicts(state, "this") == ["slow"]


def test_the_basis_of_verdicts_changes_with_the_processor(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("model name\t: A\n")
    (tmp_path / "other").write_text("model name\t: B\n")
    settings = Settings.model_validate({})
    assert basis_of(settings, tmp_path / "one") != basis_of(settings, tmp_path / "other")
    assert basis_of(settings) == basis_of(settings)
