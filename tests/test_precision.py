"""Half precision, emulated on the CPU with casts, gives nearly the same results as single precision."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest

from ocrsvc.engines.ppocr.pipeline.ctc import best_path
from ocrsvc.engines.ppocr.pipeline.db_postprocess import lines_from_map
from ocrsvc.engines.ppocr.pipeline.detector import pad
from ocrsvc.engines.ppocr.pipeline.network_input import to_tensor
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS
from ocrsvc.engines.ppocr.runtime import prepare_model
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, built_in_part, read_dictionary
from ocrsvc.engines.ppocr.runtime.openvino_session import first_steps
from ocrsvc.results import Pixels

PAGES = Path(__file__).parent / "pages"


def opened(model: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, pixels: Pixels, outputs: Sequence[str] | None = None) -> list[Any]:
    found: list[Any] = session.run(outputs, {session.get_inputs()[0].name: to_tensor(pixels)})
    return found


@pytest.fixture(scope="module")
def half_precision() -> bytes:
    return prepare_model.prepare(built_in_part(RECOGNITION), batched=True, half_precision=True)


def test_a_line_reads_the_same_in_half_precision(half_precision: bytes) -> None:
    line = cv2.resize(np.asarray(cv2.imread(str(PAGES / "line.png")), np.uint8), (448, 48))
    session = opened(half_precision)
    best, sure = (rows[0] for rows in run(session, line.astype(np.uint8), OUTPUTS))
    characters = read_dictionary(built_in_part(RECOGNITION), session.get_modelmeta().custom_metadata_map)
    read = best_path(best, sure[first_steps(best)], characters)
    assert "".join(read.characters) == "The library closes at 15:00 today."
    assert read.confidence > 0.95


@pytest.mark.parametrize("as_fp16", [False, True], ids=["single", "half"])
def test_padding_a_page_to_the_grid_does_not_move_its_lines(as_fp16: bool) -> None:
    pixels = np.asarray(cv2.imread(str(PAGES / "notice.png")), np.uint8)[:288, :608]
    exact = run(opened(prepare_model.prepare(built_in_part(DETECTION))), pixels)[0]
    on_gpu = opened(prepare_model.prepare(built_in_part(DETECTION), batched=True, half_precision=as_fp16))
    padded = pad(pixels)
    assert padded.shape == (320, 640, 3)
    found = run(on_gpu, padded)[0][:, :, :288, :608]
    one, other = (
        np.array(sorted(lines_from_map(probabilities[0, 0], 608, 288).outlines, key=lambda quad: float(quad[0, 1])))
        for probabilities in (exact, found)
    )
    assert one.shape == other.shape == (4, 4, 2)
    assert np.abs(one - other).max() <= 3
