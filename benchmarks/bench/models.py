"""Runs the models alone, on input tensors recorded from the pipeline."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bench.service import ROOT

# Set it before numpy's and OpenCV's threads exist, as the service does: one thread per run.
os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from ocrsvc.engines.ppocr.runtime.session import ModelRunner

Tensor = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Input tensors of the models for one page, in order."""

    detection: list[Tensor] = field(default_factory=list)
    recognition: list[Tensor] = field(default_factory=list)


class Models:
    """The two models as the engine runs them, with one thread per run, and each again with one thread per core."""

    def __init__(self, cores: int) -> None:
        from ocrsvc.engines.ppocr.pipeline.detector import ARENA_VALUES, WIDE_ARENA_VALUES
        from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS
        from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, default_folder
        from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, built_in_part
        from ocrsvc.engines.ppocr.runtime.open_model import open_model
        from ocrsvc.engines.ppocr.runtime.session import SessionConfig

        store = ModelCache(default_folder())
        self.cores = cores
        detection, recognition = built_in_part(DETECTION), built_in_part(RECOGNITION)
        self.detection = open_model(detection, SessionConfig("cpu", 1, ARENA_VALUES), store)
        self.detection_wide = open_model(detection, SessionConfig("cpu", cores, WIDE_ARENA_VALUES), store)
        self.recognition = open_model(recognition, SessionConfig("cpu", 1), store)
        self.recognition_wide = open_model(recognition, SessionConfig("cpu", cores), store)
        self._decided = OUTPUTS

    def record(self, images: Sequence[bytes]) -> list[Inputs]:
        """Record the input tensors that the engine passes to the models for each image file."""
        from ocrsvc.engines.ppocr.engine import PageHandle
        from ocrsvc.engines.ppocr.pipeline.detector import Detector
        from ocrsvc.engines.ppocr.pipeline.recognition_batches import SingleLineRunner
        from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer, Script
        from ocrsvc.engines.ppocr.runtime.model_parts import RECOGNITION, built_in_part, read_dictionary
        from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
        from ocrsvc.imaging.codecs.decode import PixelLimits, decode
        from ocrsvc.results import ReadTask

        found = Inputs()
        shared_threads = SharedThreads(1)
        runs = SingleLineRunner(_recording(self.recognition, lambda: found.recognition), shared_threads)
        recognizer = Recognizer(runs, read_dictionary(built_in_part(RECOGNITION), self.recognition.metadata))
        detector = Detector(_recording(self.detection, lambda: found.detection))
        handle = PageHandle(detector, [Script({"greedy": recognizer})], shared_threads)
        every: list[Inputs] = []
        for data in images:
            found = Inputs()
            handle.read([ReadTask(decode(data, PixelLimits(50_000_000), gray=False))])
            every.append(found)
        shared_threads.close()
        return every

    def run_page(self, page: Inputs) -> None:
        """Run the models on a page's inputs, one after the other, on the calling thread."""
        for tensor in page.detection:
            self.detection.run(tensor)
        for tensor in page.recognition:
            self.recognition.run(tensor, self._decided)

    def run_page_wide(self, page: Inputs) -> None:
        """Run the models on a page's inputs, one after the other, with all threads inside each run."""
        for tensor in page.detection:
            self.detection_wide.run(tensor)
        for tensor in page.recognition:
            self.recognition_wide.run(tensor, self._decided)

    def run_alone(self, page: Inputs, pool: ThreadPoolExecutor) -> None:
        """Run a page as the engine does on an idle machine: detection on all threads, then one line per thread."""
        for tensor in page.detection:
            self.detection_wide.run(tensor)
        widest_first = sorted(page.recognition, key=lambda tensor: -tensor.shape[3])
        list(pool.map(lambda tensor: self.recognition.run(tensor, self._decided), widest_first))


def _recording(session: ModelRunner, into: Callable[[], list[Tensor]]) -> ModelRunner:
    """The session, with its inputs recorded."""
    from ocrsvc.engines.ppocr.runtime.session import Session

    class Recording(Session):
        def __init__(self) -> None:
            self.__dict__.update(session.__dict__)

        def run(self, array: Tensor, outputs: Sequence[str] | None = None) -> list[NDArray[np.float32]]:
            into().append(array)
            return session.run(array, outputs)

    return Recording()


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Elapsed seconds and processor seconds."""

    wall_s: float
    cpu_s: float


def timed(work: Callable[[], object]) -> TimeSpent:
    """Elapsed and processor time of `work` in this process."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return TimeSpent(time.perf_counter() - wall_s, time.process_time() - cpu_s)
