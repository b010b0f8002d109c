"""Tests at each start that pages drawn here are read alike with pixels prepared on the GPU and in memory.

The code that runs on a GPU is tested over numpy; that a driver, a GPU or a version of cupy does the same is found out
at each start, where the test costs a tenth of a second and a fault costs nobody a page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import cv2
import numpy as np

from ocrsvc.engines.ppocr.pipeline.page import PageReader, read_page
from ocrsvc.records import Image, Pixels, ReadTask

OpenPage = Callable[[ReadTask], PageReader]

LINES: Final = ((1, 2.0, "Proof 4711"), (2, 5.0, "BIG 38"), (3, 1.0, "small letters, one line of them"))
"""Thickness by three, scale and text of each: letters of 20 to 110 px, so that each way of sampling is tried."""


def find_fault(on_gpu: OpenPage, in_memory: OpenPage) -> str | None:
    """What is wrong with the GPU's reading of the drawn pages, as the end of a sentence; None for nothing."""
    for pixels in drawn_pages():
        task = ReadTask(Image(pixels, "png"))
        expected = read_page(task, in_memory(task)).text
        try:
            read = read_page(task, on_gpu(task)).text
        except Exception as failure:  # noqa: BLE001  whatever cupy or CUDA throws: this is where it is found out
            return f"it fails with {type(failure).__name__}: {failure}"
        if read != expected:
            return f"it reads {read!r} where {expected!r} is read without it"
    return None


def drawn_pages() -> tuple[Pixels, ...]:
    """A gray page that the detector enlarges, and a leaning one in colour that it shrinks; uint8."""
    small: Pixels = np.full((100, 400), 255, np.uint8)
    cv2.putText(small, "Proof 4711", (20, 60), cv2.FONT_HERSHEY_SIMPLEX, 1.2, 0, 2, cv2.LINE_AA)
    large: Pixels = np.full((420, 1100, 3), 235, np.uint8)
    top = 20
    for thickness, scale, text in LINES:
        top += int(40 * scale)
        cv2.putText(large, text, (40, top), cv2.FONT_HERSHEY_SIMPLEX, scale, (60, 20, 20), 3 * thickness, cv2.LINE_AA)
    turn = cv2.getRotationMatrix2D((550, 210), 2.0, 1.0)
    leaning = cv2.warpAffine(large, turn, (1100, 420), borderMode=cv2.BORDER_REPLICATE)
    return small, np.asarray(leaning, np.uint8)
