"""Runs the recognition model over lines: one run per line on a CPU, batches of lines from any pages on a GPU.

On a CPU, batches gain nothing and padding costs time; a GPU would be idle without batches. Under OpenVINO only the last
matrix product is computed for several lines of a page together. The output for a line depends on that line alone: in a
batch it is padded to the bucket of its own width, and only the steps that cover the line are used.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.network_input import to_tensor
from ocrsvc.engines.ppocr.runtime.openvino_session import Features, OpenVinoRecognizer, first_steps
from ocrsvc.engines.ppocr.runtime.providers import Profile
from ocrsvc.engines.ppocr.runtime.session import ModelRunner, SessionPool
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.results import Check, Pixels, no_check
from ocrsvc.serving.batcher import Batcher, Limits

R = TypeVar("R")

_CHECK_S: Final = 0.25  # interval of calls of `check` while a page waits for a batch
# Widths to which lines are padded in batches. There are few, because a GPU searches for kernels at every new shape.
BUCKETS_PX: Final = (96, 160, 240, 320, 480, 640, 960, 1440, 2160, 3200)
# Narrowest and widest bucket of each TensorRT engine. An engine allocates memory for the largest batch of its narrowest
# bucket, each line as wide as its widest bucket: twice the memory of a batch. One engine for all would need 20 times.
PROFILES_PX: Final = ((96, 320), (480, 960), (1440, 3200))
# Output names of graph/rewrite.py, which cannot be imported here because it needs the package onnx.
OUTPUTS: Final = ("best", "sure")
WITH_LOGITS: Final = (*OUTPUTS, "logits")


@dataclass(frozen=True, slots=True)
class RecognizerOutput:
    """The model's output for one line of T steps."""

    best: NDArray[np.int64]  # (T,) the likeliest class of each step
    probabilities: NDArray[np.float32]  # (N,) the probability of each character at its first step
    logits: NDArray[np.float32] | None = None  # (T, C), if requested


Names = tuple[str, ...]
Decode = Callable[[RecognizerOutput], R]


class LineImage:
    """The image of one line, (h, w[, 3]) uint8, at the recognizer's line height; for GPUs see gpu/page_reader.py."""

    def __init__(self, crop: Pixels) -> None:
        self._crop, self.width = crop, int(crop.shape[1])

    def pixels(self) -> Pixels:
        """The pixels, (h, width[, 3]) uint8, in main memory."""
        return self._crop


Lines = Sequence[LineImage]


@dataclass(frozen=True, slots=True, eq=False)
class SingleLineRunner:
    """Runs the model once per line, in the calling thread and in idle shared threads."""

    _session: ModelRunner
    _shared_threads: SharedThreads

    def map(self, decode: Decode[R], lines: Lines, check: Check = no_check, outputs: Names = OUTPUTS) -> list[R]:
        """Run the model over lines; returns `decode` of each output. `check` may raise before each line."""

        def read(line: LineImage) -> R:
            check()
            return decode(self._run(line, outputs))

        return self._shared_threads.map(read, lines)

    def _run(self, line: LineImage, outputs: Names) -> RecognizerOutput:
        tensor = to_tensor(line.pixels(), self._session.input_format)
        return RecognizerOutput(*self._session.run(tensor, outputs))


GROUP_STEPS: Final = 512  # steps that one thread classifies at once; other threads classify the page's other groups


@dataclass(frozen=True, slots=True, eq=False)
class TwoStageRunner:
    """Computes each line's features, then classifies the steps of many lines together; uses idle shared threads."""

    _pool: SessionPool
    _shared_threads: SharedThreads

    def map(self, decode: Decode[R], lines: Lines, check: Check = no_check, outputs: Names = OUTPUTS) -> list[R]:
        """Run the model over lines; see SingleLineRunner."""

        def compute(line: LineImage) -> Features:
            check()
            tensor = to_tensor(line.pixels(), self._pool.input_format)
            with self._pool.acquire() as session:
                return cast(OpenVinoRecognizer, session).features(tensor)

        def choose(group: Sequence[Features]) -> list[R]:
            check()
            with self._pool.acquire() as session:
                recognizer = cast(OpenVinoRecognizer, session)
                found = recognizer.classify(group)
            logits = map(recognizer.logits, group) if outputs == WITH_LOGITS else repeat(None)
            pairs = zip(found, logits, strict=False)
            return [decode(RecognizerOutput(*classes, of_line)) for classes, of_line in pairs]

        # Run lines in order of width, because a run takes 1.4 ms longer if the width has changed.
        order = sorted(range(len(lines)), key=lambda index: lines[index].width)
        groups = groups_of(self._shared_threads.map(compute, [lines[index] for index in order]))
        made = [one for group in self._shared_threads.map(choose, groups) for one in group]
        return [one for _, one in sorted(zip(order, made, strict=True), key=lambda pair: pair[0])]


def groups_of(lines: Sequence[Features]) -> list[Sequence[Features]]:
    """Group consecutive lines; a group is complete when it has GROUP_STEPS steps or more."""
    groups: list[list[Features]] = []
    for line in lines:
        if not groups or sum(map(len, groups[-1])) >= GROUP_STEPS:
            groups.append([])
        groups[-1].append(line)
    return list(groups)


# Runs the model over lines that are padded to a width; returns the named outputs in memory.
RunBatch = Callable[[Sequence[Any], int, Sequence[str]], list[NDArray[Any]]]


class BatchRunner:
    """Runs lines of one width bucket, from any pages, in batches; the cost of a line is its padded pixels.

    `runners` batches run at the same time. `run` pads lines and runs the session; the default is `batch_in_memory`.
    """

    def __init__(self, session: ModelRunner, limits: Limits, runners: int = 1, run: RunBatch | None = None) -> None:
        self._session, self._limits = session, limits
        self._height_px = session.input_format.height_px
        self._run_batch = run or batch_in_memory(session)
        self._batcher: Batcher[tuple[int, Names], Any, RecognizerOutput] = Batcher(self._run, limits, runners=runners)

    def map(self, decode: Decode[R], lines: Lines, check: Check = no_check, outputs: Names = OUTPUTS) -> list[R]:
        """Run the model over lines; see SingleLineRunner."""
        futures: list[Future[RecognizerOutput]] = []
        try:
            for line in lines:
                width = bucket_of(line.width)
                futures.append(self._batcher.submit((width, outputs), line, width * self._height_px))
            # Decode in the page's thread, so that the batch thread can start the next batch.
            return [decode(_result_of(future, check)) for future in futures]
        finally:
            # If one line failed, the page fails: cancel its waiting lines. For finished lines this does nothing.
            for future in futures:
                future.cancel()

    def warm_up(self) -> None:
        """Run one line and a full batch of each width. Raises EngineUnavailable, mostly for lack of GPU memory."""
        for width in BUCKETS_PX:
            for count in sorted({1, max_lines(width, self._limits, self._height_px)}):
                self._session.warm_up(np.ones((count, 3, self._height_px, width), np.float32))

    def close(self) -> None:
        """Run queued lines, then end the threads."""
        self._batcher.close()

    def _run(self, bucket: tuple[int, Names], lines: Sequence[Any]) -> list[RecognizerOutput]:
        width, outputs = bucket
        arrays = self._run_batch(lines, width, outputs)
        answers = []
        for number, line in enumerate(lines):
            steps = own_steps(line.width, width, arrays[0].shape[1])
            best, shares, *logits = (array[number, :steps] for array in arrays)
            answers.append(RecognizerOutput(best, shares[first_steps(best)], *logits))
        return answers


LineRunner = SingleLineRunner | TwoStageRunner | BatchRunner  # the ways to run the recognition model over lines


def _result_of(future: Future[R], check: Check) -> R:
    while not future.done():
        check()
        wait([future], _CHECK_S)
    check()
    return future.result()


def make_line_runner(recognition: ModelRunner, shared_threads: SharedThreads) -> SingleLineRunner | TwoStageRunner:
    """Make the line runner for a CPU: two stages under OpenVINO, otherwise one run per line."""
    if isinstance(recognition, SessionPool) and isinstance(recognition.sessions[0], OpenVinoRecognizer):
        return TwoStageRunner(recognition, shared_threads)
    return SingleLineRunner(recognition, shared_threads)


def batch_in_memory(session: ModelRunner) -> RunBatch:
    """Make a function that pads lines in memory to one tensor and runs it with a session of the batched graph."""

    def run(line_images: Sequence[LineImage], padded: int, outputs: Sequence[str]) -> list[NDArray[Any]]:
        height = session.input_format.height_px
        tensor = np.zeros((len(line_images), 3, height, padded), np.float32)
        for row, line_image in zip(tensor, line_images, strict=True):
            row[:, :, : line_image.width] = to_tensor(line_image.pixels(), session.input_format)[0]
        return session.run(tensor, outputs)

    return run


def max_lines(width: int, limits: Limits, height: int) -> int:
    """The largest number of lines of this padded size that fit into one batch."""
    return max(1, min(limits.max_items, limits.max_cost // (height * width)))


def profiles(limits: Limits, height: int) -> tuple[Profile, ...]:
    """The TensorRT profiles for all batches within the limits; `height` is the line height."""
    return tuple(
        Profile(
            (1, 3, height, narrowest),
            (max_lines(widest, limits, height), 3, height, widest),
            (max_lines(narrowest, limits, height), 3, height, widest),
        )
        for narrowest, widest in PROFILES_PX
    )


def bucket_of(width: int) -> int:
    """The width to which a line is padded, in pixels."""
    return next((bucket for bucket in BUCKETS_PX if bucket >= width), width)


def own_steps(width: int, padded: int, steps: int) -> int:
    """Number of a padded line's steps that cover the line itself, without the padding."""
    return max(1, min(steps, -(-steps * width // padded)))
