"""GPU imaging run with numpy: its pixels equal OpenCV's, and it uses only operations that cupy supports."""

import importlib.util
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
from curved_pages import bend, bent, flat_page
from gpu_session_double import WARM_PX, GpuSessionDouble, install
from image_support import noise
from numpy.typing import NDArray
from ppocr_support import LINE, load, read, text_of
from strict_arrays import OnGpu, StrictArrays, on_gpu
from support import SHARED

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.model.version import built_in_model
from ocrsvc.engines.ppocr import engine as engine_file
from ocrsvc.engines.ppocr.engine import PageHandle, PpocrEngine
from ocrsvc.engines.ppocr.gpu import arrays
from ocrsvc.engines.ppocr.gpu.arrays import ArrayBackend, CupyBackend, find_backend
from ocrsvc.engines.ppocr.gpu.page_reader import MAX_SAMPLES, find_fault
from ocrsvc.engines.ppocr.gpu.resampling import crop_lines, samples
from ocrsvc.engines.ppocr.pipeline.detector import SIDES_PX
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL
from ocrsvc.engines.ppocr.pipeline.page import InMemoryPageReader
from ocrsvc.engines.ppocr.pipeline.recognition_batches import BUCKETS_PX, BatchRunner
from ocrsvc.engines.ppocr.runtime.model_parts import read_parts
from ocrsvc.engines.ppocr.runtime.providers import GpuConfig
from ocrsvc.engines.ppocr.runtime.session import Session, SessionConfig
from ocrsvc.results import ReadTask
from ocrsvc.serving.batcher import Limits

SMALL = Limits(max_cost=4 * 48 * 480, max_items=4, max_wait_s=0.001)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize(
    "corners",
    [
        pytest.param([[5, 5], [5, 5], [5, 5], [5, 5]], id="a point"),
        pytest.param([[5, 5], [90, 60], [90, 60], [5, 9]], id="a triangle"),
        pytest.param([[0, 0], [90, 60], [90, 0], [0, 60]], id="a bow tie"),
        pytest.param([[-400, -90], [400, -90], [400, 190], [-400, 190]], id="far beyond the page"),
    ],
)
def test_quads_never_read_outside_the_page(corners: list[list[float]]) -> None:
    cut = crop_lines(ArrayBackend(), noise(7, 60, 90), [np.array(corners, np.float32)], [96], 96, USUAL)
    assert np.isfinite(cut).all()
    assert np.abs(cut).max() <= 1


@pytest.fixture(scope="module")
def engine() -> Iterator[PpocrEngine]:
    """The engine with real models in batches, and a strict double of a GPU."""
    original_run = Session.run

    def run(self: Session, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        if not isinstance(array, OnGpu):
            return original_run(self, array, outputs)
        return [on_gpu(found) for found in original_run(self, np.asarray(array), outputs)]

    patch = pytest.MonkeyPatch()
    install(patch)
    patch.setattr(engine_file, "find_backend", lambda *_: StrictArrays())
    patch.setattr(Session, "run", run)
    engine = PpocrEngine(SessionConfig("cuda", gpu=GpuConfig(streams=2)), batch=SMALL)
    yield engine
    engine.close()
    patch.undo()


def in_memory(engine: PpocrEngine) -> PageHandle:
    return PageHandle(engine._detector, engine._scripts, engine._shared_threads)


def corpus() -> list[Path]:
    """Three small pages of the corpus (a screenshot, a photo, a scan); empty if the corpus is missing."""
    manifest = SHARED / "corpus" / "manifest.jsonl"
    rows = manifest.read_text("utf-8").splitlines() if manifest.is_file() else []
    wanted = ("gameui_14", "ic15_009", "m_trcpp_006")
    files = [json.loads(row)["file"] for row in rows]
    return [SHARED / "corpus" / file for file in files if Path(file).stem in wanted]


def test_gpu_and_host_input_give_the_same_pages(engine: PpocrEngine) -> None:
    assert engine.describe().provider == "CUDAExecutionProvider, pixels prepared by strict"
    for file in ("notice.png", "notice_turned_180.png", *map(str, corpus())):
        pixels = load(file)
        there, here = read(engine.open_handle(), pixels), read(in_memory(engine), pixels)
        assert here.lines, file
        assert there.text == here.text, file
        assert there.angle == here.angle, file
        for one, other in zip(there.lines, here.lines, strict=True):
            assert np.abs(np.subtract(one.box, other.box)).max() <= 1, file
            assert one.confidence == pytest.approx(other.confidence, abs=0.02), file


def test_gpu_and_host_read_small_text_in_the_corner_of_a_page(engine: PpocrEngine) -> None:
    pixels = np.full((1200, 1600, 3), 255, np.uint8)
    notice = cv2.resize(load("notice.png"), None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA)
    height, width = notice.shape[:2]
    pixels[-height:, -width:] = notice
    there, here = read(engine.open_handle(), pixels), read(in_memory(engine), pixels)
    assert there.text == here.text
    assert len(here.lines) == len(text_of("notice").splitlines())
    for one, other in zip(there.lines, here.lines, strict=True):
        assert np.abs(np.subtract(one.box, other.box)).max() <= 1


def test_page_with_bent_lines_is_flattened_on_the_gpu(engine: PpocrEngine) -> None:
    page, truth = flat_page(20)
    curved = np.asarray(bent(page, 70.0)[0], np.uint8)
    flattened = read(engine.open_handle(), curved)
    expected, found = " ".join(truth).split(), flattened.text.split()
    assert sum(word in found for word in expected) >= 0.97 * len(expected)
    assert read(engine.open_handle(), curved, unwarp=False) != flattened


def test_gpu_reads_the_cpus_text_in_few_shapes(engine: PpocrEngine) -> None:
    pixels = load("notice.png")
    with ThreadPoolExecutor(4) as pool:
        handles = (engine.open_handle(), in_memory(engine)) * 2
        pages = list(pool.map(lambda handle: read(handle, pixels), handles))
    # Padding makes a box 4 px taller, so a full stop is lost; docs/design/accuracy-and-speed.md has corpus figures.
    letters = "".join(filter(str.isalnum, text_of("notice")))
    assert ["".join(filter(str.isalnum, page.text)) for page in pages] == [letters] * 4
    assert {(1, 3, *size) for size in WARM_PX} <= GpuSessionDouble.shapes
    for lines, _, height, width in GpuSessionDouble.shapes:
        assert (width in BUCKETS_PX and lines <= 4) if height == 48 else {height, width} <= set(SIDES_PX)


def test_page_sized_line_takes_few_gpu_passes(engine: PpocrEngine) -> None:
    pixels = cv2.resize(load("line.png"), None, fx=6, fy=6, interpolation=cv2.INTER_LINEAR)
    page = read(engine.open_handle(), np.asarray(pixels, np.uint8), detect=False)
    assert page.text == LINE
    quad = np.array([[0, 0], [3600, 0], [3600, 300], [0, 300]], np.float32)
    quads = [quad, quad / np.float32(3), quad / np.float32(6)]
    largest, large, small = samples(quads, [496] * 3, 48)
    assert largest > MAX_SAMPLES >= large > small == 1


def test_curved_line_reads_the_same_from_gpu_and_host_memory(engine: PpocrEngine) -> None:
    pixels = bend(load("line.png"), 500, (700, 560))
    there, here = read(engine.open_handle(), pixels), read(in_memory(engine), pixels)
    assert there.text == here.text == LINE
    assert np.abs(np.subtract(there.lines[0].box, here.lines[0].box)).max() <= 1


def test_options_have_the_same_effect_on_the_gpu(engine: PpocrEngine) -> None:
    for decoder in ("greedy", "beam"):
        assert read(engine.open_handle(), load("line.png"), detect=False, decoder=decoder).text == LINE
    gray = np.ascontiguousarray(load("line.png")[:, :, 1])
    assert read(engine.open_handle(), gray, detect=False).text == LINE
    assert read(engine.open_handle(), np.full((40, 60), 255, np.uint8)).lines == ()


class FullGpu(StrictArrays):
    """A GPU whose memory is too small for a page."""

    def upload(self, array: NDArray[Any]) -> Any:
        if array.ndim > 1:
            raise MemoryError("out of memory allocating 512 bytes")
        return super().upload(array)


def test_page_beyond_gpu_memory_is_prepared_on_the_host(engine: PpocrEngine, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = engine._gpu_pipeline
    assert pipeline is not None
    full = type(pipeline)(FullGpu(), pipeline.detector, pipeline.scripts)
    handle = PageHandle(engine._detector, engine._scripts, engine._shared_threads, gpu_pipeline=full)
    assert read(handle, load("line.png")).text == LINE
    assert "A page of 600 x 50 pixels does not fit into the GPU (out of memory" in caplog.text


class BrokenGpu(StrictArrays):
    """A GPU whose driver is too old for the CUDA toolkit."""

    name = "cupy 0"

    def upload(self, array: NDArray[Any]) -> Any:
        raise RuntimeError(f"cudaErrorInsufficientDriver at {array.shape}")


def test_engine_falls_back_from_a_failing_gpu_and_logs(engine: PpocrEngine, caplog: pytest.LogCaptureFixture) -> None:
    runs, parts = engine._line_runners[0], read_parts(built_in_model())
    assert isinstance(runs, BatchRunner)
    assert engine.open_gpu_pipeline(BrokenGpu(), parts, {"main": runs._session}, SMALL) is None
    (message,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    fault = "it fails with RuntimeError: cudaErrorInsufficientDriver at (100, 400)"
    assert f"instead of by cupy 0: on a test page {fault}" in message
    assert "OCRSVC_IMAGING=cpu" in message


def test_text_that_differs_from_the_cpus_is_a_gpu_fault() -> None:
    def view(text: str, task: ReadTask) -> InMemoryPageReader:
        says = Mock(crop_size=lambda along, across: (int(along), int(across)))
        says.read.side_effect = lambda crops, *_: [LineText(text, 0.9) for _ in crops]
        return InMemoryPageReader(task.image.pixels, lambda _: [], says)

    assert find_fault(partial(view, "a"), partial(view, "a")) is None
    assert find_fault(partial(view, "b"), partial(view, "a")) == "it reads 'b' instead of 'a'"


def test_free_gpu_memory_above_a_limit_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = Mock(__version__="14.2.0")
    memory, pinned = cupy.get_default_memory_pool.return_value, cupy.get_default_pinned_memory_pool.return_value
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    gpu = CupyBackend()
    for more, releases in ((0, 0), (1, 1)):
        memory.free_bytes.return_value = arrays.MAX_FREE_BYTES + more
        pinned.n_free_blocks.return_value = arrays.MAX_FREE_PINNED_BLOCKS + more
        gpu.trim()
        assert (memory.free_all_blocks.call_count, pinned.free_all_blocks.call_count) == (releases, releases)


def test_gpu_imaging_needs_cuda_and_cupy(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert find_backend("auto", "cpu") is None
    assert find_backend("cpu", "cuda") is None
    assert caplog.text == ""
    assert find_backend("auto", "cuda") is None
    assert "cupy is not installed" in caplog.text
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "cupy", None)  # makes `import cupy` fail
    assert find_backend("auto", "cuda") is None
    assert "cupy cannot be loaded" in caplog.text
