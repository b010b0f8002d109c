"""Models in a worker: the version that reads a request, preloading, and a version's settings."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from image_support import png
from models_support import accept, make_fake, make_version
from support import read_data, wait_until
from web_support import running_reader

from ocrsvc.engines.model.files import write_manifest
from ocrsvc.engines.model.version import ModelVersion, built_in_model
from ocrsvc.engines.open_engine import open_engine, settings_of_model
from ocrsvc.errors import BadModel, UnknownModel
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import Document, DocumentPage
from ocrsvc.models.worker_models import WorkerModels, memory_budget, open_worker_models
from ocrsvc.pipeline.read import Reader
from ocrsvc.pipeline.result_cache import MemoryCache, ResultCache
from ocrsvc.results import ReadOptions
from ocrsvc.serving.executor import Executor
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, Job
from ocrsvc.settings.settings import Settings, settings_class
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.model_metrics import MODELS_BYTES, MODELS_LIMIT, MODELS_LOADED

PLAN = ThreadPlan(1, 4, 1)
WAIT_S = 30.0
MIB = 1 << 20


Opener = Callable[..., WorkerModels]


@pytest.fixture
def open_models(tmp_path: Path) -> Iterator[Opener]:
    """Opens a worker's models with these settings; all versions are accepted."""
    executor: Executor[Job[str]] = Executor(list, threads=1, places=8)
    executor.start()
    opened: list[WorkerModels] = []

    def open_them(*versions: ModelVersion, **settings: object) -> WorkerModels:
        accept(tmp_path, *versions)
        values = {"engine": "fake", "models": tmp_path / "models", "models_state": tmp_path / "state", **settings}
        opened.append(open_worker_models(Settings.model_validate(values), PLAN, executor))
        return opened[-1]

    yield open_them
    for models in opened:
        models.loaded.stop()
    assert executor.stop(WAIT_S)
    for models in opened:
        models.loaded.close()


@contextmanager
def leased(models: WorkerModels, model: str | None = None) -> Iterator[str]:
    lease = models.lease(ReadOptions(model=model))
    try:
        yield str(lease.version)
    finally:
        lease.close()


def loaded(models: WorkerModels) -> list[str]:
    return sorted(map(str, models.loaded.versions()))


def damaged(repository: Path, name: str, number: int) -> ModelVersion:
    """A version with a file that does not match its manifest."""
    content = 'engine = "fake"\n[settings]\nfake_text = "./text"\n'
    version = make_version(repository, name, number, content, {"text": b"as it was"})
    (version.folder / "text").write_bytes(b"as it is")
    return version


def test_only_the_default_model_is_loaded_at_the_start(tmp_path: Path, open_models: Opener) -> None:
    versions = [make_fake(tmp_path / "models", 1, name) for name in "ab"]
    models = open_models(*versions, model="a")
    models.load_ahead()
    assert loaded(models) == ["a/1"]
    assert (models.describe().model, models.describe().version) == ("a", "1")
    with leased(models, model="b") as read_by:
        assert read_by == "b/1"


def test_named_models_are_preloaded_and_failures_do_not_stop_the_start(tmp_path: Path, open_models: Opener) -> None:
    versions = [make_fake(tmp_path / "models", 1, name) for name in "abc"]
    versions.append(damaged(tmp_path / "models", "d", 1))
    models = open_models(*versions, model="a", models_load="b/1, d, nowhere")
    models.load_ahead()
    assert loaded(models) == ["a/1", "b/1"]


def test_all_models_are_preloaded_within_the_budget(tmp_path: Path, open_models: Opener) -> None:
    # The budget is far from two and from three models, because what else this process allocates is measured with them.
    versions = [make_fake(tmp_path / "models", 1, name, fake_model_bytes=60 * MIB) for name in "abc"]
    models = open_models(*versions, model="b", models_load="all", models_memory="150MiB")
    models.load_ahead()
    # The default model is not evicted for others.
    assert loaded(models) == ["a/1", "b/1"]


def test_a_default_model_that_cannot_be_loaded_is_an_error(tmp_path: Path, open_models: Opener) -> None:
    models = open_models(damaged(tmp_path / "models", "a", 1), model="a")
    with pytest.raises(BadModel, match="does not match the manifest"):
        models.load_ahead()


@pytest.mark.parametrize(("given", "expected"), [("64MiB", 64 * MIB), ("10%", read_memory_bytes() // 10)])
def test_a_budget_is_bytes_or_a_share(given: str, expected: int) -> None:
    settings = Settings.model_validate({"engine": "fake", "models_memory": given})
    assert memory_budget(settings, PLAN) == pytest.approx(expected, abs=1)


def test_models_loaded_later_count_as_added_memory(tmp_path: Path, open_models: Opener) -> None:
    versions = [make_fake(tmp_path / "models", 1, name, fake_model_bytes=20 * MIB) for name in "ab"]
    models = open_models(*versions, model="a", models_memory="100MiB")
    models.load_ahead()
    ready_bytes = models.loaded.held_bytes()
    with leased(models, model="b"):
        assert models.loaded.held_bytes() - ready_bytes == pytest.approx(20 * MIB, rel=0.1)
    found = dict(models.loaded.gauges())
    assert (found[MODELS_LOADED], found[MODELS_LIMIT]) == (2, 100 * MIB)
    assert found[MODELS_BYTES] == models.loaded.held_bytes()
    wait_until(lambda: models.loaded.is_settled)


def test_failed_start_of_a_reader_leaves_no_thread(tmp_path: Path) -> None:
    values = {"engine": "fake", "models": tmp_path, "models_state": tmp_path / "state", "model": "nowhere"}
    reader = Reader(Settings.model_validate(values), PLAN)
    with pytest.raises(UnknownModel):
        reader.start()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("engine-0")]


def read_with(folder: Path, *versions: ModelVersion, **settings: object) -> AbstractContextManager[Reader]:
    """A reader with a repository of accepted versions."""
    accept(folder, *versions)
    values = {"engine": "fake", "models": folder / "models", "models_state": folder / "state", **settings}
    return running_reader(Settings.model_validate(values), None, 1)


def test_the_result_cache_key_contains_the_models_digest(tmp_path: Path) -> None:
    versions = [make_fake(tmp_path / "models", 1, name) for name in "ab"]
    with read_with(tmp_path, *versions, model="a", cache_bytes=MIB) as reader:
        found = [reader.read(png(), ReadOptions(model=name), WAIT_S) for name in (None, "a", "a/1", "b")]
    assert [(one.engine.model, one.from_cache) for one in found] == [
        *(("a", False), ("a", True), ("a", True), ("b", False))
    ]
    page, info = DocumentPage(Document(png(), PixelLimits(10**6)), 1), found[0].engine
    cache = ResultCache(MemoryCache(MIB, WAIT_S))
    keys = {cache.key_of(page, ReadOptions(), info, version.digest) for version in versions}
    assert len(keys | {cache.key_of(page, ReadOptions(), info)}) == 3


def test_all_pages_of_a_document_are_read_by_one_version(tmp_path: Path) -> None:
    old, new = (make_fake(tmp_path / "models", number, "a") for number in (1, 2))
    with read_with(tmp_path, old, model="a") as reader:
        with reader.one_version(ReadOptions(), WAIT_S, DEFAULT_CONTEXT) as lease:
            accept(tmp_path, new)
            reader.worker_models.loaded.preload(new)
            reader.worker_models.loaded.retire(old)
            read = [reader.read(png(), ReadOptions(), WAIT_S, lease=one).engine.version for one in (lease, lease)]
            assert read == ["1", "1"]
        wait_until(lambda: reader.worker_models.loaded.versions() == (new,))


@pytest.mark.parametrize("default", ["a", "b"])
def test_newest_loadable_version_replaces_unloadable_ones(tmp_path: Path, open_models: Opener, default: str) -> None:
    repository = tmp_path / "models"
    versions = [make_fake(repository, 1, "a"), damaged(repository, "a", 2), damaged(repository, "a", 3)]
    models = open_models(make_fake(repository, 1, "b"), *versions, model=default)
    models.load_ahead()
    assert loaded(models) == [f"{default}/1"]
    with leased(models, model="a") as read_by:
        assert read_by == "a/1"


ONE_THREAD = ThreadPlan(1, 1, 1)


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
        open_engine(Settings(isolation="process", models=tmp_path), ONE_THREAD, model=model)


@pytest.mark.parametrize(
    ("model", "fault", "remedy"), read_data("worker_models.json")["error names a setting that a model may not set"]
)
def test_error_names_a_setting_that_a_model_may_not_set(tmp_path: Path, model: str, fault: str, remedy: str) -> None:
    version = make_version(tmp_path, "fake", 1, f"engine = 'fake'\n{model}")
    with pytest.raises(BadModel, match=fault) as raised:
        settings_of_model(Settings(), version)
    assert remedy in raised.value.remedy


def test_error_names_an_unknown_engine(tmp_path: Path) -> None:
    version = make_version(tmp_path, "a", 1, "engine = 'reader'")
    with pytest.raises(BadModel, match="unknown engine 'reader'") as raised:
        open_engine(Settings(), ONE_THREAD, model=version)
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
def test_model_programs_and_paths_are_limited(tmp_path: Path, model: str, service: Settings, fault: str) -> None:
    version = make_version(tmp_path, "mine", 2, model, {"libtr.so": b"1"})
    with pytest.raises(BadModel, match=fault):
        open_engine(service, ONE_THREAD, model=version)


def test_service_settings_apply_unless_the_model_sets_them(tmp_path: Path) -> None:
    service = settings_class()(fake_latency_s=2.0, workers=3, engine="tr")
    settings = settings_of_model(service, make_fake(tmp_path, 1, fake_burn_s=1))
    changed = {name for name in type(service).model_fields if getattr(settings, name) != getattr(service, name)}
    assert changed == {"engine", "fake_text", "fake_burn_s"}
    assert type(settings) is type(service)
    assert settings_of_model(Settings(), built_in_model()) == Settings()
