"""Pixels prepared by the GPU's code: over numpy equal to OpenCV's, and no step that cupy refuses."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import types
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from bent_page import bend
from curved_pages import bent, flat_page
from gpu_session_double import WARM_PX, GpuSessionDouble, put_in_place
from numpy.typing import NDArray
from strict_arrays import OnGpu, StrictArrays, on_gpu

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.model.version import built_in_model
from ocrsvc.engines.ppocr import engine as engine_file
from ocrsvc.engines.ppocr.engine import PpocrEngine
from ocrsvc.engines.ppocr.gpu import arrays
from ocrsvc.engines.ppocr.gpu.arrays import ArrayBackend, CupyBackend, find_backend
from ocrsvc.engines.ppocr.gpu.crops import crop_lines, samples
from ocrsvc.engines.ppocr.gpu.page_reader import CERTAIN, MOST_SAMPLES, drawn_pages, find_fault, pack_map, unpack_map
from ocrsvc.engines.ppocr.gpu.resize import detector_input, resize
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.pipeline.db_postprocess import MAP_THRESHOLD, lines_from_map, lines_from_mask
from ocrsvc.engines.ppocr.pipeline.detector import SIDES_PX
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, to_tensor
from ocrsvc.engines.ppocr.pipeline.page import InMemoryPageReader
from ocrsvc.engines.ppocr.pipeline.recognition_batches import BUCKETS_PX, BatchRunner
from ocrsvc.engines.ppocr.runtime.model_parts import read_parts
from ocrsvc.engines.ppocr.runtime.providers import GpuConfig
from ocrsvc.engines.ppocr.runtime.session import Session, SessionConfig
from ocrsvc.imaging.geometry import Quad, crop
from ocrsvc.records import Check, Image, Page, Pixels, ReadOptions, ReadTask, no_check
from ocrsvc.serving.batcher import Limits

PAGES = Path(__file__).parent / "pages"
SHARED = Path(os.environ.get("OCRSVC_SHARED", Path(__file__).parents[2] / "shared"))
SMALL = Limits(most_cost=4 * 48 * 480, most_items=4, longest_wait_s=0.001)
OVER = pytest.mark.parametrize("gpu", [ArrayBackend(), StrictArrays()], ids=["numpy", "strict"])


def noise(*shape: int) -> Pixels:
    """Pixels with detail at every size."""
    random = np.random.default_rng(7).integers(0, 256, shape, np.uint8)
    return np.asarray(cv2.GaussianBlur(random, (3, 3), 0), np.uint8).reshape(shape)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        pytest.param((300, 420, 3), (192, 128), id="colour"),
        pytest.param((300, 420), (192, 128), id="gray"),
        pytest.param((320, 480, 3), (240, 160), id="halved"),
        pytest.param((480, 480), (160, 160), id="a third"),
        pytest.param((300, 420, 3), (416, 288), id="hardly smaller"),
        pytest.param((20, 1500, 3), (960, 32), id="a strip, wider than tall"),
        pytest.param((1200, 25), (32, 960), id="a strip, taller than wide"),
        pytest.param((250, 333), (352, 224), id="one side rounded up"),
    ],
)
def test_shrinking_is_that_of_opencv_to_a_gray_level(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    page = noise(*shape)
    expected = cv2.resize(page, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    assert np.abs(resize(np, page, size, shrink=True) - expected).max() <= 1


@pytest.mark.parametrize(
    ("shape", "size"), [((100, 400, 3), (640, 160)), ((300, 420), (640, 448)), ((1, 1), (64, 64)), ((64, 96), (96, 64))]
)
def test_enlarging_is_that_of_opencv_to_a_gray_level(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    page = noise(*shape)
    expected = cv2.resize(page, size, interpolation=cv2.INTER_LINEAR).astype(np.float32)
    assert np.abs(resize(np, page, size, shrink=False) - expected).max() <= 1


@OVER
@pytest.mark.parametrize("shape", [(90, 130), (90, 130, 3)])
def test_the_detector_is_fed_what_it_is_fed_from_memory_with_its_edge_repeated(
    gpu: ArrayBackend, shape: tuple[int, ...]
) -> None:
    page = noise(*shape)
    tensor = gpu.download(detector_input(gpu.xp, gpu.upload(page), (96, 64), (160, 96), shrink=True))
    resized = cv2.resize(page, (96, 64), interpolation=cv2.INTER_AREA)
    expected = to_tensor(np.asarray(cv2.copyMakeBorder(resized, 0, 32, 0, 64, cv2.BORDER_REPLICATE), np.uint8))
    assert tensor.shape == expected.shape == (1, 3, 96, 160)
    assert np.abs(tensor - expected).max() <= 1 / 127


def blurred_boxes() -> NDArray[np.float32]:
    """A probability map with soft edges, and noise around the thresholds."""
    drawn = np.zeros((160, 320), np.float32)
    for number, (left, top) in enumerate([(10, 10), (150, 12), (20, 60), (180, 70), (30, 120)]):
        cv2.rectangle(drawn, (left, top), (left + 100, top + 14), 0.38 + 0.15 * number, -1)
    speckled = cv2.GaussianBlur(drawn, (5, 5), 0) + np.random.default_rng(3).normal(0, 0.02, drawn.shape)
    return np.clip(speckled, 0, 1).astype(np.float32)


@OVER
def test_the_mask_is_the_cpus_and_the_boxes_are_too(gpu: ArrayBackend) -> None:
    table = blurred_boxes()
    mask, likely = unpack_map(gpu.download(pack_map(gpu.xp, gpu.upload(table), MAP_THRESHOLD)))
    assert np.array_equal(mask, table > MAP_THRESHOLD)
    assert np.abs(likely / CERTAIN - table).max() <= 1 / (2 * CERTAIN) + 1e-6
    found = lines_from_mask(mask, likely, 640, 320, certain=CERTAIN).outlines
    assert len(found) == 4  # the first is fainter than a box may be
    assert np.array_equal(found, lines_from_map(table, 640, 320).outlines)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1)])
def test_a_map_of_one_row_or_column_has_a_mask_too(shape: tuple[int, int]) -> None:
    mask, _ = unpack_map(pack_map(np, np.ones(shape, np.float32), MAP_THRESHOLD))
    assert np.array_equal(mask, np.ones(shape, np.uint8))


def lines_of(height: int, width: int, count: int) -> tuple[list[Quad], list[int]]:
    """Leaning lines of many sizes, some of them beyond the border, and the widths that are asked for."""
    random, quads = np.random.default_rng(5), []
    for _ in range(count):
        middle = random.uniform(0.2, 0.8, 2) * (width, height)
        length, across, angle = random.uniform(20, width * 0.7), random.uniform(6, 150), random.uniform(-3, 3)
        along = np.array([np.cos(angle), np.sin(angle)]) * length / 2
        down = np.array([-np.sin(angle), np.cos(angle)]) * across / 2
        corners = np.array([-along - down, along - down, along + down, down - along]) + middle
        quads.append((corners + random.uniform(-2, 2, (4, 2))).astype(np.float32))
    return quads, [int(width) for width in random.choice([48, 96, 160, 304], count)]


@OVER
@pytest.mark.parametrize("shape", [(300, 500), (300, 500, 3)])
def test_lines_are_cut_as_opencv_cuts_them_to_a_gray_level(gpu: ArrayBackend, shape: tuple[int, ...]) -> None:
    page = noise(*shape)
    quads, widths = lines_of(shape[0], shape[1], 12)
    tensor = gpu.download(crop_lines(gpu, gpu.upload(page), quads, widths, 320, USUAL))
    for row, quad, width in zip(tensor, quads, widths, strict=True):
        levels = (row[:, :, :width] + 1) * 127.5
        expected = crop(page, quad, width, 48).astype(np.float32)
        planes = expected.transpose(2, 0, 1) if expected.ndim == 3 else expected[None]
        # Averaged twice, of samples and of rounded samples, an average may lie a level beside another.
        assert np.abs(levels - planes).max() <= 1.01
        assert np.abs(levels - planes).mean() < 0.2
        assert not row[:, :, width:].any()


def test_a_line_is_cut_the_same_bit_by_bit_alone_and_in_any_batch() -> None:
    page = noise(300, 500, 3)
    quads, widths = lines_of(300, 500, 9)
    together = crop_lines(ArrayBackend(), page, quads, widths, 320, USUAL)
    for row, quad, width in zip(together, quads, widths, strict=True):
        assert np.array_equal(crop_lines(ArrayBackend(), page, [quad], [width], 320, USUAL)[0], row)


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
def test_no_quad_leads_outside_the_page(corners: list[list[float]]) -> None:
    cut = crop_lines(ArrayBackend(), noise(60, 90), [np.array(corners, np.float32)], [96], 96, USUAL)
    assert np.isfinite(cut).all()
    assert np.abs(cut).max() <= 1


@pytest.fixture(scope="module")
def engine() -> Iterator[PpocrEngine]:
    """The real models in a session pool, in batches and padded, behind the strict double of a GPU."""
    as_it_is = Session.run

    def run(self: Session, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        if not isinstance(array, OnGpu):
            return as_it_is(self, array, outputs)
        return [on_gpu(found) for found in as_it_is(self, np.asarray(array), outputs)]

    patch = pytest.MonkeyPatch()
    put_in_place(patch)
    patch.setattr(engine_file, "find_backend", lambda *_: StrictArrays())
    patch.setattr(Session, "run", run)
    engine = PpocrEngine(SessionConfig("cuda", gpu=GpuConfig(streams=2)), batch=SMALL)
    yield engine
    engine.close()
    patch.undo()


def in_memory(engine: PpocrEngine) -> PageHandle:
    """The same models, with pixels prepared in memory."""
    return PageHandle(engine._detector, engine._scripts, engine._shared_threads)


def read(handle: PageHandle, pixels: Pixels, options: ReadOptions | None = None) -> Page:
    (page,) = handle.read([ReadTask(Image(pixels, "png"), options or ReadOptions())])
    assert isinstance(page, Page)
    return page


def load(file: Path) -> Pixels:
    return np.asarray(cv2.imread(str(file)), np.uint8)


def corpus() -> list[Path]:
    """Small pages of three kinds, where the corpus is there: Chinese and Latin on a screen, a photo, a scan."""
    manifest = SHARED / "corpus" / "manifest.jsonl"
    rows = manifest.read_text("utf-8").splitlines() if manifest.is_file() else []
    wanted = ("gameui_14", "ic15_009", "m_trcpp_006")
    files = [json.loads(row)["file"] for row in rows]
    return [SHARED / "corpus" / file for file in files if Path(file).stem in wanted]


def test_pages_read_the_same_from_the_gpu_and_from_memory(engine: PpocrEngine) -> None:
    files = [*(PAGES / name for name in ("notice.png", "notice_turned_180.png")), *corpus()]
    for file in files:
        pixels = load(file)
        there, here = read(engine.open_handle(), pixels), read(in_memory(engine), pixels)
        assert here.lines, file
        assert there.text == here.text, file
        assert there.angle == here.angle, file
        for one, other in zip(there.lines, here.lines, strict=True):
            assert np.abs(np.subtract(one.box, other.box)).max() <= 1, file
            assert one.confidence == pytest.approx(other.confidence, abs=0.02), file


def test_a_page_whose_lines_bend_is_flattened_for_the_gpu_too(engine: PpocrEngine) -> None:
    page, truth = flat_page(20)
    read_there = read(engine.open_handle(), np.asarray(bent(page, 70.0)[0], np.uint8))
    expected, found = " ".join(truth).split(), read_there.text.split()
    assert sum(word in found for word in expected) >= 0.97 * len(expected)
    as_it_is = read(engine.open_handle(), np.asarray(bent(page, 70.0)[0], np.uint8), ReadOptions(unwarp=False))
    assert as_it_is != read_there


def test_what_is_read_on_a_gpu_is_what_the_cpu_reads_and_in_few_shapes(engine: PpocrEngine) -> None:
    pixels = load(PAGES / "notice.png")
    with ThreadPoolExecutor(4) as pool:
        handles = (engine.open_handle(), in_memory(engine)) * 2
        pages = list(pool.map(lambda handle: read(handle, pixels), handles))
    # The padding makes a box 4 px taller, and a full stop is lost; docs/design/accuracy-and-speed.md has the corpus.
    letters = "".join(filter(str.isalnum, (PAGES / "notice.txt").read_text("utf-8")))
    assert ["".join(filter(str.isalnum, page.text)) for page in pages] == [letters] * 4
    assert {(1, 3, *size) for size in WARM_PX} <= GpuSessionDouble.shapes
    for lines, _, height, width in GpuSessionDouble.shapes:
        assert (width in BUCKETS_PX and lines <= 4) if height == 48 else {height, width} <= set(SIDES_PX)


def test_a_line_as_large_as_a_page_is_read_without_a_pass_for_each_of_its_samples(engine: PpocrEngine) -> None:
    pixels = cv2.resize(load(PAGES / "line.png"), None, fx=6, fy=6, interpolation=cv2.INTER_LINEAR)
    page = read(engine.open_handle(), np.asarray(pixels, np.uint8), ReadOptions(detect=False))
    assert page.text == "The library closes at 15:00 today."
    quad = np.array([[0, 0], [3600, 0], [3600, 300], [0, 300]], np.float32)
    quads = [quad, quad / np.float32(3), quad / np.float32(6)]
    largest, large, small = samples(quads, [496] * 3, 48)
    assert largest > MOST_SAMPLES >= large > small == 1


def test_a_curved_line_reads_the_same_from_the_gpu_and_from_memory(engine: PpocrEngine) -> None:
    pixels = bend(load(PAGES / "line.png"), 500, (700, 560))
    there, here = read(engine.open_handle(), pixels), read(in_memory(engine), pixels)
    assert there.text == here.text == "The library closes at 15:00 today."
    assert np.abs(np.subtract(there.lines[0].box, here.lines[0].box)).max() <= 1


def test_options_are_the_same_on_the_gpu(engine: PpocrEngine) -> None:
    line = load(PAGES / "line.png")
    for options in (ReadOptions(detect=False), ReadOptions(detect=False, decoder="beam")):
        assert read(engine.open_handle(), line, options).text == "The library closes at 15:00 today."
    assert read(engine.open_handle(), np.full((40, 60), 255, np.uint8)).lines == ()


def test_pages_read_the_same_alone_and_beside_others(engine: PpocrEngine) -> None:
    pages = [load(PAGES / "notice.png"), np.ascontiguousarray(load(PAGES / "line.png")[:, :, 1])]
    alone = [read(engine.open_handle(), page) for page in pages]
    with ThreadPoolExecutor(2) as pool:
        beside = list(pool.map(lambda page: read(engine.open_handle(), page), pages))
    assert [page.text for page in beside] == [page.text for page in alone]


def test_what_prepares_pixels_is_reported(engine: PpocrEngine) -> None:
    assert engine.describe().provider == "CUDAExecutionProvider, pixels prepared by strict"


class Full(StrictArrays):
    """A GPU with no room for a page."""

    def upload(self, array: NDArray[Any]) -> Any:
        if array.ndim > 1:
            raise MemoryError("out of memory allocating 512 bytes")
        return super().upload(array)


def test_a_page_for_which_the_gpu_has_no_room_is_prepared_in_memory(
    engine: PpocrEngine, caplog: pytest.LogCaptureFixture
) -> None:
    viewer = engine._gpu_pipeline
    assert viewer is not None
    full = type(viewer)(Full(), viewer.detector, viewer.scripts)
    handle = PageHandle(engine._detector, engine._scripts, engine._shared_threads, gpu_pipeline=full)
    assert read(handle, load(PAGES / "line.png")).text == "The library closes at 15:00 today."
    assert "no room for a page of 600 x 50 pixels (out of memory" in caplog.text


class Broken(StrictArrays):
    """A GPU whose driver is not that of its toolkit."""

    name = "cupy 0"

    def upload(self, array: NDArray[Any]) -> Any:
        raise RuntimeError(f"cudaErrorInsufficientDriver at {array.shape}")


def test_an_engine_does_without_a_gpu_that_fails_and_says_so(
    engine: PpocrEngine, caplog: pytest.LogCaptureFixture
) -> None:
    runs, parts = engine._line_runners[0], read_parts(built_in_model())
    assert isinstance(runs, BatchRunner)
    assert engine._open_gpu_pipeline(Broken(), parts, {"main": runs._session}, SMALL) is None
    (message,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert (
        "not by cupy 0: on a page drawn to try it it fails with RuntimeError: cudaErrorInsufficientDriver at (100, 400)"
        in message
    )
    assert "OCRSVC_IMAGING=cpu" in message


class Says:
    """Reads every line as the same text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        return int(along), int(across)

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        check()
        return [LineText(self._text, 0.9) for _ in crops]


def test_another_text_is_a_fault_and_the_same_is_none() -> None:
    def view(text: str, task: ReadTask) -> InMemoryPageReader:
        return InMemoryPageReader(task.image.pixels, lambda _: [], Says(text))

    assert find_fault(lambda task: view("a", task), lambda task: view("a", task)) is None
    assert (
        find_fault(lambda task: view("b", task), lambda task: view("a", task))
        == "it reads 'b' where 'a' is read without it"
    )


def test_the_drawn_pages_hold_text_that_the_models_read(engine: PpocrEngine) -> None:
    texts = [read(in_memory(engine), pixels).text for pixels in drawn_pages()]
    assert "4711" in texts[0]
    assert len(texts[1].splitlines()) == 3


class Pool:
    """In the place of cupy's pools: remembers that it was emptied."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self) -> int:
        return self.free

    n_free_blocks = free_bytes

    def free_all_blocks(self) -> None:
        self.free = 0


def stub_cupy(monkeypatch: pytest.MonkeyPatch, memory: Pool, pinned: Pool) -> None:
    cupy: Any = types.ModuleType("cupy")
    cupy.__version__ = "14.2.0"
    cupy.get_default_memory_pool, cupy.get_default_pinned_memory_pool = lambda: memory, lambda: pinned
    monkeypatch.setitem(sys.modules, "cupy", cupy)


def test_free_memory_of_the_gpu_is_given_back_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, pinned = Pool(arrays.MAX_FREE_BYTES), Pool(arrays.MAX_FREE_PINNED_BLOCKS)
    stub_cupy(monkeypatch, memory, pinned)
    gpu = CupyBackend()
    gpu.trim()
    assert (memory.free, pinned.free) == (arrays.MAX_FREE_BYTES, arrays.MAX_FREE_PINNED_BLOCKS)
    memory.free += 1
    pinned.free += 1
    gpu.trim()
    assert (memory.free, pinned.free) == (0, 0)


def test_a_gpu_is_looked_for_only_where_the_models_run_on_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert find_backend("auto", "cpu") is None
    assert find_backend("cpu", "cuda") is None
    assert caplog.text == ""
    assert find_backend("auto", "cuda") is None
    assert "cupy is not installed" in caplog.text


def test_a_cupy_that_cannot_be_loaded_is_reported_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails from here on
    assert find_backend("auto", "cuda") is None
    assert "cupy cannot be loaded" in caplog.text
