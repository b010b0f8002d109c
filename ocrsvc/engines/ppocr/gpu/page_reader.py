"""Detects and recognizes lines of a page on the GPU: inputs, masks and crops there; contours and texts in memory.

Contours are followed in memory, which needs the mask; a box is judged by the mean probability within its rectangle. The
mask is decided on the GPU, in single precision, and is the CPU's bit by bit. The probability goes along in the other
seven bits of a byte, so one copy of a quarter of the map's bytes carries both; rounding moves a mean by 1/254 at most,
and by far less in fact, because nearly all probabilities are nearly 0 or 1. Means over rectangles on the GPU would need
the contours there first: a second copy in each direction for a difference that hardly ever crosses a box's threshold.

The code that runs on a GPU is tested over numpy; that a driver, a GPU or a version of cupy does the same is found out
at each start by pages drawn here, where the test costs a tenth of a second and a fault costs nobody a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.gpu.arrays import Array, ArrayBackend
from ocrsvc.engines.ppocr.gpu.resampling import crop_lines, detector_input, samples
from ocrsvc.engines.ppocr.pipeline.db_postprocess import FoundLines, detect_in_passes, input_size, lines_from_mask
from ocrsvc.engines.ppocr.pipeline.detector import Detector
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask
from ocrsvc.engines.ppocr.pipeline.network_input import InputFormat, level_ground, to_tensor
from ocrsvc.engines.ppocr.pipeline.page import PageReader, add_ink, read_page
from ocrsvc.engines.ppocr.pipeline.recognition_batches import LineImage, RunBatch
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer, Script, open_page
from ocrsvc.engines.ppocr.runtime.session import ModelRunner
from ocrsvc.imaging.outline import Outline, corners, cut, extent, is_curved
from ocrsvc.results import Image, Pixels, ReadTask

CERTAIN: Final = 127  # what stands for a probability of 1


def pack_map(xp: Any, probabilities: Array, least: float) -> Array:
    """(h, w) uint8: above `least` (the highest bit), and the probability in steps of 1 / CERTAIN."""
    likely = xp.rint(xp.clip(probabilities, 0, 1) * np.float32(CERTAIN)).astype(np.uint8)
    return likely | ((probabilities > np.float32(least)).astype(np.uint8) << np.uint8(7))


def unpack_map(packed: NDArray[np.uint8]) -> tuple[Pixels, Pixels]:
    """The mask (0 or 1) and the probabilities (0 to CERTAIN) of a packed map; both (h, w) uint8, in memory."""
    return packed >> np.uint8(7), packed & np.uint8(CERTAIN)


MOST_SAMPLES: Final = 36
"""Samples for one pixel of a line up to which it is cut on the GPU, each of them a pass there. What is larger (type of
more than 200 px, or a whole page taken for a line) is cut in memory, where it costs a millisecond."""


class GpuCrop(LineImage):
    """One line of a page on the GPU, and the columns and rows that it becomes."""

    def __init__(self, reader: GpuPageReader, outline: Outline) -> None:
        self.page, self.outline = reader.page, outline
        self.width, self.height = reader.recognizer.crop_size(*extent(outline))
        self._in_memory = reader.task.image.pixels

    def pixels(self) -> Pixels:
        """See LineImage. Cut in memory, for the few lines that spaces.py examines, and for words."""
        return cut(self._in_memory, self.outline, self.width, self.height)


@dataclass(frozen=True, slots=True)
class GpuPipeline:
    """The models, fed with pixels that are prepared on the GPU."""

    backend: ArrayBackend
    detector: Detector
    scripts: Sequence[Script[Recognizer]]  # they read GpuCrops

    def open(self, task: ReadTask, last_mask: LastMask | None = None) -> PageReader:
        """A reader of the task's image; `last_mask` is given each mask of text. Raises MemoryError: the GPU is full."""
        page = self.backend.upload(task.image.pixels)

        def open_reader(recognizer: Recognizer) -> GpuPageReader:
            return GpuPageReader(self, page, task, recognizer, last_mask)

        return open_page(self.scripts, task.options, open_reader)


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

    def _detect_at(self, scale: float) -> FoundLines:
        self.task.check()
        backend, detector = self.pipeline.backend, self.pipeline.detector
        height, width = self.task.image.height, self.task.image.width
        size = input_size(height, width, scale)
        padded, taken = detector.padded_size(size), detector.input_format
        tensor = detector_input(backend.xp, self.page, size, padded, shrink=scale < 1, taken=taken)
        probabilities = detector.run_arrays(tensor)[0, 0, : size[1], : size[0]]
        mask, likely = unpack_map(backend.download(pack_map(backend.xp, probabilities, detector.thresholds.of_map)))
        if self.last_mask is not None:
            self.last_mask.keep(mask)
        return lines_from_mask(mask, likely, width, height, certain=CERTAIN, thresholds=detector.thresholds)


def batch_on_gpu(backend: ArrayBackend, session: ModelRunner) -> RunBatch:
    """GpuCrops put together on the GPU, and run by a session of the batched graph."""

    def run(crops: Sequence[GpuCrop], padded: int, outputs: Sequence[str]) -> list[NDArray[Any]]:
        tensor = _make_tensor(backend, crops, padded, session.input_format)
        answers = [backend.download(array) for array in session.run(tensor, outputs)]
        del tensor
        backend.trim()
        return answers

    return run


def _make_tensor(backend: ArrayBackend, crops: Sequence[GpuCrop], padded: int, taken: InputFormat) -> Array:
    """(N, 3, h, padded) float32: the lines of a page in one go, the largest and curved ones alone."""
    height = taken.height_px
    tensor = backend.xp.zeros((len(crops), 3, height, padded), np.float32)
    passes = samples([corners(crop.outline) for crop in crops], [crop.width for crop in crops], height)
    pages: dict[int, list[int]] = {}
    for row, (crop, count) in enumerate(zip(crops, passes, strict=True)):
        if count > MOST_SAMPLES or is_curved(crop.outline):
            tensor[row, :, :, : crop.width] = backend.upload(to_tensor(level_ground(crop.pixels()), taken)[0])
        else:
            pages.setdefault(id(crop.page), []).append(row)
    for rows in pages.values():
        page, of_page = crops[rows[0]].page, [crops[row] for row in rows]
        quads, widths = [crop.outline for crop in of_page], [crop.width for crop in of_page]
        tensor[backend.upload(np.array(rows))] = crop_lines(backend, page, quads, widths, padded, taken)
    return tensor


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
