"""Which version reads a request in a worker, and what is loaded when the worker is ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from image_support import png
from models_support import accept, make_fake, make_version
from support import wait_until
from web_support import running_reader

from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import BadModel, UnknownModel
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import Document, DocumentPage
from ocrsvc.models.worker_models import WorkerModels, memory_budget, open_worker_models
from ocrsvc.pipeline.read import Reader
from ocrsvc.pipeline.result_cache import MemoryCache, ResultCache
from ocrsvc.results import ReadOptions
from ocrsvc.serving.executor import Executor
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, Job
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.model_metrics import MODELS_BYTES, MODELS_LIMIT, MODELS_LOADED
from ocrsvc.worker.watch import ModelsInProcess

PLAN = ThreadPlan(1, 4, 1)
FAR_S = 30.0
MIB = 1 << 20


Opener = Callable[..., WorkerModels]


@pytest.fixture
def open_models(tmp_path: Path) -> Iterator[Opener]:
    """Opens the models of a repository under the settings given; everything that is in it is accepted."""
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
    assert executor.stop(FAR_S)
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
    """A version whose file is not that of its manifest."""
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
    versions = [make_fake(tmp_path / "models", 1, name, fake_model_bytes=20 * MIB) for name in "abc"]
    models = open_models(*versions, model="b", models_load="all", models_memory="45MiB")
    models.load_ahead()
    # The default model does not make room for others.
    assert loaded(models) == ["a/1", "b/1"]


def test_a_default_model_that_cannot_be_loaded_is_an_error(tmp_path: Path, open_models: Opener) -> None:
    models = open_models(damaged(tmp_path / "models", "a", 1), model="a")
    with pytest.raises(BadModel, match="does not match the manifest"):
        models.load_ahead()


def test_request_for_a_retired_version_selects_again(
    tmp_path: Path, open_models: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (make_fake(tmp_path / "models", number, "a") for number in (1, 2))
    models = open_models(old, new, model="a")
    models.loaded.preload(old)
    models.loaded.preload(new)
    models.loaded.retire(old)
    wait_until(lambda: models.loaded.describe(old) is None)
    resolve, meant = models.selector.select, [old]
    monkeypatch.setattr(models.selector, "select", lambda options: meant.pop() if meant else resolve(options))
    with leased(models) as read_by:
        assert (read_by, meant) == ("a/2", [])
    # Who names it still gets it.
    monkeypatch.setattr(models.selector, "select", lambda _options: old)
    with leased(models) as read_by:
        assert read_by == "a/1"


@pytest.mark.parametrize(("given", "expected"), [("64MiB", 64 * MIB), ("10%", read_memory_bytes() // 10)])
def test_a_budget_is_bytes_or_a_share(given: str, expected: int) -> None:
    settings = Settings.model_validate({"engine": "fake", "models_memory": given})
    assert memory_budget(settings, PLAN) == pytest.approx(expected, abs=1)


def test_what_is_loaded_later_counts_as_added(tmp_path: Path, open_models: Opener) -> None:
    versions = [make_fake(tmp_path / "models", 1, name, fake_model_bytes=20 * MIB) for name in "ab"]
    models = open_models(*versions, model="a", models_memory="100MiB")
    models.load_ahead()
    ready_bytes = models.loaded.held_bytes()
    in_process = ModelsInProcess(models.loaded)
    assert (in_process.added_bytes(), in_process.room_bytes) == (0, 100 * MIB - ready_bytes)
    with leased(models, model="b"):
        assert in_process.added_bytes() == pytest.approx(20 * MIB, rel=0.1)
    found = dict(models.loaded.gauges())
    assert (found[MODELS_LOADED], found[MODELS_LIMIT]) == (2, 100 * MIB)
    assert found[MODELS_BYTES] == models.loaded.held_bytes()
    wait_until(in_process.is_settled)


def test_failed_start_of_a_reader_leaves_no_thread(tmp_path: Path) -> None:
    values = {"engine": "fake", "models": tmp_path, "models_state": tmp_path / "state", "model": "nowhere"}
    reader = Reader(Settings.model_validate(values), PLAN)
    with pytest.raises(UnknownModel):
        reader.start()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("engine-0")]


def read_with(folder: Path, *versions: ModelVersion, **settings: object) -> AbstractContextManager[Reader]:
    """A reader of the versions in a repository, all of which are accepted."""
    accept(folder, *versions)
    values = {"engine": "fake", "models": folder / "models", "models_state": folder / "state", **settings}
    return running_reader(Settings.model_validate(values), None, 1)


def test_the_result_cache_knows_the_model_by_its_files_and_not_by_how_it_was_named(tmp_path: Path) -> None:
    versions = [make_fake(tmp_path / "models", 1, name) for name in "ab"]
    with read_with(tmp_path, *versions, model="a", cache_bytes=MIB) as reader:
        found = [reader.read(png(), ReadOptions(model=name), FAR_S) for name in (None, "a", "a/1", "b")]
    assert [(one.engine.model, one.from_cache) for one in found] == [
        *(("a", False), ("a", True), ("a", True), ("b", False))
    ]
    page, info = DocumentPage(Document(png(), PixelLimits(10**6)), 1), found[0].engine
    cache = ResultCache(MemoryCache(MIB, FAR_S))
    keys = {cache.key_of(page, ReadOptions(), info, version.digest) for version in versions}
    assert len(keys | {cache.key_of(page, ReadOptions(), info)}) == 3


def test_pages_read_one_by_one_are_read_by_the_version_that_the_document_began_with(tmp_path: Path) -> None:
    old, new = (make_fake(tmp_path / "models", number, "a") for number in (1, 2))
    with read_with(tmp_path, old, model="a") as reader:
        with reader.one_version(ReadOptions(), FAR_S, DEFAULT_CONTEXT) as lease:
            accept(tmp_path, new)
            reader.worker_models.loaded.preload(new)
            reader.worker_models.loaded.retire(old)
            read = [reader.read(png(), ReadOptions(), FAR_S, lease=one).engine.version for one in (lease, lease)]
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
