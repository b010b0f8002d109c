"""ppocr's handle: reads pages for one thread with the shared detector and recognizers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from ocrsvc.engines.line_recognizer import LineReader
from ocrsvc.engines.ppocr.gpu.page_reader import GpuPipeline
from ocrsvc.engines.ppocr.pipeline.db_postprocess import ProbabilityMap, find_lines
from ocrsvc.engines.ppocr.pipeline.detector import Detector
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask
from ocrsvc.engines.ppocr.pipeline.page import InMemoryPageReader, PageReader, read_page
from ocrsvc.engines.ppocr.pipeline.recognizer import Script, open_page
from ocrsvc.engines.ppocr.pipeline.unwarp import FindGrid, OpenPage, read_unwarped
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.errors import OcrsvcError
from ocrsvc.results import Check, Page, Pixels, ReadTask

LOG: Final = logging.getLogger("ocrsvc.ppocr")

WARM_UP_LINES_PX = ((64, 32), (320, 32))  # length and height of two lines: one word, and half a page's width


class PageHandle:
    """Reads pages; see engines.contract.Handle.

    `scripts` are the model's recognizers, the default first. `shared_threads` lets idle threads help with other pages.
    `gpu_pipeline` prepares pixels on the GPU, `find_grid` finds a curved page's shape; None: neither is done.
    """

    def __init__(
        self,
        detector: Detector,
        scripts: Sequence[Script[LineReader]],
        shared_threads: SharedThreads,
        close_reader: Callable[[], None] = lambda: None,
        gpu_pipeline: GpuPipeline | None = None,
        find_grid: FindGrid | None = None,
    ) -> None:
        self._detector = detector
        self._scripts = scripts
        self._shared_threads = shared_threads
        self._gpu_pipeline = gpu_pipeline
        self._find_grid = find_grid
        self.close = close_reader

    def warm_up(self) -> None:
        """Run each model once at ordinary sizes, so that no request pays for the first allocations."""
        self._detector.warm_up()
        for script in self._scripts:
            reader = script.readers["greedy"]
            sizes = (reader.crop_size(*line) for line in WARM_UP_LINES_PX)
            reader.read([np.full((height, width), 255, np.uint8) for width, height in sizes])

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """See engines.contract.Handle."""
        return [self._answer(task) for task in tasks]

    def _answer(self, task: ReadTask) -> Page | OcrsvcError:
        try:
            with self._shared_threads.page():
                page = self._read_on_gpu(self._gpu_pipeline, task) if self._gpu_pipeline is not None else None
                return page or self._read(task, self.open_in_memory)
        except OcrsvcError as error:
            return error

    def _read_on_gpu(self, gpu_pipeline: GpuPipeline, task: ReadTask) -> Page | None:
        """The page; None if it does not fit into the GPU's memory."""
        try:
            return self._read(task, gpu_pipeline.open)
        except MemoryError as full:
            size = f"{task.image.width} x {task.image.height}"
            LOG.warning("A page of %s pixels does not fit into the GPU (%s); it is prepared on the CPU.", size, full)
            return None

    def _read(self, task: ReadTask, open_page: OpenPage) -> Page:
        began_s = time.monotonic()
        if self._find_grid is None or not (task.options.unwarp and task.options.detect):
            page = read_page(task, open_page(task, None))
        else:
            page = read_unwarped(task, open_page, self._find_grid)
        assert page.times is not None, "read_page sets them"
        return replace(page, times=replace(page.times, began_s=began_s))

    def open_in_memory(self, task: ReadTask, last_mask: LastMask | None = None) -> PageReader:
        """A page reader that prepares pixels on the CPU; `last_mask` receives each text mask of the detector."""
        run = partial(self._detect, check=task.check, last_mask=last_mask)
        find = partial(find_lines, run=run, thresholds=self._detector.thresholds)
        in_batches, with_ink = self._detector.device != "cpu", task.options.wants_words

        def open_reader(reader: LineReader) -> InMemoryPageReader:
            return InMemoryPageReader(task.image.pixels, find, reader, task.check, in_batches, with_ink)

        return open_page(self._scripts, task.options, open_reader)

    def _detect(self, pixels: Pixels, *, check: Check, last_mask: LastMask | None) -> ProbabilityMap:
        probabilities = self._detector.run(pixels, check)
        if last_mask is not None:
            last_mask.keep((probabilities > self._detector.thresholds.of_map).view(np.uint8))
        return probabilities
