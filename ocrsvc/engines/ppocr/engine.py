"""The engine ppocr, the default: PP-OCRv6 small under ONNX Runtime or OpenVINO, in a pipeline of our own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.ppocr.gpu.arrays import ArrayBackend, Imaging, find_backend
from ocrsvc.engines.ppocr.gpu.page_reader import GpuPipeline, batch_on_gpu
from ocrsvc.engines.ppocr.gpu.self_test import find_fault
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.pipeline.detector import open_detector
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX
from ocrsvc.engines.ppocr.pipeline.recognition_batches import BatchRunner, LineRunner, make_line_runner, profiles
from ocrsvc.engines.ppocr.pipeline.recognizer import WIDTHS_PX, BeamRecognizer, Recognizer, read_characters
from ocrsvc.engines.ppocr.runtime import models
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, default_folder
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.openvino_session import PROVIDER
from ocrsvc.engines.ppocr.runtime.providers import GpuConfig
from ocrsvc.engines.ppocr.runtime.runtimes import Runtime, RuntimeChoice
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime.session_pool import ModelRunner
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.engines.ppocr.runtime.unwarping_model import UnwarpingModel
from ocrsvc.engines.ppocr.runtime_proof import choose_runtime
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Decoder
from ocrsvc.serving.batcher import Limits
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

LOG: Final = logging.getLogger("ocrsvc.ppocr")

MOST_LINES: Final = 64
"""Lines in one batch at most, however narrow: more gain nothing, and each waits for all."""

BATCH: Final = Limits(most_cost=32 * 48 * 320, most_items=MOST_LINES, longest_wait_s=0.002)
"""A batch of lines on a GPU: the pixels of 32 lines of 320 px, which wait 2 ms for each other."""

WARM_PX: Final = 1280
"""Width of a line up to which OpenVINO's kernels are compiled when the engine opens; each takes 20 ms and 5 MB."""

DISTRUSTED: Final = (
    "Pixels are prepared on the CPU and not by %s: on a page drawn to try it %s. Pages are read as they should be, but "
    "fewer of them a second. Check that driver, CUDA and cupy fit each other, and report this line; OCRSVC_IMAGING=cpu "
    "does without the GPU from the beginning."
)


class PpocrEngine:
    """The loaded models. Handles are cheap and share the sessions, whose runs may overlap.

    Args:
        config: How both models compute.
        engine_threads: Model runs that may be under way at once: the engine threads of this process.
        model_cache: Folder for optimised models; None keeps none.
        batch: How many lines a GPU reads in one run, and how long it waits for them.
        imaging: Where pixels are prepared for models on a GPU; "numpy" runs the GPU code in memory, for a `config` that
            reads lines in batches on the CPU too.
        choice: What each model is computed with on a CPU; None as `config` says for both.

    Raises:
        EngineUnavailable: A model is missing, or the device cannot be used.
    """

    traits = EngineTraits(any_thread=True)

    def __init__(
        self,
        config: SessionConfig,
        engine_threads: int = 1,
        model_cache: Path | None = None,
        batch: Limits = BATCH,
        imaging: Imaging = "auto",
        choice: RuntimeChoice | None = None,
    ) -> None:
        cv2.setNumThreads(config.threads)
        cache = ModelCache(model_cache)
        recognition_config = _with_runtime(config, choice.recognition) if choice is not None else config
        recognition = _open_recognition(replace(recognition_config, sessions=engine_threads), batch, cache)
        self._shared_threads = SharedThreads(engine_threads if recognition.device == "cpu" else 1)
        detection_config = _with_runtime(config, choice.detection) if choice is not None else config
        self._detector = open_detector(detection_config, cache, self._shared_threads)
        self._line_runner = _make_line_runner(recognition, self._shared_threads, batch)
        characters = read_characters(recognition.metadata)
        self._readers = _make_recognizers(self._line_runner, characters)
        self._unwarping = UnwarpingModel()
        self._gpu_line_runner: LineRunner | None = None
        backend = find_backend(imaging, recognition.device)
        self._gpu_pipeline = self._open_gpu_pipeline(backend, recognition, batch, characters) if backend else None
        precision = _of_both(self._detector.precision, recognition.precision)
        provider = self._with_imaging(_of_both(self._detector.provider, recognition.provider))
        self._info = EngineInfo("ppocr", models.NAME, models.version(), self._detector.device, precision, provider)

    def describe(self) -> EngineInfo:
        """See engines.contract.Engine."""
        return self._info

    def open_handle(self) -> PageHandle:
        """See engines.contract.Engine."""
        return PageHandle(
            self._detector,
            self._readers,
            self._shared_threads,
            gpu_pipeline=self._gpu_pipeline,
            find_grid=self._unwarping.find_grid,
        )

    def close(self) -> None:
        """End the threads; the sessions go with the last reference."""
        for line_runner in (self._line_runner, self._gpu_line_runner):
            if line_runner is not None:
                line_runner.close()
        self._shared_threads.close()

    def _open_gpu_pipeline(
        self, backend: ArrayBackend, session: ModelRunner, batch: Limits, characters: Sequence[str]
    ) -> GpuPipeline | None:
        """The pipeline that prepares pixels on the GPU, if it reads what is read without it."""
        line_runner = BatchRunner(session, batch, len(session.sessions), batch_on_gpu(backend, session))
        pipeline = GpuPipeline(backend, self._detector, _make_recognizers(line_runner, characters))
        fault = find_fault(
            pipeline.open, PageHandle(self._detector, self._readers, self._shared_threads).open_in_memory
        )
        if fault is None:
            self._gpu_line_runner = line_runner
            LOG.info("Pixels are prepared by %s.", backend.name)
            return pipeline
        line_runner.close()
        LOG.warning(DISTRUSTED, backend.name, fault)
        return None

    def _with_imaging(self, provider: str) -> str:
        """What runs the models and, on a GPU, what prepares pixels for them."""
        imaging = self._gpu_pipeline.backend.name if self._gpu_pipeline else "the CPU"
        on_cpu = self._detector.device == "cpu" and self._gpu_pipeline is None
        return provider if on_cpu else f"{provider}, pixels prepared by {imaging}"


def _of_both(detection: str, recognition: str) -> str:
    return detection if detection == recognition else f"{detection} detection, {recognition} recognition"


def _with_runtime(config: SessionConfig, runtime: Runtime) -> SessionConfig:
    return replace(config, device="cpu", provider=runtime.provider, precision=runtime.precision)


def _make_recognizers(line_runner: LineRunner, characters: Sequence[str]) -> dict[Decoder, Recognizer]:
    return {"greedy": Recognizer(line_runner, characters), "beam": BeamRecognizer(line_runner, characters)}


def _open_recognition(config: SessionConfig, batch: Limits, cache: ModelCache) -> ModelRunner:
    """The recognizer; on a GPU whatever is larger than a batch gives its memory back."""
    gpu = replace(config.gpu, arena_values=3 * batch.most_cost, profiles=profiles(batch))
    return open_model(models.RECOGNITION, replace(config, gpu=gpu), cache)


def _make_line_runner(recognition: ModelRunner, shared_threads: SharedThreads, batch: Limits) -> LineRunner:
    if not recognition.batched:
        if recognition.provider == PROVIDER:
            # Every width costs 30 ms when it is first met, in each session.
            for width in (one for one in WIDTHS_PX if one <= WARM_PX):
                recognition.warm_up(np.zeros((1, 3, HEIGHT_PX, width), np.float32))
        return make_line_runner(recognition, shared_threads)
    batches = BatchRunner(recognition, batch, runners=len(recognition.sessions))
    batches.warm_up()
    return batches


def open_ppocr(settings: Settings, plan: ThreadPlan) -> PpocrEngine:
    """The engine as the settings and the thread plan want it. Raises EngineUnavailable."""
    config = SessionConfig(
        settings.device,
        plan.library_threads,
        provider=settings.provider,
        precision=settings.precision,
        gpu=GpuConfig(settings.gpu_streams, settings.gpu_arena_bytes),
    )
    batch = Limits(settings.batch_pixels, MOST_LINES, settings.batch_wait_s)
    cache = settings.model_cache or default_folder()
    open_engine = partial(PpocrEngine, config, plan.engine_threads, cache, batch, settings.imaging)
    choice = choose_runtime(config, ModelCache(cache))
    engine = open_engine(choice)
    if choice is not None or engine.describe().device != "cpu":
        return engine
    # A GPU was meant and does not work: the CPU computes in what is quickest there.
    engine.close()
    del engine
    return open_engine(choose_runtime(replace(config, device="cpu"), ModelCache(cache)))
