"""Detects and recognises lines of a page on the GPU: inputs, masks and crops there; contours and texts in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.gpu.arrays import Array, Arrays
from ocrsvc.engines.ppocr.gpu.crops import crop_lines, samples
from ocrsvc.engines.ppocr.gpu.probability_map import CERTAIN, pack_map, unpack_map
from ocrsvc.engines.ppocr.gpu.resize import detector_input
from ocrsvc.engines.ppocr.pipeline.db_postprocess import MAP_THRESHOLD, input_size, quads_from_mask, second_pass
from ocrsvc.engines.ppocr.pipeline.detector import Detector
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, to_tensor
from ocrsvc.engines.ppocr.pipeline.recognition_batches import RunCuts
from ocrsvc.engines.ppocr.pipeline.recognizer import Recogniser
from ocrsvc.engines.ppocr.runtime.session import Runner
from ocrsvc.imaging.geometry import Quad, crop, sides
from ocrsvc.records import Check, Decoder, Pixels, ReadTask

MOST_SAMPLES: Final = 36
"""Samples for one pixel of a line up to which it is cut on the card, each of them a pass there. What is larger (type of
more than 200 px, or a whole page taken for a line) is cut in memory, where it costs a millisecond."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuPage:
    """One image, in memory and on the card.

    Attributes:
        pixels: (H, W[, 3]) uint8, in memory.
        array: The same, on the card.
    """

    pixels: Pixels
    array: Array


@dataclass(frozen=True, slots=True, eq=False)
class GpuCrop:
    """One line of a page on the card; see runs.Cut.

    Attributes:
        page: Whose line.
        quad: (4, 2) float32 in pixels of the page.
        width: Columns that it becomes.
    """

    page: GpuPage
    quad: Quad
    width: int

    def pixels(self) -> Pixels:
        """See runs.Cut. Cut in memory, for the few lines that somebody looks at beside the model: see spaces.py."""
        return crop(self.page.pixels, self.quad, self.width, HEIGHT_PX)


@dataclass(frozen=True, slots=True)
class GpuPageViewer:
    """The models with the card in front of them.

    Attributes:
        card: Prepares what they are fed.
        detector: Finds lines.
        recognisers: Read CardCuts, by decoder.
    """

    card: Arrays
    detector: Detector
    recognisers: Mapping[Decoder, Recogniser]

    def open(self, task: ReadTask) -> GpuPageView:
        """A view of the task's image. Raises MemoryError when the card has no room for it."""
        page = GpuPage(task.image.pixels, self.card.upload(task.image.pixels))
        return GpuPageView(self.card, page, self.detector, self.recognisers[task.options.decoder], task.check)


class GpuPageView:
    """One image on the card, in front of the models; see page.View."""

    def __init__(self, card: Arrays, page: GpuPage, detector: Detector, recogniser: Recogniser, check: Check) -> None:
        self._card = card
        self._page = page
        self._detector = detector
        self._recogniser = recogniser
        self._check = check

    def find(self) -> list[Quad]:
        """See page.View."""
        height, width = self._page.pixels.shape[:2]
        return second_pass(height, width, self._look)

    def read(self, quads: Sequence[Quad]) -> list[LineText]:
        """See page.View."""
        widths = [self._recogniser.crop_size(*sides(quad))[0] for quad in quads]
        cuts = [GpuCrop(self._page, quad, width) for quad, width in zip(quads, widths, strict=True)]
        return self._recogniser.read_cuts(cuts, self._check)

    def _look(self, scale: float) -> list[Quad]:
        self._check()
        card, page = self._card, self._page
        height, width = page.pixels.shape[:2]
        size = input_size(height, width, scale)
        padded = self._detector.padded_size(size)
        tensor = detector_input(card.xp, page.array, size, padded, shrink=scale < 1)
        probabilities = self._detector.run_arrays(tensor)[0, 0, : size[1], : size[0]]
        mask, likely = unpack_map(card.download(pack_map(card.xp, probabilities, MAP_THRESHOLD)))
        return quads_from_mask(mask, likely, width, height, certain=CERTAIN)


def together_on_card(card: Arrays, session: Runner) -> RunCuts:
    """CardCuts put together on the card, and run by a session of the batched graph."""

    def run(cuts: Sequence[GpuCrop], padded: int, outputs: Sequence[str]) -> list[NDArray[Any]]:
        tensor = _put_together(card, cuts, padded)
        answers = [card.download(array) for array in session.run_arrays(tensor, outputs)]
        del tensor
        card.trim()
        return answers

    return run


def _put_together(card: Arrays, cuts: Sequence[GpuCrop], padded: int) -> Array:
    """(N, 3, HEIGHT_PX, padded) float32: the lines of each page in one go, and the largest by themselves."""
    tensor = card.xp.zeros((len(cuts), 3, HEIGHT_PX, padded), np.float32)
    passes = samples([cut.quad for cut in cuts], [cut.width for cut in cuts], HEIGHT_PX)
    pages: dict[int, list[int]] = {}
    for row, (cut, count) in enumerate(zip(cuts, passes, strict=True)):
        if count > MOST_SAMPLES:
            tensor[row, :, :, : cut.width] = card.upload(to_tensor(cut.pixels())[0])
        else:
            pages.setdefault(id(cut.page), []).append(row)
    for rows in pages.values():
        tensor[card.upload(np.array(rows))] = _crop(card, [cuts[row] for row in rows], padded)
    return tensor


def _crop(card: Arrays, cuts: Sequence[GpuCrop], padded: int) -> Array:
    """Lines of one page."""
    quads, widths = [cut.quad for cut in cuts], [cut.width for cut in cuts]
    return crop_lines(card.xp, cuts[0].page.array, quads, widths, padded, HEIGHT_PX)
