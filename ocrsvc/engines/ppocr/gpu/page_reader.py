"""Detects and recognizes lines on the GPU, which also makes model inputs, masks and crops.

The CPU finds contours in the mask; a box is scored by the mean probability inside its rectangle. The GPU
computes the mask in single precision, bit-identical to the CPU's. The mask takes one bit of a byte and the probability
seven, so that both are copied at once, in a quarter of the probability map's bytes. Rounding to seven bits changes a
mean by at most 1/254, which hardly ever changes the choice of boxes. Tests run the GPU code with numpy. At each start,
test pages drawn here check in a tenth of a second that driver, GPU and cupy give the CPU's results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.gpu.arrays import Array, ArrayBackend
from ocrsvc.engines.ppocr.gpu.resampling import crop_lines, detector_input, samples
from ocrsvc.engines.ppocr.pipeline.db_postprocess import (
    FAINT_TEXT,
    Area,
    FoundLines,
    area_of,
    detect_in_passes,
    input_size,
    input_window,
    lines_from_mask,
)
from ocrsvc.engines.ppocr.pipeline.detector import Detector
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask
from ocrsvc.engines.ppocr.pipeline.network_input import InputFormat, level_ground, to_tensor
from ocrsvc.engines.ppocr.pipeline.page import PageReader, add_ink, read_page
from ocrsvc.engines.ppocr.pipeline.recognition_batches import LineImage, RunBatch
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer, Script, open_page
from ocrsvc.engines.ppocr.runtime.session import ModelRunner
from ocrsvc.imaging.text_contour import Outline, corners, cut, extent, is_curved
from ocrsvc.results import Image, Pixels, ReadTask

CERTAIN: Final = 127  # value that stands for the probability 1 in a packed map


def pack_map(xp: Any, probabilities: Array, threshold: float) -> Array:
    """Pack mask and probability into an (h, w) uint8 map: one bit of mask, and seven bits of probability * CERTAIN."""
    likely = xp.rint(xp.clip(probabilities, 0, 1) * np.float32(CERTAIN)).astype(np.uint8)
    return likely | ((probabilities > np.float32(threshold)).astype(np.uint8) << np.uint8(7))


def unpack_map(packed: NDArray[np.uint8]) -> tuple[Pixels, Pixels]:
    """Unpack the mask (0 or 1) and the probabilities (0 to CERTAIN), both (h, w) uint8."""
    return packed >> np.uint8(7), packed & np.uint8(CERTAIN)


# Largest number of samples per pixel of a line that is cropped on the GPU, where each sample is a pass over the line.
# Larger lines (type of more than 200 px, or a whole page read as one line) are cropped by the CPU in a millisecond.
MAX_SAMPLES: Final = 36


class GpuCrop(LineImage):
    """One line of a page in GPU memory, with the size of its crop."""

    def __init__(self, reader: GpuPageReader, outline: Outline) -> None:
        self.page, self.outline = reader.page, outline
        self.width, self.height = reader.recognizer.crop_size(*extent(outline))
        self._in_memory = reader.task.image.pixels

    def pixels(self) -> Pixels:
        """Crop the line on the CPU; needed only for lines whose spaces are measured (spaces.py) and for word boxes."""
        return cut(self._in_memory, self.outline, self.width, self.height)


@dataclass(frozen=True, slots=True)
class GpuPipeline:
    """The detector and the recognizers, with code that prepares their input pixels on the GPU."""

    backend: ArrayBackend
    detector: Detector
    scripts: Sequence[Script[Recognizer]]  # recognizers whose readers accept GpuCrops

    def open(self, task: ReadTask, last_mask: LastMask | None = None) -> PageReader:
        """Open a reader that puts the page's text mask into `last_mask`. Raises MemoryError if the GPU is full."""
        page = self.backend.upload(task.image.pixels)
        return open_page(self.scripts, task.options, lambda one: GpuPageReader(self, page, task, one, last_mask))


@dataclass(frozen=True, slots=True)
class GpuPageReader:
    """Reads one image on the GPU; see page.PageReader."""

    pipeline: GpuPipeline
    page: Array  # (H, W[, 3]) uint8, on the GPU
    task: ReadTask
    recognizer: Recognizer
    last_mask: LastMask | None = None
    in_batches: bool = True

    def find(self) -> list[Outline]:
        """See page.PageReader."""
        return detect_in_passes(self.task.image.height, self.task.image.width, self._detect_at)

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        """See page.PageReader."""
        crops = [GpuCrop(self, outline) for outline in outlines]
        texts = self.recognizer.read_line_images(crops, self.task.check)
        if not self.task.options.wants_words:
            return texts
        return [add_ink(text, crop.pixels()) for text, crop in zip(texts, crops, strict=True)]

    def _detect_at(self, scale: float, area: Area) -> FoundLines:
        self.task.check()
        backend, detector = self.pipeline.backend, self.pipeline.detector
        height, width = self.task.image.height, self.task.image.width
        size = input_size(height, width, scale)
        window, packed = input_window(size, area), np.zeros(size[::-1], np.uint8)
        rows, columns = packed[window].shape
        padded, taken = detector.padded_size((columns, rows)), detector.input_format
        tensor = detector_input(backend.xp, self.page, size, padded, shrink=scale < 1, taken=taken, window=window)
        probabilities = detector.run_arrays(tensor)[0, 0, :rows, :columns]
        packed[window] = backend.download(pack_map(backend.xp, probabilities, detector.thresholds.of_map))
        mask, likely = unpack_map(packed)
        if self.last_mask is not None:
            self.last_mask.mask = mask
        found = lines_from_mask(mask, likely, width, height, certain=CERTAIN, thresholds=detector.thresholds)
        seen = (backend.download(probabilities.max(axis=axis) > np.float32(FAINT_TEXT)) for axis in (0, 1))
        return replace(found, area=area_of(*seen))


def batch_on_gpu(backend: ArrayBackend, session: ModelRunner) -> RunBatch:
    """Make a function that crops lines on the GPU into one tensor and runs it with a session of the batched graph."""

    def run(crops: Sequence[GpuCrop], padded: int, outputs: Sequence[str]) -> list[NDArray[Any]]:
        tensor = _make_tensor(backend, crops, padded, session.input_format)
        answers = [backend.download(array) for array in session.run(tensor, outputs)]
        del tensor
        backend.trim()
        return answers

    return run


def _make_tensor(backend: ArrayBackend, crops: Sequence[GpuCrop], padded: int, input_format: InputFormat) -> Array:
    """Crop lines into (N, 3, h, padded) float32: page by page on the GPU, very large and curved lines on the CPU."""
    height = input_format.height_px
    tensor = backend.xp.zeros((len(crops), 3, height, padded), np.float32)
    passes = samples([corners(crop.outline) for crop in crops], [crop.width for crop in crops], height)
    pages: dict[int, list[int]] = {}
    for row, (crop, count) in enumerate(zip(crops, passes, strict=True)):
        if count > MAX_SAMPLES or is_curved(crop.outline):
            tensor[row, :, :, : crop.width] = backend.upload(to_tensor(level_ground(crop.pixels()), input_format)[0])
        else:
            pages.setdefault(id(crop.page), []).append(row)
    for rows in pages.values():
        page, page_crops = crops[rows[0]].page, [crops[row] for row in rows]
        quads, widths = [crop.outline for crop in page_crops], [crop.width for crop in page_crops]
        tensor[backend.upload(np.array(rows))] = crop_lines(backend, page, quads, widths, padded, input_format)
    return tensor


OpenPage = Callable[[ReadTask], PageReader]

# Test lines: stroke thickness in units of 3 px, font scale, text. Letters of 20 to 110 px test all sampling modes.
LINES: Final = ((1, 2.0, "Proof 4711"), (2, 5.0, "BIG 38"), (3, 1.0, "small letters, one line of them"))


def find_fault(on_gpu: OpenPage, in_memory: OpenPage) -> str | None:
    """Read test pages on the GPU and on the CPU; returns the GPU's fault ("it reads ..."), None for equal texts."""
    for pixels in drawn_pages():
        task = ReadTask(Image(pixels, "png"))
        expected = read_page(task, in_memory(task)).text
        try:
            read = read_page(task, on_gpu(task)).text
        except Exception as failure:  # noqa: BLE001  any failure of cupy or CUDA is a fault
            return f"it fails with {type(failure).__name__}: {failure}"
        if read != expected:
            return f"it reads {read!r} instead of {expected!r}"
    return None


def drawn_pages() -> tuple[Pixels, ...]:
    """Draw a small gray page, which the detector enlarges, and a large slanted colour page, which it shrinks."""
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
