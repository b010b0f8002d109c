"""The recognizer under OpenVINO, in two models: one makes features of a line, the other chooses classes for many steps.

The second one is the last product, 18,710 classes for each step, whose weights do not stay in a core's cache while a
line goes through the rest: chosen for the steps of many lines together they are read once. It always runs over the same
number of steps, so its kernels are compiled once and its memory does not grow with the length of a line. What is chosen
for a step depends on that step's features alone, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, InputFormat
from ocrsvc.engines.ppocr.runtime.openvino_session import OpenVinoSession

Head = tuple[NDArray[np.float32], NDArray[np.float32]]

Features = NDArray[np.float32]
"""(T, F) of a line of T steps."""

STEPS: Final = 64
"""In one run of the classifier: its scores, 7 MB, are about what a core's share of the caches holds."""

# As graph/rewrite.py calls it, which is not imported because it needs the package onnx.
_LOGITS: Final = "logits"


class OpenVinoRecognizer(OpenVinoSession):
    """Both models in one session; `run` reads one line as a Session does.

    Args:
        body: An openvino.CompiledModel of `rewrite.keep_features`, for lines of any width.
        classifier: One of `rewrite.make_classifier` for STEPS steps.
        metadata: The model's own.
        read_head: Reads the last product, weights (F, C) and bias (C,), when scores are asked for.
        input_format: What the model takes.
    """

    def __init__(
        self,
        body: Any,
        classifier: Any,
        metadata: dict[str, str],
        read_head: Callable[[], Head],
        input_format: InputFormat = USUAL,
    ) -> None:
        super().__init__(body, metadata, 0, input_format)
        self._read_head = read_head
        self._compiled_classifier = classifier
        self._classifier = classifier.create_infer_request()

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """See Session; the classes and the probabilities, and logits where they are named."""
        features = self.features(array)
        found: list[Any] = list(self.classify([features])[0])
        return [*found, self.logits(features)] if outputs is not None and _LOGITS in outputs else found

    def features(self, tensor: Any) -> Features:
        """Of one line (1, 3, H, W) float32."""
        found: Features = super().run(tensor)[0]
        return found

    def logits(self, features: Features) -> NDArray[np.float32]:
        """(T, C) the scores of all classes, which few ask for. Raises BadModel: the model's file is gone."""
        weights, bias = self._read_head()
        found: NDArray[np.float32] = features @ weights + bias
        return found

    def classify(self, lines: Sequence[Features]) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """For each line the likeliest class of each step, and the probability of each character at its first step."""
        lengths = [len(line) for line in lines]
        starts = np.cumsum([0, *lengths[:-1]])
        rows = np.concatenate(lines)
        begins = np.zeros(len(rows), bool)
        begins[starts] = True
        best, shares = self._choose(rows, begins)
        first = _first_steps(best, begins)
        ends = starts + lengths
        inside = zip(np.searchsorted(first, starts), np.searchsorted(first, ends), strict=True)
        return [
            (best[start:end], shares[first[left:right]])
            for start, end, (left, right) in zip(starts, ends, inside, strict=True)
        ]

    def _choose(self, rows: Features, begins: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(N,) the class of each of (N, F) steps; (N,) its probability, where a character begins or a run does."""
        count = len(rows)
        padded = -(-count // STEPS) * STEPS
        features, flags = np.zeros((padded, rows.shape[1]), np.float32), np.zeros(padded, bool)
        features[:count], flags[:count] = rows, begins
        # What begins before a run is not known in it.
        flags[::STEPS] = True
        best, shares = np.empty(padded, np.int64), np.zeros(padded, np.float32)
        with self._turn:
            for start in range(0, padded, STEPS):
                part = slice(start, start + STEPS)
                self._classifier.infer([features[part], flags[part]], share_outputs=True)
                best[part] = self._classifier.get_output_tensor(0).data
                first = _first_steps(best[part], flags[part])
                shares[part][first] = self._classifier.get_output_tensor(1).data
            if self._release_asked:
                self._release()
        return best[:count], shares[:count]

    def _release(self) -> None:
        super()._release()
        self._compiled_classifier.release_memory()


def _first_steps(best: NDArray[np.int64], begins: NDArray[np.bool_]) -> NDArray[np.intp]:
    """As in the graph: the first step of each run of one class that is not blank, and of what begins there."""
    changed = begins.copy()
    changed[1:] |= best[1:] != best[:-1]
    return np.flatnonzero(changed & (best != 0))
