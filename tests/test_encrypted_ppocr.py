"""ppocr with an encrypted model reads like the plain one and writes no plain weights to a file."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from support import ROOT

from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.version import DETECTION, RECOGNITION, ModelVersion, built_in_model
from ocrsvc.engines.open_engine import open_engine_in_process
from ocrsvc.models.importers.source_files import NewModel
from ocrsvc.models.importers.write_version import encrypt_model, write_version
from ocrsvc.models.repository import ModelRepository
from ocrsvc.results import Image, Page, ReadTask
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import ThreadPlan

KEY = ModelKey(bytes(range(32)))
SLICE_BYTES = 48
EVERY_BYTES = 1_000_003


@pytest.fixture(scope="module")
def page() -> Image:
    return Image(np.asarray(cv2.imread(str(ROOT / "tests" / "pages" / "notice.png")), np.uint8), "png")


@pytest.fixture(scope="module")
def slices() -> list[bytes]:
    """Samples of both models' weights, evenly spaced, without repetitive ones."""
    models = [built_in_model().read(name) for name in (DETECTION, RECOGNITION)]
    found = [model[at : at + SLICE_BYTES] for model in models for at in range(EVERY_BYTES, len(model), EVERY_BYTES)]
    return [one for one in found if len(set(one)) > SLICE_BYTES // 3]


def read(page: Image, cache: Path, model: ModelVersion) -> Page:
    env = {"OCRSVC_PROVIDER": "cpu", "OCRSVC_PRECISION": "fp32", "OCRSVC_DEVICE": "cpu"}
    settings = read_settings(env | {"OCRSVC_MODEL_CACHE": str(cache)})
    engine = open_engine_in_process(settings, ThreadPlan(1, 1, 1), model)
    try:
        handle = engine.open_handle()
        [answer] = handle.read([ReadTask(page)])
        handle.close()
    finally:
        engine.close()
    assert isinstance(answer, Page)
    return answer


def count_plain_slices(folder: Path, slices: list[bytes]) -> int:
    contents = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert contents
    return sum(one in content for one in slices for content in contents)


def test_encrypted_model_reads_alike_and_caches_no_plain_data(tmp_path: Path, page: Image, slices: list[bytes]) -> None:
    built_in = built_in_model()
    plain = NewModel(built_in.description, {name: built_in.read(name) for name in built_in.description.files})
    write_version(plain, tmp_path / "plain", "mine", 1)
    write_version(encrypt_model(built_in, KEY), tmp_path / "encrypted", "mine", 1)
    wanted = read(page, tmp_path / "plain" / "cache", ModelRepository(tmp_path / "plain").open("mine", 1))
    version = ModelRepository(tmp_path / "encrypted", KEY).open("mine", 1)
    for _ in ("made", "from the cache"):
        found = read(page, tmp_path / "encrypted" / "cache", version)
        assert [line.text for line in found.lines] == [line.text for line in wanted.lines]
    assert count_plain_slices(tmp_path / "plain" / "cache", slices), "the plain cache must contain the slices"
    assert not count_plain_slices(tmp_path / "encrypted", slices)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(), "no model file is mapped"
