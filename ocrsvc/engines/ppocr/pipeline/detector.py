"""Runs the detection model, on one thread if other pages are read too, on all threads if a page is alone or large.

A CPU runs a page at exactly its own size. A GPU searches for kernels at every new size, so there the page is padded at
the right and bottom to one of a few sizes. In both cases the result depends on the page alone.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final, cast

import cv2

from ocrsvc.engines.ppocr.pipeline.db_postprocess import COARSE_PX, FINE_PX, USUAL, ProbabilityMap, Thresholds
from ocrsvc.engines.ppocr.pipeline.network_input import blank_input, model_input
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import ModelPart
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.providers import Profile
from ocrsvc.engines.ppocr.runtime.session import ModelRunner, SessionConfig
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.results import Check, Pixels, no_check

# Largest input whose memory is kept for the next run; see SessionConfig.arena_values. Larger inputs need hundreds of
# megabytes.
ARENA_VALUES: Final = 3 * 960 * 768
_CHECK_S: Final = 0.25
OPENVINO_ARENA_VALUES: Final = 3 * 1536 * 1280  # largest input kept under OpenVINO: most second passes
WIDE_ARENA_VALUES: Final = 1  # keep no memory in the session with many threads
SIDES_PX: Final = (160, 320, 480, 640, 800, 960, 1280, 1600, 2048)  # sides of a padded page on a GPU
# Sides longer than the last of SIDES_PX (only very long or wide images have them) are padded to multiples of this.
_STRIP_STEP_PX: Final = 1024

# TensorRT's optimization profiles: input shapes of first and of second passes. CUDA runs all other shapes.
PROFILES: Final = (
    Profile((1, 3, 160, 160), (1, 3, 960, 800), (1, 3, COARSE_PX, COARSE_PX)),
    Profile((1, 3, 160, 160), (1, 3, 1600, 1280), (1, 3, FINE_PX, FINE_PX)),
)
# Sizes to warm up on a GPU: all first passes, and second passes of pages with common proportions.
_WARM_PX: Final = (
    *((height, width) for height in SIDES_PX for width in SIDES_PX if max(height, width) in (640, 960)),
    *((1280, 960), (960, 1280), (1600, 1280), (1280, 1600), (2048, 1600), (1600, 2048), (2048, 2048)),
)


# Height and width of common first passes: half a page, and A4 and 4 : 3 pages in portrait and landscape.
COMMON_PX: Final = ((480, COARSE_PX), (COARSE_PX, 672), (COARSE_PX, 704), (672, COARSE_PX), (704, COARSE_PX))


class Detector:
    """The detection model; thread-safe.

    In ONNX Runtime, two threads need 0.6 of one thread's time for a page, but 1.13 of its CPU time. So there are two
    sessions with bit-identical results: `wide` (all shared threads) for a page that is alone, `narrow` (the calling
    thread) otherwise. Large runs, whose memory is not kept, run one at a time on all threads of `wide`.
    Under OpenVINO two threads need no more CPU time than one, and a second session would double the memory. So there
    `narrow` is the only session; it runs on all threads and takes pages `one_at_a_time`.
    """

    def __init__(
        self,
        narrow: ModelRunner,
        wide: ModelRunner | None = None,
        shared_threads: SharedThreads | None = None,
        *,
        one_at_a_time: bool = False,
        thresholds: Thresholds = USUAL,
    ) -> None:
        self.thresholds, self.input_format = thresholds, narrow.input_format
        self._narrow, self._wide = narrow, wide
        self._shared_threads, self._one_at_a_time = shared_threads, one_at_a_time
        self._large_runs = threading.Lock()
        self.device, self.provider, self.precision = narrow.device, narrow.provider, narrow.precision

    def run(self, pixels: Pixels, check: Check = no_check) -> ProbabilityMap:
        """(h, w) probabilities of (h, w[, 3]) uint8, sides multiples of STRIDE; calls `check` while it waits."""
        height, width = pixels.shape[:2]
        check()
        if self.device != "cpu":
            return _probabilities(self._narrow, pad(pixels))[:height, :width]
        if self._shared_threads is None or (self._wide is None and not self._one_at_a_time):
            return _probabilities(self._narrow, pixels)
        is_large = self._one_at_a_time or 3 * height * width > ARENA_VALUES
        with self._turn(check) if is_large else nullcontext(), self._shared_threads.all_threads() as alone:
            session = self._wide if self._wide is not None and (alone or is_large) else self._narrow
            return _probabilities(session, pixels)

    @contextmanager
    def _turn(self, check: Check) -> Iterator[None]:
        """Wait until earlier large runs have ended; meanwhile this page occupies none of the shared threads."""
        assert self._shared_threads is not None, "only large runs with shared threads take turns"
        with self._shared_threads.released_thread():
            while not self._large_runs.acquire(timeout=_CHECK_S):
                check()
        try:
            yield
        finally:
            self._large_runs.release()

    def padded_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """The size (w, h) to which an input of `size` is padded on a GPU; a CPU needs no padding."""
        return size if self.device == "cpu" else (padded_side(size[0]), padded_side(size[1]))

    def run_arrays(self, array: Any) -> Any:
        """Run the model on (1, 3, h, w) float32, padded to `padded_size`; returns (1, 1, h, w) on the same device."""
        return self._narrow.run(array)[0]

    def warm_up(self) -> None:
        """Run each CPU session once at a common size; a GPU's session is already warm when it is open."""
        for session in (self._narrow, self._wide):
            if session is not None and self.device == "cpu":
                for height, width in COMMON_PX if self._one_at_a_time else COMMON_PX[:1]:
                    session.warm_up(blank_input(session, height, width))


def pad(pixels: Pixels) -> Pixels:
    """Pad (h, w[, 3]) uint8 by repeating the last row and column, up to the sides that `padded_side` returns.

    The network pools over the whole page, so padding moves boxes a little. On ten corpus pages 97 % of the corners move
    by less than 3 px with repeated edges, 92 to 95 % with gray, black, white or mirrored ones.
    """
    height, width = pixels.shape[:2]
    below, beside = padded_side(height) - height, padded_side(width) - width
    return cast(Pixels, cv2.copyMakeBorder(pixels, 0, below, 0, beside, cv2.BORDER_REPLICATE))


def padded_side(side: int) -> int:
    """The length in pixels to which a side is padded."""
    return next((size for size in SIDES_PX if size >= side), -(-side // _STRIP_STEP_PX) * _STRIP_STEP_PX)


def open_detector(
    part: ModelPart, config: SessionConfig, cache: ModelCache | None = None, shared_threads: SharedThreads | None = None
) -> Detector:
    """Load a detection model; idle `shared_threads` help if a page is alone. Raises EngineUnavailable, BadModel."""
    thresholds = Thresholds.of(part.version.description.detection)
    if config.provider == "openvino":
        threads = max(config.threads, shared_threads.count if shared_threads is not None else 1)
        config = replace(config, threads=threads, sessions=1, arena_values=OPENVINO_ARENA_VALUES)
        narrow = open_model(part, config, cache)
        return Detector(narrow, shared_threads=shared_threads, one_at_a_time=True, thresholds=thresholds)
    # Keep the GPU memory of inputs up to FINE_PX x FINE_PX (second passes): freeing it would stall the whole GPU.
    gpu = replace(config.gpu, arena_values=3 * FINE_PX * FINE_PX, profiles=PROFILES)
    narrow = open_model(part, replace(config, arena_values=ARENA_VALUES, gpu=gpu), cache)
    if narrow.device != "cpu":
        for height, width in _WARM_PX:
            narrow.warm_up(blank_input(narrow, height, width))
    if shared_threads is None or shared_threads.count <= config.threads or narrow.device != "cpu":
        return Detector(narrow, thresholds=thresholds)
    wide = replace(config, threads=shared_threads.count, arena_values=WIDE_ARENA_VALUES)
    return Detector(narrow, open_model(part, wide, cache), shared_threads, thresholds=thresholds)


def _probabilities(session: ModelRunner, pixels: Pixels) -> ProbabilityMap:
    """Run the model. The input tensor, 12 bytes per pixel, is created only here, so that a waiting page has none."""
    return cast(ProbabilityMap, session.run(model_input(session, pixels))[0][0, 0])
