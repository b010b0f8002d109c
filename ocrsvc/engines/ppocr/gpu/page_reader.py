"""Detects and recognizes lines of a page on the GPU: inputs, masks and crops there; contours and texts in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.gpu.arrays import Array, ArrayBackend
from ocrsvc.engines.ppocr.gpu.crops import crop_lines, samples
from ocrsvc.engines.ppocr.gpu.probability_map import CERTAIN, pack_map, unpack_map
from ocrsvc.engines.ppocr.gpu.resize import detector_input
from ocrsvc.engines.ppocr.pipeline.db_postprocess import MAP_THRESHOLD, detect_in_passes, input_size, quads_from_mask
from ocrsvc.engines.ppocr.pipeline.detector import Detector
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, to_tensor
from ocrsvc.engines.ppocr.pipeline.recognition_batches import RunBatch
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer
from ocrsvc.engines.ppocr.runtime.session_pool import ModelRunner
from ocrsvc.imaging.geometry import Quad, crop, sides
from ocrsvc.records import Check, Decoder, Pixels, ReadTask

MOST_SAMPLES: Final = 36
"""Samples for one pixel of a line up to which it is cut on the GPU, each of them a pass there. What is larger (type of
more than 200 px, or a whole page taken for a line) is cut in memory, where it costs a millisecond."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuPage:
    """One image, in memory and on the GPU.

    Attributes:
        pixels: (H, W[, 3]) uint8, in memory.
        array: The same, on the GPU.
    """

    pixels: Pixels
    array: Array


@dataclass(frozen=True, slots=True, eq=False)
class GpuCrop:
    """One line of a page on the GPU; see recognition_batches.LineImage.

    Attributes:
        page: Whose line.
        quad: (4, 2) float32 in pixels of the page.
        width: Columns that it becomes.
    """

    page: GpuPage
    quad: Quad
    width: int

    def pixels(self) -> Pixels:
        """See recognition_batches.LineImage. Cut in memory, for the few lines that spaces.py examines."""
        return crop(self.page.pixels, self.quad, self.width, HEIGHT_PX)


@dataclass(frozen=True, slots=True)
class GpuPipeline:
    """The models, fed with pixels that are prepared on the GPU.

    Attributes:
        backend: Prepares what they are fed.
        detector: Finds lines.
        recognizers: Read GpuCrops, by decoder.
    """

    backend: ArrayBackend
    detector: Detector
    recognizers: Mapping[Decoder, Recognizer]

    def open(self, task: ReadTask) -> GpuPageReader:
        """A reader of the task's image. Raises MemoryError when the GPU has no room for it."""
        page = GpuPage(task.image.pixels, self.backend.upload(task.image.pixels))
        return GpuPageReader(self.backend, page, self.detector, self.recognizers[task.options.decoder], task.check)


class GpuPageReader:
    """Reads one image on the GPU; see page.PageReader."""

    def __init__(
        self, backend: ArrayBackend, page: GpuPage, detector: Detector, recognizer: Recognizer, check: Check
    ) -> None:
        self._backend = backend
        self._page = page
        self._detector = detector
        self._recognizer = recognizer
        self._check = check

    def find(self) -> list[Quad]:
        """See page.PageReader."""
        height, width = self._page.pixels.shape[:2]
        return detect_in_passes(height, width, self._detect_at)

    def read(self, quads: Sequence[Quad]) -> list[LineText]:
        """See page.PageReader."""
        widths = [self._recognizer.crop_size(*sides(quad))[0] for quad in quads]
        line_images = [GpuCrop(self._page, quad, width) for quad, width in zip(quads, widths, strict=True)]
        return self._recognizer.read_line_images(line_images, self._check)

    def _detect_at(self, scale: float) -> list[Quad]:
        self._check()
        backend, page = self._backend, self._page
        height, width = page.pixels.shape[:2]
        size = input_size(height, width, scale)
        padded = self._detector.padded_size(size)
        tensor = detector_input(backend.xp, page.array, size, padded, shrink=scale < 1)
        probabilities = self._detector.run_arrays(tensor)[0, 0, : size[1], : size[0]]
        mask, likely = unpack_map(backend.download(pack_map(backend.xp, probabilities, MAP_THRESHOLD)))
        return quads_from_mask(mask, likely, width, height, certain=CERTAIN)


def batch_on_gpu(backend: ArrayBackend, session: ModelRunner) -> RunBatch:
    """GpuCrops put together on the GPU, and run by a session of the batched graph."""

    def run(line_images: Sequence[GpuCrop], padded: int, outputs: Sequence[str]) -> list[NDArray[Any]]:
        tensor = _make_tensor(backend, line_images, padded)
        answers = [backend.download(array) for array in session.run(tensor, outputs)]
        del tensor
        backend.trim()
        return answers

    return run


def _make_tensor(backend: ArrayBackend, line_images: Sequence[GpuCrop], padded: int) -> Array:
    """(N, 3, HEIGHT_PX, padded) float32: the lines of each page in one go, and the largest by themselves."""
    tensor = backend.xp.zeros((len(line_images), 3, HEIGHT_PX, padded), np.float32)
    passes = samples(
        [line_image.quad for line_image in line_images], [line_image.width for line_image in line_images], HEIGHT_PX
    )
    pages: dict[int, list[int]] = {}
    for row, (line_image, count) in enumerate(zip(line_images, passes, strict=True)):
        if count > MOST_SAMPLES:
            tensor[row, :, :, : line_image.width] = backend.upload(to_tensor(line_image.pixels())[0])
        else:
            pages.setdefault(id(line_image.page), []).append(row)
    for rows in pages.values():
        tensor[backend.upload(np.array(rows))] = _crop(backend, [line_images[row] for row in rows], padded)
    return tensor


def _crop(backend: ArrayBackend, line_images: Sequence[GpuCrop], padded: int) -> Array:
    """Lines of one page."""
    quads, widths = [line_image.quad for line_image in line_images], [line_image.width for line_image in line_images]
    return crop_lines(backend.xp, line_images[0].page.array, quads, widths, padded, HEIGHT_PX)
