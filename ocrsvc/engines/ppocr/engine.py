"""The default engine, ppocr: PaddleOCR's models under ONNX Runtime or OpenVINO, in our own pipeline."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.latin_words import LatinWords
from ocrsvc.engines.line_recognizer import LineReader
from ocrsvc.engines.model.description import Recognition
from ocrsvc.engines.model.version import ModelVersion, built_in_model
from ocrsvc.engines.ppocr.gpu.arrays import ArrayBackend, Imaging, find_backend
from ocrsvc.engines.ppocr.gpu.page_reader import GpuPipeline, batch_on_gpu, find_fault
from ocrsvc.engines.ppocr.pipeline.cascade import MIN_WIDTH_PX, CascadeRecognizer
from ocrsvc.engines.ppocr.pipeline.db_postprocess import find_lines
from ocrsvc.engines.ppocr.pipeline.detector import Detector, open_detector
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask
from ocrsvc.engines.ppocr.pipeline.page import InMemoryPageReader, PageReader, read_page
from ocrsvc.engines.ppocr.pipeline.recognition_batches import BatchRunner, LineRunner, make_line_runner, profiles
from ocrsvc.engines.ppocr.pipeline.recognizer import WIDTHS_PX, BeamRecognizer, Recognizer, Script, open_page
from ocrsvc.engines.ppocr.pipeline.unwarp import FindGrid, OpenPage, find_grid, read_unwarped
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, default_folder
from ocrsvc.engines.ppocr.runtime.model_parts import ModelParts, read_dictionary, read_parts, tiny_part
from ocrsvc.engines.ppocr.runtime.open_model import TinyFirst, open_model, open_tiny_first
from ocrsvc.engines.ppocr.runtime.openvino_session import PROVIDER
from ocrsvc.engines.ppocr.runtime.providers import GpuConfig
from ocrsvc.engines.ppocr.runtime.session import ModelRunner, SessionConfig
from ocrsvc.engines.ppocr.runtime.shared_threads import LENDER, SharedThreads
from ocrsvc.engines.ppocr.runtime_choice import RuntimeChoice, choose_runtime
from ocrsvc.engines.ppocr.runtime_proof import Runtime
from ocrsvc.errors import OcrsvcError
from ocrsvc.results import Decoder, EngineInfo, Page, ReadTask
from ocrsvc.serving.batcher import Limits
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

LOG: Final = logging.getLogger("ocrsvc.ppocr")

MAX_LINES: Final = 64  # most lines in a batch: more gain nothing, and each line waits for the whole batch
# Limits of a batch of lines on a GPU: the pixels of 32 lines 320 px wide, and a wait of 2 ms.
BATCH: Final = Limits(max_cost=32 * 48 * 320, max_items=MAX_LINES, max_wait_s=0.002)
# Largest line width for which OpenVINO's kernels are compiled when the engine opens; one width takes 20 ms and 5 MB.
WARM_PX: Final = 1280
WARM_UP_LINES_PX = ((64, 32), (320, 32))  # length and height of the warm-up's lines: a word; half a page's width
DISTRUSTED: Final = (
    "Pixels are prepared on the CPU instead of by %s: on a test page %s. Results are correct, but fewer pages are read "
    "per second. Check that driver, CUDA and cupy versions match, and report this line. OCRSVC_IMAGING=cpu skips the "
    "attempt."
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PageHandle:
    """Reads pages with the engine's sessions; see engines.contract.Handle."""

    detector: Detector
    scripts: Sequence[Script[LineReader]]  # the model's recognizers, the default one first
    shared_threads: SharedThreads  # idle threads, which help to read this page
    close: Callable[[], None] = lambda: None
    gpu_pipeline: GpuPipeline | None = None  # prepares pixels on the GPU; None to prepare them on the CPU
    find_grid: FindGrid | None = None  # finds the shape of a curved page; None if curved pages are not flattened
    latin: LineReader | None = None  # reads Latin words for a recognizer that knows no Latin letters

    def warm_up(self) -> None:
        """Run each model once at common sizes, so that no request waits for first allocations."""
        self.detector.warm_up()
        for script in self.scripts:
            reader = script.readers["greedy"]
            sizes = (reader.crop_size(*line) for line in WARM_UP_LINES_PX)
            reader.read([np.full((height, width), 255, np.uint8) for width, height in sizes])

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Read the images one by one; see engines.contract.Handle."""
        return [self._answer(task) for task in tasks]

    def _answer(self, task: ReadTask) -> Page | OcrsvcError:
        try:
            with self.shared_threads.page():
                if self.gpu_pipeline is None:
                    return self._read(task, self.open_in_memory)
                try:
                    return self._read(task, self.gpu_pipeline.open)
                except MemoryError as full:
                    size = f"{task.image.width} x {task.image.height}"
                    LOG.warning("A page of %s pixels does not fit into the GPU (%s): the CPU prepares it.", size, full)
                return self._read(task, self.open_in_memory)
        except OcrsvcError as error:
            return error

    def _read(self, task: ReadTask, open_page: OpenPage) -> Page:
        began_s = time.monotonic()
        if self.find_grid is None or not (task.options.unwarp and task.options.detect):
            page = read_page(task, open_page(task, None))
        else:
            page = read_unwarped(task, open_page, self.find_grid)
        assert page.times is not None, "read_page sets them"
        return replace(page, times=replace(page.times, began_s=began_s))

    def open_in_memory(self, task: ReadTask, last_mask: LastMask | None = None) -> PageReader:
        """Open a page reader that prepares pixels on the CPU; it stores the detector's mask of text in `last_mask`."""
        run = partial(self.detector.run, check=task.check)
        find = partial(find_lines, run=run, thresholds=self.detector.thresholds, last_mask=last_mask)
        in_batches, with_ink = self.detector.device != "cpu", task.options.wants_words

        def open_reader(reader: LineReader) -> InMemoryPageReader:
            return InMemoryPageReader(task.image.pixels, find, reader, task.check, in_batches, with_ink)

        reader = open_page(self.scripts, task.options, open_reader)
        return reader if self.latin is None else LatinWords(reader, open_reader(self.latin))


class PpocrEngine:
    """The engine with its loaded models. Handles are cheap and share the sessions, whose runs may overlap.

    At most `engine_threads` model runs are concurrent. `imaging` selects where pixels are prepared for models on a GPU;
    "numpy" runs the GPU code on the CPU, if `config` is batched. `choices` are the CPU runtimes, one per recognizer; if
    empty, `config` names the runtime. Raises EngineUnavailable, BadModel.
    """

    traits = EngineTraits(any_thread=True)

    def __init__(
        self,
        config: SessionConfig,
        engine_threads: int = 1,
        model_cache: Path | None = None,
        batch: Limits = BATCH,
        imaging: Imaging = "auto",
        choices: Sequence[RuntimeChoice] = (),
        parts: ModelParts | None = None,
    ) -> None:
        cv2.setNumThreads(config.threads)
        parts = parts or read_parts(built_in_model())
        cache = ModelCache(model_cache, parts.detection.version.key)
        opened = _open_recognition(parts, replace(config, sessions=engine_threads), choices, batch, cache)
        first = next(iter(opened.values()))
        self._line_runners: list[LineRunner] = []
        with contextlib.ExitStack() as closing:
            self._shared_threads = LENDER.borrow(engine_threads if first.device == "cpu" else 1)
            closing.callback(LENDER.give_back, self._shared_threads)
            closing.callback(self._close_line_runners)
            detection_config = _with_runtime(config, choices[0].detection) if choices else config
            self._detector = open_detector(parts.detection, detection_config, cache, self._shared_threads)
            self._line_runners += [_make_line_runner(model, self._shared_threads, batch) for model in opened.values()]
            quick = _make_quick_recognizer(opened, self._shared_threads, batch)
            self._scripts = _scripts(parts, opened, self._line_runners, quick)
            backend = find_backend(imaging, first.device)
            self._gpu_pipeline = self.open_gpu_pipeline(backend, parts, opened, batch) if backend else None
            self._closing = closing.pop_all()
        precision = _of_both(self._detector.precision, first.precision)
        provider = _of_both(self._detector.provider, first.provider)
        if isinstance(first, TinyFirst):
            provider += ", tiny first"
        if self._detector.device != "cpu" or self._gpu_pipeline is not None:
            provider += f", pixels prepared by {self._gpu_pipeline.backend.name if self._gpu_pipeline else 'the CPU'}"
        model = parts.detection.version
        title, number = model.description.title or model.name, model.digest if model.is_built_in else str(model.number)
        self._info = EngineInfo("ppocr", title, number, self._detector.device, precision, provider)

    def describe(self) -> EngineInfo:
        """Name, model, device and precision; see engines.contract.Engine."""
        return self._info

    def open_handle(self) -> PageHandle:
        """Open a handle for the calling thread; see engines.contract.Engine."""
        return PageHandle(
            self._detector, self._scripts, self._shared_threads, gpu_pipeline=self._gpu_pipeline, find_grid=find_grid
        )

    def close(self) -> None:
        """End the threads; a session is freed when nothing refers to it any more."""
        self._closing.close()

    def _close_line_runners(self) -> None:
        for line_runner in self._line_runners:
            if isinstance(line_runner, BatchRunner):
                line_runner.close()

    def open_gpu_pipeline(
        self, backend: ArrayBackend, parts: ModelParts, opened: Mapping[str, ModelRunner], batch: Limits
    ) -> GpuPipeline | None:
        """The pipeline that prepares pixels on the GPU; None if it reads a test page differently from the CPU."""
        runners = [
            BatchRunner(model, batch, len(model.sessions), batch_on_gpu(backend, model)) for model in opened.values()
        ]
        pipeline = GpuPipeline(backend, self._detector, _scripts(parts, opened, runners))
        in_memory = PageHandle(self._detector, self._scripts, self._shared_threads)
        fault = find_fault(pipeline.open, in_memory.open_in_memory)
        if fault is None:
            self._line_runners += runners
            LOG.info("Pixels are prepared by %s.", backend.name)
            return pipeline
        for runner in runners:
            runner.close()
        LOG.warning(DISTRUSTED, backend.name, fault)
        return None


def _of_both(detection: str, recognition: str) -> str:
    return detection if detection == recognition else f"{detection} detection, {recognition} recognition"


def _with_runtime(config: SessionConfig, runtime: Runtime) -> SessionConfig:
    return replace(config, device="cpu", provider=runtime.provider, precision=runtime.precision)


def _scripts(
    parts: ModelParts,
    opened: Mapping[str, ModelRunner],
    line_runners: Sequence[LineRunner],
    quick: Recognizer | None = None,
) -> list[Script[Recognizer]]:
    """Make the recognizers; with `quick`, the first one reads only lines that `quick` is unsure of. Raises BadModel."""
    scripts: list[Script[Recognizer]] = []
    for (name, part), line_runner in zip(parts.recognition.items(), line_runners, strict=True):
        described = part.described
        assert isinstance(described, Recognition), "the part is a recognizer"
        arguments = read_dictionary(part, opened[name].metadata), described.direction, described.height_px
        readers: dict[Decoder, Recognizer] = {
            "greedy": Recognizer(line_runner, *arguments),
            "beam": BeamRecognizer(line_runner, *arguments),
        }
        careful = None
        if quick is not None and not scripts:
            careful, readers["greedy"] = readers["greedy"], CascadeRecognizer(line_runner, *arguments, quick=quick)
        scripts.append(Script(readers, described.languages, described.direction, careful))
    return scripts


def _open_recognition(
    parts: ModelParts, config: SessionConfig, choices: Sequence[RuntimeChoice], batch: Limits, cache: ModelCache
) -> dict[str, ModelRunner]:
    """Open all recognizers; returns them by name. On a GPU, the memory of runs up to one full batch is kept."""
    opened = {}
    for index, (name, part) in enumerate(parts.recognition.items()):
        part_config = _with_runtime(config, choices[index].recognition) if choices else config
        line_profiles = profiles(batch, part.input_format.height_px)
        gpu = replace(part_config.gpu, arena_values=3 * batch.max_cost, profiles=line_profiles)
        part_config = replace(part_config, gpu=gpu)
        opened[name] = open_model(part, part_config, cache)
        if choices and choices[index].recognition.tiny_first:
            opened[name] = open_tiny_first(opened[name], part_config, cache)
        # Raise BadModel here for a dictionary that does not fit, before more models are opened.
        read_dictionary(part, opened[name].metadata)
    return opened


def _make_quick_recognizer(
    opened: Mapping[str, ModelRunner], shared_threads: SharedThreads, batch: Limits
) -> Recognizer | None:
    """Make the tiny recognizer that reads lines before the first recognizer; None if the first reads all lines."""
    first = next(iter(opened.values()))
    if not isinstance(first, TinyFirst):
        return None
    line_runner = _make_line_runner(first.tiny, shared_threads, batch, MIN_WIDTH_PX)
    return Recognizer(line_runner, read_dictionary(tiny_part(), first.tiny.metadata))


def _make_line_runner(
    recognition: ModelRunner, shared_threads: SharedThreads, batch: Limits, narrowest_px: int = 0
) -> LineRunner:
    if not recognition.batched:
        if recognition.provider == PROVIDER:
            # A session compiles kernels for each line width, which would delay the first line of that width by 30 ms.
            for width in (width for width in WIDTHS_PX if narrowest_px <= width <= WARM_PX):
                recognition.warm_up(np.zeros((1, 3, recognition.input_format.height_px, width), np.float32))
        return make_line_runner(recognition, shared_threads)
    batches = BatchRunner(recognition, batch, runners=len(recognition.sessions))
    batches.warm_up()
    return batches


def open_ppocr(settings: Settings, plan: ThreadPlan, model: ModelVersion | None = None) -> PpocrEngine:
    """Open the engine with a model, by default the built-in one. Raises EngineUnavailable, BadModel."""
    config = SessionConfig(
        settings.device,
        plan.library_threads,
        provider=settings.provider,
        precision=settings.precision,
        gpu=GpuConfig(settings.gpu_streams, settings.gpu_arena_bytes),
    )
    batch = Limits(settings.batch_pixels, MAX_LINES, settings.batch_wait_s)
    cache = settings.model_cache or default_folder()
    parts = read_parts(model or built_in_model())
    open_engine = partial(PpocrEngine, config, plan.engine_threads, cache, batch, settings.imaging, parts=parts)
    models = ModelCache(cache, parts.detection.version.key)
    choices = _choose_runtimes(parts, config, models)
    engine = open_engine(choices)
    if choices or engine.describe().device != "cpu":
        return engine
    # The GPU does not work, so open again with the fastest CPU runtime.
    engine.close()
    del engine
    return open_engine(_choose_runtimes(parts, replace(config, device="cpu"), models))


def _choose_runtimes(parts: ModelParts, config: SessionConfig, cache: ModelCache) -> list[RuntimeChoice]:
    """The chosen runtimes for each recognizer; empty if a GPU is to be used."""
    choices = [choose_runtime((parts.detection, part), config, cache) for part in parts.recognition.values()]
    return [choice for choice in choices if choice is not None]
