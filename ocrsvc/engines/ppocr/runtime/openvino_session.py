"""Runs models on the CPU under OpenVINO, in bfloat16 where the processor computes in that (AMX, AVX512-BF16).

OpenVINO compiles kernels for every new shape of input (20 to 70 ms) and keeps them, with memory in proportion to the
shape; so the pipeline gives it few widths of lines, and how many kernels are kept is bounded. A session runs one input
at a time: a pool of them (session.py) lets several run. Sessions share the kernels that oneDNN's cache holds; what they
need besides is their own. A session gives the same bits whatever it ran before, and with one thread or several.

The recognizer is two models: one makes features of a line, the other, the last product of 18,710 classes for each
step, chooses classes for the steps of many lines together: its weights do not stay in a core's cache while a line goes
through the rest. It always runs over the same number of steps, so its kernels are compiled once and its memory does not
grow with the length of a line. What is chosen for a step depends on that step's features alone, to the last bit.

OpenVINO is imported in here only, when a model is opened or a runtime is chosen: it starts threads, and a process that
has them is not to be forked.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, InputFormat
from ocrsvc.engines.ppocr.runtime.session import ModelRunner
from ocrsvc.system.allocator import map_large_blocks, register_holder

LOG: Final = logging.getLogger("ocrsvc.ppocr")

PROVIDER: Final = "OpenVINO"

_SHARED_KERNELS: Final = 150
"""Kernels that all sessions of the process share, as oneDNN keeps them: those of two widths of lines or one size of
pages, since sessions compile a width one right after the other. 500 took 33 MB more after ten sizes of pages."""

_TELEMETRY: Final = "openvino_telemetry"

FAULTS: Final = (AttributeError, ImportError, OSError, RuntimeError)
"""Of the package; a folder of that name counts as one, with nothing in it."""


def is_installed() -> bool:
    """Whether the package is there; it is not imported."""
    return importlib.util.find_spec("openvino") is not None


def version() -> str:
    """The installed version; "" where there is none."""
    try:
        return metadata.version("openvino")
    except metadata.PackageNotFoundError:
        return ""


@cache
def computes_bf16() -> bool:
    """Whether this processor computes in bfloat16 under OpenVINO; False where OpenVINO does not work."""
    if not is_installed():
        return False
    try:
        return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    except FAULTS as error:
        LOG.warning("OpenVINO is installed and does not work, so it is not tried: %s", error)
        return False


@cache
def core() -> Any:
    """The library, loaded and set up when it is first asked for."""
    map_large_blocks()
    # Read once, when the library loads; oneDNN's own is 1,024.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_SHARED_KERNELS))
    # The package sends an event to Google Analytics, and writes a file into the home, whenever it is imported; without
    # this one it takes a stub that does nothing.
    sys.modules.setdefault(_TELEMETRY, None)  # type: ignore[arg-type]  # None means that it cannot be imported
    import openvino

    return openvino.Core()


class OpenVinoSession(ModelRunner):
    """One model under OpenVINO. Runs from several threads wait for each other.

    `compiled` is an openvino.CompiledModel for inputs of any size, floats or pixels. From an input of `arena_values`
    values on a run gives its memory back; what others leave is kept for the next run, until free memory goes back to
    the system.
    """

    def __init__(
        self, compiled: Any, metadata: dict[str, str], arena_values: int, input_format: InputFormat = USUAL
    ) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._turn = threading.Lock()
        self._release_asked = False
        register_holder(self)
        self.takes_pixels = any(one.get_element_type().get_type_name() == "u8" for one in compiled.inputs)
        self._outputs = [output.any_name for output in compiled.outputs]
        self._arena_values = arena_values
        self.provider, self.device, self.batched = PROVIDER, "cpu", False
        bf16 = str(compiled.get_property("INFERENCE_PRECISION_HINT")).endswith("bfloat16'>")
        self.precision = "bf16" if bf16 else "fp32"
        self.metadata, self.input_format = metadata, input_format

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """See ModelRunner; the arrays are the caller's own."""
        # Neither input nor outputs are shared with OpenVINO's threads, which would need the interpreter to let them go.
        with self._turn:
            self._request.infer([array], share_outputs=True)
            found = [np.array(self._request.get_tensor(name).data) for name in outputs or self._outputs]
            if self._release_asked or 0 < self._arena_values < array.size:
                self._release()
        return found

    def release_memory(self) -> None:
        """See system.allocator.Holder: at once, or at the end of the run under way."""
        self._release_asked = True
        if self._turn.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._turn.release()

    def _release(self) -> None:
        self._release_asked = False
        self._compiled.release_memory()


Head = tuple[NDArray[np.float32], NDArray[np.float32]]

Features = NDArray[np.float32]  # (T, F) of a line of T steps
STEPS: Final = 64  # in one run of the classifier: its scores, 7 MB, are about what a core's share of the caches holds

# As graph/rewrite.py calls it, which is not imported because it needs the package onnx.
_LOGITS: Final = "logits"


class OpenVinoRecognizer(OpenVinoSession):
    """Both models of a recognizer in one session; `run` reads one line.

    `body` is an openvino.CompiledModel of `rewrite.keep_features`, for lines of any width, `classifier` one of
    `rewrite.make_classifier` for STEPS steps; `read_head` reads the last product when scores are asked for.
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
        """See ModelRunner; the classes and the probabilities, and logits where they are named."""
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
        first = first_steps(best, begins)
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
                first = first_steps(best[part], flags[part])
                shares[part][first] = self._classifier.get_output_tensor(1).data
            if self._release_asked:
                self._release()
        return best[:count], shares[:count]

    def _release(self) -> None:
        super()._release()
        self._compiled_classifier.release_memory()


def first_steps(best: NDArray[np.int64], begins: NDArray[np.bool_] | None = None) -> NDArray[np.intp]:
    """(N,) the first step of each run of one class (T,) that is not blank, as in the graph; `begins` begins one too."""
    changed = np.concatenate(([True], best[1:] != best[:-1]))
    return np.flatnonzero((changed if begins is None else changed | begins) & (best != 0))
