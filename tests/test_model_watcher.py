"""A worker detects new versions, has them proved on reference pages, switches and rolls back; one always serves."""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from image_support import png
from models_support import make_fake, make_version
from support import data_of

from ocrsvc.engines.model.description import Reference
from ocrsvc.engines.model.files import write_manifest
from ocrsvc.engines.model.version import ModelVersion, find_version
from ocrsvc.errors import BadModel, EngineUnavailable, OcrsvcError
from ocrsvc.models.loaded_models import LoadedModels
from ocrsvc.models.model_control import ModelControl, open_control
from ocrsvc.models.proof.prover import Measurement, PageMeasurement, Prover, judge, words_f1
from ocrsvc.models.proof.reference_pages import find_reference_pages
from ocrsvc.models.proof.verdicts import machine_cache_key
from ocrsvc.models.state import Judgement, RefusalKind, Stopped
from ocrsvc.models.watcher import LOAD_LOCK, MAX_FAILURES, ModelWatcher
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.metric import Metric
from ocrsvc.telemetry.metrics_store import MetricsStore
from ocrsvc.telemetry.model_metrics import MODEL_REFUSALS, MODEL_REFUSED

PLAN = ThreadPlan(1, 1, 1)


@dataclass
class FakeLoaded:
    """Replaces a worker's `LoadedModels`; it has room for `room` versions and closes retired ones at once."""

    loaded: list[ModelVersion] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    room: int = 2
    done: list[str] = field(default_factory=list)

    def versions(self) -> tuple[ModelVersion, ...]:
        return tuple(self.loaded)

    def has_room_for(self, version: ModelVersion) -> bool:
        return version in self.loaded or len(self.loaded) < self.room

    def preload(self, version: ModelVersion, deadline: float = math.inf) -> None:
        assert deadline > 0
        self.done.append(f"load {version}")
        if str(version) in self.broken:
            raise EngineUnavailable("It is broken.")
        if version not in self.loaded:
            self.loaded.append(version)

    def retire(self, version: ModelVersion) -> None:
        self.done.append(f"retire {version}")
        self.loaded = [one for one in self.loaded if one != version]


class Worker:
    """A watcher without its thread; `judge` gives the verdicts of its proofs."""

    def __init__(self, folder: Path, judge: Callable[[ModelVersion, ModelVersion | None], Judgement]) -> None:
        self.control: ModelControl = open_control(folder / "models", folder / "state")
        self.loaded, self.now_s, self.proved = FakeLoaded(), 100.0, list[str]()
        settings = Settings.model_validate({"engine": "fake", "models": folder / "models", "models_poll_s": 0.1})
        self.store = MetricsStore()
        self.store.claim(0)
        self.watcher = ModelWatcher(
            settings,
            PLAN,
            self.control,
            cast(LoadedModels, self.loaded),
            self.store.worker_metrics(),
            lambda: self.now_s,
        )
        self.prover = self.watcher.prover

        def prove(candidate: ModelVersion, serving: ModelVersion | None) -> Judgement:
            self.proved.append(f"{candidate} beside {serving}")
            return judge(candidate, serving)

        self.prover._prove = prove

    def round(self) -> list[str]:
        """Rescan, prove, and switch versions once; returns what was loaded and retired."""
        self.loaded.done.clear()
        self.watcher._look_s = -math.inf
        self.watcher.refresh()
        self.prover.run()
        if self.watcher.switch.is_behind(self.control.rescan()):
            self.watcher.follow()
        self.watcher.refresh()
        return list(self.loaded.done)

    def count(self, metric: Metric, *labels: str) -> float:
        """Return the value of a metric."""
        return self.store.read().get(metric.of(*labels), [0.0])[0]

    def available(self) -> list[int]:
        """Return the numbers of the versions that may serve."""
        return [version.number for version in self.control.rescan().models["fake"].available]


def accept(_candidate: ModelVersion, _serving: ModelVersion | None) -> Judgement:
    """Accept every version."""
    return Judgement(None, "It reads well.")


def refuse_even(candidate: ModelVersion, _serving: ModelVersion | None) -> Judgement:
    """Refuse the versions with even numbers."""
    return Judgement(
        "text" if candidate.number % 2 == 0 else None, "It reads nothing." if candidate.number % 2 == 0 else ""
    )


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with one version of the model `fake`."""
    make_fake(tmp_path / "models", 1)
    return tmp_path / "models"


def serving_worker(models: Path, judge: Callable[[ModelVersion, ModelVersion | None], Judgement] = accept) -> Worker:
    """A worker that serves the first version."""
    worker = Worker(models.parent, judge)
    worker.round()
    worker.loaded.preload(worker.control.rescan().models["fake"].available[0])
    return worker


def test_bad_version_is_logged_once_and_counted_as_refused(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = serving_worker(models)
    bad = make_fake(models, 2)
    (bad.folder / "model.toml").write_text("engine = 3")
    write_manifest(bad.folder)
    for _ in range(2):
        assert worker.round() == []
    assert caplog.text.count("REFUSED fake/2 (open): model.toml: engine") == 1
    assert (worker.count(MODEL_REFUSALS, "open"), worker.count(MODEL_REFUSED)) == (1, 1)


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


@pytest.mark.parametrize(
    ("kind", "file", "wrong", "right"),
    [("files", "fake/2/note.txt", "cut", "whole"), ("reference", "reference/page.txt", "no page", None)],
)
def test_corrected_version_is_proved_again(
    models: Path, kind: RefusalKind, file: str, wrong: str, right: str | None
) -> None:
    worker = serving_worker(models, lambda one, _serving: Judgement(kind if one.number == 2 else None, ""))
    bad = make_fake(models, 2)
    (bad.folder / "note.txt").write_text("whole")
    write_manifest(bad.folder)
    (models / "reference").mkdir()
    (models / file).write_text(wrong)
    for _ in range(3):
        worker.round()
    assert worker.proved[1:] == ["fake/2 beside fake/1"]
    if right is None:
        (models / file).unlink()
    else:
        (models / file).write_text(right)
    worker.round()
    assert worker.proved[2:] == ["fake/2 beside fake/1"]


def test_a_copy_of_an_accepted_version_proves_itself(models: Path) -> None:
    worker = serving_worker(models, refuse_even)
    shutil.copytree(models / "fake" / "1", models / "fake" / "2")
    worker.round()
    assert worker.proved[1:] == ["fake/2 beside fake/1"]
    assert worker.available() == [1]


def test_proof_that_the_machine_prevented_is_repeated_later(models: Path) -> None:
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


def test_workers_load_in_turn_unless_others_take_too_long(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrsvc.models.watcher.LONGEST_WAIT_S", 0.05)
    worker = serving_worker(models)
    make_fake(models, 2)
    with worker.control.store.locked(LOAD_LOCK):
        began_s = time.monotonic()
        assert worker.round() == ["load fake/2", "retire fake/1"]
        assert time.monotonic() - began_s >= 0.05


def test_old_version_serves_if_the_new_one_cannot_be_loaded(models: Path) -> None:
    worker = serving_worker(models)
    worker.loaded.room, worker.loaded.broken = 1, {"fake/2"}
    make_fake(models, 2)
    assert worker.round() == ["retire fake/1", "load fake/2", "load fake/1"]
    assert worker.round() == []
    for _ in range(MAX_FAILURES - 1):
        worker.now_s += 61
        assert worker.round()[:2] == ["retire fake/1", "load fake/2"]
    worker.now_s += 61
    assert worker.round() == []
    assert worker.available() == [1]
    assert [str(version) for version in worker.loaded.versions()] == ["fake/1"]


def test_a_removed_version_serves_until_it_is_replaced(models: Path) -> None:
    worker = serving_worker(models)
    shutil.rmtree(models / "fake" / "1")
    assert worker.round() == []
    assert worker.available() == [1]
    make_fake(models, 2)
    assert worker.round() == ["load fake/2", "retire fake/1"]
    assert worker.available() == [2]


def test_a_serving_version_that_changes_is_replaced_once_accepted(models: Path) -> None:
    worker = serving_worker(models, refuse_even)
    (models / "fake" / "1" / "more.txt").write_text("changed")
    write_manifest(models / "fake" / "1")
    before = worker.loaded.versions()
    worker.control.rescan()
    assert worker.control.catalogue().models["fake"].available == before
    assert worker.round() == ["load fake/1", "retire fake/1"]
    assert worker.loaded.versions() != before


def test_the_last_version_is_not_refused_because_it_does_not_load(models: Path) -> None:
    worker = serving_worker(models)
    worker.watcher._refuse_unusable(worker.loaded.versions()[0], "It fails.")
    assert worker.available() == [1]


def test_unreachable_repository_changes_nothing(models: Path) -> None:
    worker = serving_worker(models)
    models.rename(models.parent / "away")
    with pytest.raises(OcrsvcError):
        worker.control.rescan()
    assert [version.number for version in worker.control.catalogue().models["fake"].available] == [1]


def test_only_refused_versions_are_tried_again_on_another_machine(models: Path, tmp_path: Path) -> None:
    worker = serving_worker(models, refuse_even)
    make_fake(models, 2)
    worker.round()
    (tmp_path / "cpuinfo").write_text("model name\t: Another\n")
    worker.watcher._verdicts._machine = machine_cache_key(Settings(), tmp_path / "cpuinfo")
    worker.round()
    assert worker.proved[1:] == ["fake/2 beside fake/1"] * 2


WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau"
PAGE = png(8, 8, 255)


def prover(repository: Path, **settings: object) -> Prover:
    """A prover with short time limits."""
    given = {"engine": "fake", "models": repository, "models_proof_s": 20.0, **settings}
    return Prover(Settings.model_validate(given), PLAN, bool)


def fake_version(repository: Path, number: int, text: str = "", **settings: Any) -> ModelVersion:
    """A version of the fake engine; in one word, its text differs from that of any other version."""
    return make_fake(repository, number, fake_text=text or f"{WORDS} v{number}", **settings)


@pytest.mark.parametrize(
    ("settings", "kind", "reason"),
    [
        ({"fake_text": "omega"}, "text", "reads 0.16 of the words of fake/1"),
        ({"fake_burn_s": 0.1}, "slow", "times the"),
        ({"fake_model_bytes": 150 << 20}, "memory", "at most 1.5 times that is allowed"),
    ],
)
def test_worse_version_is_refused(tmp_path: Path, settings: Mapping[str, Any], kind: str, reason: str) -> None:
    candidate = make_fake(tmp_path, 2, **{"fake_text": f"{WORDS} v2", **settings})
    found = prover(tmp_path).prove(candidate, fake_version(tmp_path, 1))
    assert found.kind == kind
    assert reason in found.reason


PPOCR = '[detection]\nfile = "det.onnx"\n[[recognition]]\nfile = "rec.onnx"\n'
FAKE = 'engine = "fake"\n'


@pytest.mark.parametrize(
    ("model", "files", "limits", "kind", "reason"),
    [
        ('fake_fault = "nonsense"', {}, {}, "nonsense", "invalid numbers"),
        ('fake_fault = "segfault"', {}, {}, "crash", "SIGSEGV"),
        ('fake_fault = "fail"', {}, {}, "failed", "OCRSVC_FAKE_FAULT makes"),
        ("fake_warm_up_s = 1000.0", {}, {"models_proof_s": 1.0}, "late", "within 1 s"),
        ("no_such_setting = 1", {}, {}, "open", "no_such_setting"),
        (f"fake_leak_bytes = {200 << 20}", {}, {"models_proof_memory": "150MiB"}, "memory", "memory limit of 150 MiB"),
        ("", {"weights.bin": b"cut"}, {}, "files", "weights.bin"),
        (PPOCR, {"det.onnx": b"\x08\x07", "rec.onnx": b"\x08\x07"}, {}, "open", "It does not open: "),
        ("", {"reference/page.png": PAGE[:40]}, {}, "reference", "page.png"),
    ],
)
def test_faulty_version_is_refused(
    tmp_path: Path, model: str, files: Mapping[str, bytes], limits: Mapping[str, object], kind: str, reason: str
) -> None:
    description = model if model == PPOCR else f"{FAKE}[settings]\n{model}\n"
    candidate = make_version(tmp_path, "fake", 2, description, {**files, "weights.bin": b"whole"})
    if "weights.bin" in files:
        (candidate.folder / "weights.bin").write_bytes(files["weights.bin"])
    found = prover(tmp_path, model_cache=tmp_path / "cache", **limits).prove(candidate, None)
    assert found.kind == kind
    assert reason in found.reason


def test_removed_version_is_not_refused(tmp_path: Path) -> None:
    candidate = fake_version(tmp_path, 2)
    (candidate.folder / "SHA256SUMS").unlink()
    assert prover(tmp_path).prove(candidate, None).kind == "gone"


def test_first_version_is_compared_with_the_reference_texts(tmp_path: Path) -> None:
    serving = fake_version(tmp_path, 1)
    (serving.folder / "SHA256SUMS").unlink()
    pages = {"reference/page.png": PAGE, "reference/page.txt": b"something else"}
    candidate = make_version(tmp_path, "fake", 2, 'engine = "fake"\n', pages)
    found = prover(tmp_path).prove(candidate, serving)
    assert found.kind == "text"
    assert "of the words of the reference texts" in found.reason


def test_a_proof_ends_when_the_worker_does(tmp_path: Path) -> None:
    stopping = Prover(prover(tmp_path).settings, PLAN, lambda: True)
    with pytest.raises(Stopped):
        stopping.prove(fake_version(tmp_path, 1), None)


def test_reference_pages_are_the_versions_then_the_operators_then_built_in(tmp_path: Path) -> None:
    version = fake_version(tmp_path, 1)
    assert [page.name for page in find_reference_pages(tmp_path, version)] == ["reference_page.png"]
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "all.png").write_bytes(PAGE)
    assert [page.name for page in find_reference_pages(tmp_path, version)] == ["all.png"]
    (tmp_path / "fake" / "reference").mkdir()
    (tmp_path / "fake" / "reference" / "own.png").write_bytes(PAGE)
    (tmp_path / "fake" / "reference" / "own.txt").write_text("text")
    [page] = find_reference_pages(tmp_path, version)
    assert (page.name, page.expected, page.read()) == ("own.png", "text", PAGE)
    own = make_version(tmp_path, "fake", 2, 'engine = "fake"\n', {"reference/of_it.png": PAGE})
    assert [page.name for page in find_reference_pages(tmp_path, own)] == ["reference/of_it.png"]
    assert find_version(tmp_path, *own.reference) == own


@pytest.mark.parametrize(
    ("model", "files", "reason"),
    [
        ('engine = "fake"\n[reference]\nfolder = "pages"\n', {}, "no images in pages/"),
        ('engine = "fake"\n', {"reference/page.txt": b"text"}, "page.txt"),
    ],
)
def test_error_names_missing_pages(tmp_path: Path, model: str, files: Mapping[str, bytes], reason: str) -> None:
    version = make_version(tmp_path, "fake", 2, model, files)
    with pytest.raises(BadModel, match=reason):
        find_reference_pages(tmp_path, version)


@pytest.mark.parametrize(("wanted", "read", "f1"), data_of("words_f1"))
def test_words_are_counted_in_any_order(wanted: str, read: str, f1: float | None) -> None:
    assert words_f1([(wanted, read)]) == f1


def measured(text: str = "a b c d", cpu_s: float = 1.0, memory: int = 1 << 30, **page: object) -> Measurement:
    """The measurement of one page."""
    fields: dict[str, object] = {"name": "p", "expected": None, "text": text, "cpu_s": cpu_s, "wall_s": 9.0, **page}
    return Measurement("m/1", "cpu", memory, (PageMeasurement(**fields),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("candidate", "serving_cpu_s", "kind"),
    [
        (measured(), 1.0, None),
        (measured(cpu_s=1.49), 1.0, None),
        (measured(cpu_s=1.51), 1.0, "slow"),
        # Very short times are not compared.
        (measured(cpu_s=0.004), 0.0001, None),
        (measured(memory=3 << 29), 1.0, None),
        (measured(memory=2 << 30), 1.0, "memory"),
        (measured("a b c x"), 1.0, "text"),
        (measured("a b c d", expected="e f g h"), 1.0, "text"),
        (Judgement("crash", "It crashed."), 1.0, "crash"),
    ],
)
def test_judge_applies_its_bounds(candidate: Measurement | Judgement, serving_cpu_s: float, kind: str | None) -> None:
    assert judge(candidate, measured(cpu_s=serving_cpu_s), Reference()).kind == kind
