"""The ppocr engine with its real models on generated pages."""

import logging
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from curved_pages import bend
from numpy.typing import NDArray
from ppocr_support import LINE, give_up_at, load, read, text_of

from ocrsvc.engines.ppocr.engine import PageHandle, PpocrEngine
from ocrsvc.engines.ppocr.graph import memory_layout, rewrite
from ocrsvc.engines.ppocr.pipeline.network_input import to_tensor
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS
from ocrsvc.engines.ppocr.runtime import prepare_model
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, built_in_part
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.errors import DeadlineExceeded
from ocrsvc.results import Decoder, Image, Page, Pixels, ReadOptions, ReadTask
from ocrsvc.serving.work_queue import RequestContext, make_check

NOTICE = "".join(text_of("notice").split())


def words(page: Page) -> str:
    return "".join(page.text.split())


@pytest.mark.parametrize(
    ("name", "angle"),
    [("notice.png", 0), ("notice.jpg", 0), ("notice_turned_90.png", 270), ("notice_turned_180.png", 180)],
)
def test_a_page_is_read_in_any_orientation(handle: PageHandle, name: str, angle: int) -> None:
    page = read(handle, load(name))
    assert words(page) == NOTICE
    assert page.angle == angle
    assert all(line.confidence > 0.9 for line in page.lines)


def test_boxes_surround_their_lines_and_gray_reads_like_colour(handle: PageHandle) -> None:
    colour = load("notice.png")
    page = read(handle, colour)
    tops = [line.box[0][1] for line in page.lines]
    assert np.allclose(tops, [30, 104, 166, 226], atol=14)  # tests/pages/make.py draws at 24, 100, 162, 224
    assert all(20 <= line.box[0][0] <= 40 for line in page.lines)
    assert read(handle, np.ascontiguousarray(colour[:, :, 0])).text == page.text


def test_one_line_is_read_without_detection_and_a_curved_one_with_it(handle: PageHandle) -> None:
    assert read(handle, load("line.png"), detect=False).text == LINE
    page = read(handle, bend(load("line.png"), 500, (700, 560)))
    assert page.text == LINE
    (line,) = page.lines
    # The line bends along an arc of 69 degrees, 566 px wide and 88 px high; characters are 24 px high.
    width, height = np.ptp(np.array(line.box), axis=0).tolist()
    assert 470 < width < 640
    assert 80 < height < 140


@pytest.mark.parametrize("far", [0.4, 0.2])
def test_a_board_seen_from_the_side_is_read(handle: PageHandle, far: float) -> None:
    words = ["the", "library", "closes", "at", "three", "today", "please", "return", "all", "books", "before", "noon"]
    board = np.full((1000, 1400), 255, np.uint8)
    lines = [" ".join(words[(row * 5 + place) % len(words)] for place in range(6)) for row in range(9)]
    for row, line in enumerate(lines):
        cv2.putText(board, line, (60, 90 + row * 100), cv2.FONT_HERSHEY_TRIPLEX, 1.5, (0,), 3, cv2.LINE_AA)
    edge = 500 * (1 - far)
    flat = np.array([[0, 0], [1400, 0], [1400, 1000], [0, 1000]], np.float32)
    shown = np.array([[0, 0], [600, edge], [600, 1000 - edge], [0, 1000]], np.float32)
    matrix = cv2.getPerspectiveTransform(flat, shown)
    pixels = cv2.warpPerspective(board, matrix, (600, 1000), flags=cv2.INTER_AREA, borderValue=(255,))
    found = Counter(read(handle, np.asarray(pixels, np.uint8)).text.lower().split())
    # Without perspective correction, 45 and 36 of the 54 words were read.
    assert (found & Counter(" ".join(lines).split())).total() >= 53


def test_tight_rows_of_numbers_are_read_one_by_one(handle: PageHandle) -> None:
    random = np.random.default_rng(4)
    numbers = random.integers(10, (9999, 99, 99), (12, 3))
    pixels = np.full((220, 450, 3), 255, np.uint8)
    for (row, column), number in np.ndenumerate(numbers):
        place = (20 + 150 * column, 30 + 15 * row)
        cv2.putText(pixels, str(number), place, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 0, 0), 1, cv2.LINE_AA)
    found = set(read(handle, pixels).text.split())
    # Digits are 13 px high in rows 15 px apart. Without splitting of merged shapes, 24 of 36 numbers were read.
    assert sum(str(number) in found for number in numbers.flat) >= 30


@pytest.mark.parametrize("shape", [(1, 1), (1, 5000), (5000, 1), (3, 3), (200, 200, 3)])
def test_a_blank_page_of_any_shape_has_no_lines(handle: PageHandle, shape: tuple[int, ...]) -> None:
    assert read(handle, np.full(shape, 255, np.uint8)).lines == ()


def test_an_image_reads_the_same_alone_and_beside_others_on_other_threads(handle: PageHandle) -> None:
    pages = [load("notice.png"), load("notice_turned_180.png"), load("line.png")]
    alone = [read(handle, page) for page in pages]
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(lambda index: read(handle, pages[index % 3]), range(12)))
    assert beside == [alone[index % 3] for index in range(12)]


def probabilities(graph: str | bytes, page: Pixels) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: to_tensor(page)})[0], np.float32)


def test_every_rewrite_applies_to_the_built_in_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ocrsvc.ppocr")
    for kind in (DETECTION, RECOGNITION):
        for options in ({}, {"batched": True}, {"openvino": True}):
            prepare_model.prepare(built_in_part(kind), **options)
    assert caplog.text == ""


@pytest.mark.parametrize("features", [b"flags : avx2 avx512f fma", b"flags : avx2 fma"])
def test_the_detectors_cpu_specific_layout_gives_the_same_map(features: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_model, "cpu_features", lambda: features)
    shipped, prepared = built_in_part(DETECTION).shipped, prepare_model.prepare(built_in_part(DETECTION))
    page = cv2.resize(load("notice.png"), (640, 320)).astype(np.uint8)
    expected, found = probabilities(shipped, page), probabilities(prepared, page)
    assert (expected > 0.3).mean() > 0.02
    assert np.abs(expected - found).max() < 2e-3
    assert len(prepared) < len(shipped) - 2_000_000  # without the channels that are multiplied by zero


def test_channels_that_another_node_reads_are_not_removed() -> None:
    model = prepare_model.load(built_in_part(DETECTION))
    rewrite.zero_subnormal_weights(model)
    memory_layout.drop_identities(model)
    model.graph.node.append(onnx.helper.make_node("Relu", ["given.p2o.pd_op.gelu.12.0"], ["read"]))
    with pytest.raises(ValueError, match="other nodes read"):
        memory_layout.drop_unread_channels(model)


@pytest.fixture(scope="module")
def line_pixels() -> list[Pixels]:
    lines = (cv2.resize(load("line.png"), (width, 48)).astype(np.uint8) for width in (48, 160, 400))
    return [*lines, np.full((48, 96, 3), 255, np.uint8)]


def test_the_class_chosen_inside_the_graph_is_the_argmax_of_the_original_output(line_pixels: list[Pixels]) -> None:
    shipped = onnxruntime.InferenceSession(built_in_part(RECOGNITION).shipped, providers=["CPUExecutionProvider"])
    mended = open_model(built_in_part(RECOGNITION), SessionConfig("cpu"))
    for pixels in line_pixels:
        tensor = to_tensor(pixels)
        (probabilities,) = shipped.run(None, {"x": tensor})[0]
        best, sure = mended.run(tensor, OUTPUTS)
        assert np.array_equal(best, probabilities.argmax(axis=1))
        first = np.flatnonzero((best != 0) & (best != np.concatenate(([0], best[:-1]))))
        assert np.allclose(sure, probabilities[first].max(axis=1), atol=1e-4)


def test_a_recognizer_with_a_different_last_layer_is_refused() -> None:
    proto = onnx.load_from_string(built_in_part(DETECTION).shipped)
    with pytest.raises(ValueError, match="comes from Sigmoid"):
        rewrite.add_argmax(proto)


@pytest.mark.parametrize(("decoder", "call"), [("greedy", 1), ("greedy", 2), ("greedy", 4), ("beam", 30)])
def test_a_cancelled_page_stops_at_any_stage_alone(handle: PageHandle, call: int, decoder: Decoder) -> None:
    image = Image(load("notice.png"), "png")
    given_up = ReadTask(image, ReadOptions(decoder=decoder), check=give_up_at(call))
    answers = handle.read([given_up, ReadTask(image)])
    assert isinstance(answers[0], DeadlineExceeded)
    assert isinstance(answers[1], Page)
    assert words(answers[1]) == NOTICE


def test_a_dense_page_frees_its_thread_soon_after_its_deadline(handle: PageHandle) -> None:
    dense = np.tile(load("notice.png"), (4, 3, 1))
    began_s = time.monotonic()
    check = make_check(RequestContext(), began_s + 0.3, time.monotonic)
    (answer,) = handle.read([ReadTask(Image(dense, "png"), check=check)])
    spent_s = time.monotonic() - began_s
    assert isinstance(answer, DeadlineExceeded)
    began_s = time.monotonic()
    handle.read([ReadTask(Image(dense, "png"))])
    assert spent_s < (time.monotonic() - began_s) / 1.5


def test_beam_search_reads_the_same_with_and_without_helper_threads(handle: PageHandle) -> None:
    engine = PpocrEngine(SessionConfig("cpu"))
    alone = engine.open_handle()
    for name in ("notice.png", "notice_turned_180.png"):
        assert read(alone, load(name)) == read(handle, load(name)) == read(handle, load(name), decoder="beam")
    engine.close()


def test_a_cached_model_is_bit_identical_without_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, tensor = ModelCache(tmp_path), to_tensor(load("notice.png")[:288, :640])
    made = open_model(built_in_part(DETECTION), SessionConfig("cpu"), store).run(tensor)[0]
    monkeypatch.setitem(sys.modules, "onnx", None)  # importing it fails from here on
    kept = open_model(built_in_part(DETECTION), SessionConfig("cpu"), store).run(tensor)[0]
    assert np.array_equal(made, kept)


def test_a_run_that_releases_its_memory_is_bit_identical(line_pixels: list[Pixels]) -> None:
    part, larger = built_in_part(RECOGNITION), to_tensor(line_pixels[2])
    keeping = open_model(part, SessionConfig("cpu", 1, to_tensor(line_pixels[0]).size))
    assert np.array_equal(keeping.run(larger)[0], open_model(part, SessionConfig("cpu")).run(larger)[0])
