"""What only a GPU can show: `pytest -m gpu` on a machine that has one and an extra gpu-cuda12 or gpu-cuda13."""

from __future__ import annotations

import logging
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest

from ocrsvc.engines.ppocr.engine import PpocrEngine, PpocrSettings
from ocrsvc.engines.ppocr.providers import CUDA
from ocrsvc.gpu import Siblings, open_gauge
from ocrsvc.records import Image, Page, ReadTask

PAGES = Path(__file__).parent / "pages"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        CUDA not in onnxruntime.get_available_providers(),
        reason="needs an NVIDIA GPU and a build of onnxruntime-gpu (extra gpu-cuda12 or gpu-cuda13)",
    ),
]


def read(device: str) -> Page:
    engine = PpocrEngine(PpocrSettings(device=device))  # type: ignore[arg-type]  # a row of a table
    handle = engine.open_handle()
    handle.warm_up()
    pixels = np.asarray(cv2.imread(str(PAGES / "notice.png")), np.uint8)
    (page,) = handle.read([ReadTask(Image(pixels, "png"))])
    assert isinstance(page, Page)
    return page


def test_the_gpu_reads_what_the_cpu_reads() -> None:
    on_cpu, on_gpu = read("cpu"), read("cuda")
    assert on_gpu.text == on_cpu.text
    assert np.allclose([line.box for line in on_gpu.lines], [line.box for line in on_cpu.lines], atol=2.0)


def test_auto_takes_the_gpu() -> None:
    assert PpocrEngine(PpocrSettings(device="auto")).describe().device == "cuda"


def test_the_card_tells_what_this_process_holds() -> None:
    gauge = open_gauge(logging.getLogger("test-gpu"), Siblings())
    assert gauge is not None
    engine = PpocrEngine(PpocrSettings(device="cuda"))
    handle = engine.open_handle()
    handle.warm_up()
    reading = gauge.read(Siblings())
    assert reading is not None
    # The models alone are 30 MB, and a CUDA context some hundreds.
    assert 30 * 10**6 < reading.own_bytes <= reading.used_bytes < reading.total_bytes
