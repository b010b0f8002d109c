"""Measures the cost of changing a model's input shape, and lines per second by batch size, on one GPU.

ONNX Runtime 1.20 and newer keep one cuDNN plan per convolution, so a run with another shape than the last rebuilds them
(microsoft/onnxruntime issue 23006). The cost shows when two shapes alternate on one session, compared with one session
per shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from ocrsvc.engines.ppocr.runtime.model_parts import Kind
    from ocrsvc.engines.ppocr.runtime.session import ModelRunner, SessionConfig

Shape = tuple[int, int, int, int]

DETECTION_SHAPES: Final[tuple[Shape, Shape]] = ((1, 3, 960, 800), (1, 3, 800, 960))
RECOGNITION_SHAPES: Final[tuple[Shape, Shape]] = ((8, 3, 48, 320), (8, 3, 48, 480))
LINES: Final = (1, 4, 16, 64, 256, 1024)
LINE_PX: Final = 320
ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class Alternation:
    """Seconds of a run, averaged over two shapes.

    Attributes:
        alike_s: Each shape repeated on its own session, one shape after the other.
        one_session_s: The shapes alternate on one session.
        two_sessions_s: The shapes alternate, each on its own session.
    """

    alike_s: float
    one_session_s: float
    two_sessions_s: float

    def as_dict(self) -> dict[str, float]:
        """Milliseconds and ratios as a JSON-ready dict."""
        return {
            "alike_ms": round(1000 * self.alike_s, 2),
            "one_session": round(self.one_session_s / self.alike_s, 2),
            "two_sessions": round(self.two_sessions_s / self.alike_s, 2),
        }


def alternate(runners: Sequence[Callable[[Any], object]], shapes: tuple[Shape, Shape], rounds: int) -> Alternation:
    """Run two sessions of a model on two shapes, first repeated and then alternating."""
    tensors = [np.ones(shape, np.float32) for shape in shapes]
    for runner in runners:
        for tensor in tensors:
            runner(tensor)
    first, second = runners
    alike_s = (_mean_s([(first, tensors[0])], rounds) + _mean_s([(second, tensors[1])], rounds)) / 2
    one_session_s = _mean_s([(first, tensor) for tensor in tensors], rounds)
    two_sessions_s = _mean_s(list(zip(runners, tensors, strict=True)), rounds)
    return Alternation(alike_s, one_session_s, two_sessions_s)


def _mean_s(runs: Sequence[tuple[Callable[[Any], object], Any]], rounds: int) -> float:
    """Mean seconds of a run, after one warm-up round."""
    for run, tensor in runs:
        run(tensor)
    began_s = time.perf_counter()
    for _ in range(rounds):
        for run, tensor in runs:
            run(tensor)
    return (time.perf_counter() - began_s) / (rounds * len(runs))


def lines_by_batch(run: Callable[[Any], object], counts: Sequence[int], rounds: int) -> dict[str, float]:
    """Lines per second by lines in a run, until the GPU runs out of memory."""
    from ocrsvc.engines.ppocr.runtime.session import session_errors

    paces: dict[str, float] = {}
    for count in counts:
        try:
            run_s = _mean_s([(run, np.ones((count, 3, 48, LINE_PX), np.float32))], rounds)
        except session_errors() as error:
            print(f"stopped at {count} lines in a run: {str(error)[:100]}")
            break
        paces[str(count)] = round(count / run_s, 1)
    return paces


def measure_shapes(config: SessionConfig, counts: Sequence[int] = LINES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure shape changes of both models and the recognizer's lines per second; `config` has one stream."""
    figures: dict[str, Any] = {}
    of_each: dict[Kind, tuple[Shape, Shape]] = {"detection": DETECTION_SHAPES, "recognition": RECOGNITION_SHAPES}
    for name, shapes in of_each.items():
        sessions = [open_session(name, config) for _ in shapes]
        runs = [runner_of(session, name == "recognition") for session in sessions]
        figures[name] = alternate(runs, shapes, rounds).as_dict()
        print(f"two shapes in turn, {name}: {figures[name]}", flush=True)
    figures["lines_per_s"] = lines_by_batch(runs[0], counts, rounds)
    print(f"lines per second ({LINE_PX} px wide) by lines in a run: {figures['lines_per_s']}", flush=True)
    return figures


def open_session(name: Kind, config: SessionConfig) -> ModelRunner:
    """Open a new session of a built-in model."""
    from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, default_folder
    from ocrsvc.engines.ppocr.runtime.model_parts import built_in_part
    from ocrsvc.engines.ppocr.runtime.open_model import open_model

    return open_model(built_in_part(name), config, ModelCache(default_folder()))


def runner_of(session: ModelRunner, decides: bool) -> Callable[[Any], object]:  # noqa: FBT001  a fact of the model
    """A function that runs the session; for the recognizer without logits, whose copy would cost time."""
    from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS

    return lambda tensor: session.run(tensor, OUTPUTS if decides else None)
