"""The models under the real OpenVINO; needs the package, and a processor that computes in bfloat16."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from models_support import built_in
from ppocr_support import load

from ocrsvc.engines.ppocr.engine import PpocrEngine
from ocrsvc.engines.ppocr.pipeline.network_input import blank_input, model_input, to_tensor
from ocrsvc.engines.ppocr.proof_process import prove_in_child
from ocrsvc.engines.ppocr.runtime import openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, Kind, built_in_part
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime_choice import RuntimeChoice
from ocrsvc.engines.ppocr.runtime_proof import BF16, TINY_FIRST, Runtime
from ocrsvc.results import Image, Page, Pixels, ReadOptions, ReadTask
from ocrsvc.system.allocator import release_free_memory

if not openvino_session.is_installed():
    pytest.skip("openvino is not installed; it comes with the extra openvino", allow_module_level=True)
if not openvino_session.computes_bf16():
    pytest.skip("this processor does not compute in bfloat16", allow_module_level=True)

CONFIG = SessionConfig("cpu", provider="openvino", precision="bf16", sessions=2)


def line(width: int) -> Pixels:
    return np.asarray(cv2.resize(load("line.png"), (width, 48)), np.uint8)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> ModelCache:
    return ModelCache(tmp_path_factory.mktemp("models"))


def test_session_memory_is_released_with_free_memory(cache: ModelCache) -> None:
    detector = open_model(built_in_part(DETECTION), SessionConfig("cpu", provider="openvino", precision="bf16"), cache)
    pixels = np.asarray(cv2.resize(load("notice.png"), (1280, 960)), np.uint8)
    before = detector.run(model_input(detector, pixels))[0]
    held_bytes = resident_bytes()
    release_free_memory()
    assert resident_bytes() < held_bytes - 64 * 2**20
    assert np.array_equal(detector.run(model_input(detector, pixels))[0], before)


@pytest.mark.parametrize("kind", [DETECTION, RECOGNITION])
def test_models_mapped_from_the_cache_compute_the_same(cache: ModelCache, kind: Kind) -> None:
    part = built_in_part(kind)
    found = []
    for folder in (ModelCache(None), cache, cache):
        runner = open_model(part, CONFIG, folder)
        tensor = blank_input(runner, *part.smallest_shape[2:]) + 7
        found.append(runner.run(tensor))
        release_free_memory()
        assert all(map(np.array_equal, runner.run(tensor), found[0]))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_runs_from_several_threads_wait_for_each_other(cache: ModelCache) -> None:
    runner = open_model(built_in_part(RECOGNITION), replace(CONFIG, sessions=1), cache)
    tensor = to_tensor(line(96))
    alone = runner.run(tensor)
    with ThreadPoolExecutor(4) as pool:
        # The warm-up runs sessions without acquiring them from the pool.
        warmed = [pool.submit(runner.warm_up, tensor) for _ in range(8)]
        found = list(pool.map(lambda _: runner.run(tensor), range(8)))
    assert [one.result() for one in warmed] == [None] * 8
    assert all(np.array_equal(mine, other) for run in found for mine, other in zip(run, alone, strict=True))


@pytest.mark.parametrize(("recognition", "provider"), [(BF16, "OpenVINO"), (TINY_FIRST, "OpenVINO, tiny first")])
def test_both_decoders_read_pages_the_same_alone_and_together(
    tmp_path: Path, recognition: Runtime, provider: str
) -> None:
    choice = RuntimeChoice(BF16, recognition, "asked for")
    engine = PpocrEngine(SessionConfig("cpu"), engine_threads=2, model_cache=tmp_path, choices=[choice])
    info = engine.describe()
    assert (info.precision, info.provider, info.device) == ("bf16", provider, "cpu")
    handle = engine.open_handle()
    options = (ReadOptions(), ReadOptions(decoder="beam"))
    tasks = [ReadTask(Image(load(name), "png"), one) for name in ("notice.png", "line.png") for one in options]
    together, alone = handle.read(tasks), [handle.read([task])[0] for task in tasks[::-1]][::-1]
    handle.close()
    engine.close()
    assert together == alone
    for found in together[:2]:
        assert isinstance(found, Page)
        assert "Thelibraryclosesat15:00today." in "".join(found.text.split())


def test_bf16_reads_the_reference_page_like_fp32(cache: ModelCache, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    proofs = prove_in_child(built_in(), SessionConfig("cpu"), cache)
    assert caplog.messages == [f"Tried: {proof}" for proof in proofs]
    # Which runtime is faster depends on the machine, but none may be rejected for reading differently.
    assert [proof.fault for proof in proofs if proof.runtime in (BF16, TINY_FIRST)] == ["", "", ""]
    assert all(proof.gain > 0 for proof in proofs)


def test_unneeded_packages_are_not_imported_and_nothing_is_written_into_the_home(tmp_path: Path) -> None:
    program = (
        "import sys; from ocrsvc.engines.ppocr.engine import choose_runtime; "
        "from ocrsvc.engines.ppocr.runtime.openvino_session import computes_bf16; computes_bf16(); unneeded = "
        "('openvino_telemetry', 'openvino.tools.ovc', 'onnx'); "
        "print([name for name, one in sys.modules.items() if name.startswith(unneeded) and one])"
    )
    environ = {"HOME": str(tmp_path), "PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.strip() == "[]"
    assert not (tmp_path / "intel").exists()
