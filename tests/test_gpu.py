"""Tests that need a real GPU: run `pytest -m gpu` with the extra gpu-cuda12 or gpu-cuda13 installed."""

import importlib.util
import logging
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.engine import PpocrEngine
from ocrsvc.engines.ppocr.gpu.arrays import ArrayBackend, CupyBackend
from ocrsvc.engines.ppocr.gpu.page_reader import pack_map
from ocrsvc.engines.ppocr.gpu.resampling import crop_lines, detector_input
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS
from ocrsvc.engines.ppocr.runtime.model_cache import default_folder
from ocrsvc.engines.ppocr.runtime.model_parts import RECOGNITION, built_in_part
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.providers import CUDA, GpuConfig
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.results import Image, Page, ReadTask
from ocrsvc.system.gpu import Siblings, open_gpu_memory_reader

PAGES = Path(__file__).parent / "pages"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        CUDA not in onnxruntime.get_available_providers(),
        reason="needs an NVIDIA GPU and a build of onnxruntime-gpu (extra gpu-cuda12 or gpu-cuda13)",
    ),
]


def read(config: SessionConfig) -> Page:
    engine = PpocrEngine(config, model_cache=default_folder() if config.provider == "tensorrt" else None)
    handle = engine.open_handle()
    handle.warm_up()
    pixels = np.asarray(cv2.imread(str(PAGES / "notice.png")), np.uint8)
    (page,) = handle.read([ReadTask(Image(pixels, "png"))])
    assert isinstance(page, Page)
    return page


CONFIGS = [
    SessionConfig("cuda"),
    SessionConfig("cuda", precision="fp32", gpu=GpuConfig(streams=2)),
    SessionConfig("cuda", precision="fp16", gpu=GpuConfig(streams=2)),
    SessionConfig("cuda", provider="tensorrt", precision="fp16"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["auto", "fp32", "fp16", "tensorrt"])
@pytest.mark.timeout(3600)  # building TensorRT engines takes minutes
def test_gpu_and_cpu_read_the_same_text(config: SessionConfig) -> None:
    if config.provider == "tensorrt" and importlib.util.find_spec("tensorrt_libs") is None:
        pytest.skip("needs the package tensorrt-cu12-libs or tensorrt-cu13-libs")
    on_cpu, on_gpu = read(SessionConfig("cpu")), read(config)
    # Padding moves boxes by a few pixels, so a full stop can be lost.
    letters = ["".join(filter(str.isalnum, page.text)) for page in (on_gpu, on_cpu)]
    assert letters[0] == letters[1]
    assert np.allclose([line.box for line in on_gpu.lines], [line.box for line in on_cpu.lines], atol=6.0)


def test_gpu_buffers_and_host_memory_give_the_same_results() -> None:
    cupy = pytest.importorskip("cupy")
    session = open_model(built_in_part(RECOGNITION), SessionConfig("cuda"))
    tensor = np.random.default_rng(1).uniform(-1, 1, (2, 3, 48, 320)).astype(np.float32)
    through_memory = session.run(tensor, OUTPUTS)
    with cupy.cuda.Stream(non_blocking=True):
        # The caller's stream computes the input; only the session's stream waits for it.
        on_gpu = session.run(cupy.asarray(tensor) * 2 / 2, OUTPUTS)
    assert [cupy.asnumpy(array).tolist() for array in on_gpu[:1]] == [through_memory[0].tolist()]
    assert np.allclose(cupy.asnumpy(on_gpu[1]), through_memory[1], atol=1e-3)


def test_device_auto_uses_the_gpu() -> None:
    assert PpocrEngine(SessionConfig("auto")).describe().device == "cuda"


def test_nvml_reports_this_process_memory() -> None:
    gauge = open_gpu_memory_reader(logging.getLogger("test-gpu"), Siblings())
    assert gauge is not None
    engine = PpocrEngine(SessionConfig("cuda"))
    handle = engine.open_handle()
    handle.warm_up()
    reading = gauge.read(Siblings())
    assert reading is not None
    # The models take 30 MB, and a CUDA context several hundred MB.
    assert 30 * 10**6 < reading.own_bytes <= reading.used_bytes < reading.total_bytes


def prepared(gpu: ArrayBackend, pixels: NDArray[np.uint8]) -> list[NDArray[Any]]:
    """Outputs of the GPU imaging steps for a page: shrunk, enlarged, packed map, and crops of three lines."""
    page, (height, width) = gpu.upload(pixels), pixels.shape[:2]
    quads = [np.array([[8, 6], [8 + w, 9], [8 + w, 9 + h], [8, 6 + h]], np.float32) for w, h in ((300, 30), (500, 250))]
    quads.append(np.roll(quads[1], 2, axis=0))
    return [
        gpu.download(found)
        for found in (
            detector_input(gpu.xp, page, (320, 160), (480, 160), shrink=True),
            detector_input(gpu.xp, page, (width + 64, height + 32), (960, 480), shrink=False),
            pack_map(gpu.xp, page.reshape(height, -1).astype(np.float32) / np.float32(255), 0.3),
            crop_lines(gpu, page, quads, [160, 208, 96], 240, USUAL),
        )
    ]


@pytest.mark.parametrize("colour", [True, False])
def test_cupy_and_numpy_prepare_the_same_pixels(colour: bool) -> None:
    pixels = np.asarray(cv2.imread(str(PAGES / "notice.png")), np.uint8)
    pixels = pixels if colour else np.ascontiguousarray(pixels[:, :, 1])
    for there, here in zip(prepared(CupyBackend(), pixels), prepared(ArrayBackend(), pixels), strict=True):
        assert there.dtype == here.dtype
        # A GPU may round a single-precision sum differently, by one gray level or one step of a byte.
        apart = np.abs(there.astype(np.float64) - here)
        assert apart.max() <= (1 if there.dtype == np.uint8 else 1.01 / 127.5)
        assert (apart > 1e-4).mean() < 0.01


def test_pixels_are_prepared_on_the_gpu_without_warnings(caplog: pytest.LogCaptureFixture) -> None:
    engine = PpocrEngine(SessionConfig("cuda"))
    assert "pixels prepared by cupy" in engine.describe().provider, caplog.text
    engine.close()
