"""Runs models on the CPU under OpenVINO, in bfloat16 if the CPU supports it (AMX, AVX512-BF16).

OpenVINO compiles kernels for every new input shape (20 to 70 ms), and caches them with memory in proportion to the
shape; so the pipeline uses few line widths, and the cache is limited. Results are bit-identical whatever a session ran
before, with one thread or several.

A recognizer consists of two models. The second one is the final matrix product with 18,710 classes. It runs over the
steps of many lines together, because runs of the first model push its weights out of a core's cache. The number of
steps is fixed, so its kernels are compiled once. A step's class depends on its own features alone, to the last bit.

OpenVINO starts threads when it is imported, so it is imported only here, after the fork.
"""

import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, InputFormat
from ocrsvc.engines.ppocr.runtime.session import ModelRunner
from ocrsvc.system.allocator import map_large_blocks, register_holder

LOG: Final = logging.getLogger("ocrsvc.ppocr")

PROVIDER: Final = "OpenVINO"

# Limit of the kernels that oneDNN caches for all sessions. The kernels of two line widths or one page size are enough,
# because all sessions compile a new width one right after the other. With 500, ten page sizes took 33 MB more.
_SHARED_KERNELS: Final = 150
# Importing openvino imports these if they are installed. The first sends an event to Google Analytics and writes a file
# to the home folder; the second loads converters and TensorFlow's frontend, which take 5 MB.
_UNNEEDED: Final = ("openvino_telemetry", "openvino.tools.ovc")

# Errors that OpenVINO raises. AttributeError is raised if an empty folder named openvino was imported.
FAULTS: Final = (AttributeError, ImportError, OSError, RuntimeError)


def is_installed() -> bool:
    """Whether the package is installed; does not import it."""
    return importlib.util.find_spec("openvino") is not None


@cache
def computes_bf16() -> bool:
    """Whether the CPU supports bfloat16 under OpenVINO; False if OpenVINO does not work."""
    if not is_installed():
        return False
    try:
        return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    except FAULTS as error:
        LOG.warning("OpenVINO is installed but does not work, so it is not used: %s", error)
        return False


@cache
def library() -> Any:
    """The module openvino; it must be imported only here, because the first call configures it."""
    map_large_blocks()
    # The library reads this once, when it is loaded; its default is 1,024.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_SHARED_KERNELS))
    for name in _UNNEEDED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None makes its import fail
    return importlib.import_module("openvino")


@cache
def core() -> Any:
    """OpenVINO's Core."""
    return library().Core()


class _Request:
    """An openvino.InferRequest of an openvino.CompiledModel; runs of several threads take turns."""

    def __init__(self, compiled: Any) -> None:
        self._compiled, self._request = compiled, compiled.create_infer_request()
        self._given: Any = None  # the openvino.Tensor of the last run's input, to which the request refers
        self._turn, self._release_requested = threading.Lock(), False
        register_holder(self)

    def release_memory(self) -> None:
        """See system.allocator.Holder: free the memory now or, if a run is in progress, when it ends."""
        self._release_requested = True
        if self._turn.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._turn.release()

    def _release(self) -> None:
        self._release_requested = False
        self._compiled.release_memory()
        # A new request refers to no input.
        self._request, self._given = self._compiled.create_infer_request(), None


class OpenVinoSession(_Request, ModelRunner):
    """One model under OpenVINO.

    `compiled` is an openvino.CompiledModel for inputs of any size, floats or pixels. A run with more input values than
    `arena_values` frees its memory afterwards; other runs keep it for the next run, until `release_memory` is called.
    """

    def __init__(self, compiled: Any, metadata: dict[str, str], arena_values: int, taken: InputFormat = USUAL) -> None:
        super().__init__(compiled)
        self.takes_pixels = any(entry.get_element_type().get_type_name() == "u8" for entry in compiled.inputs)
        self._outputs = [output.any_name for output in compiled.outputs]
        self._arena_values = arena_values
        self.provider, self.device, self.batched = PROVIDER, "cpu", False
        bf16 = str(compiled.get_property("INFERENCE_PRECISION_HINT")).endswith("bfloat16'>")
        self.precision = "bf16" if bf16 else "fp32"
        self.metadata, self.input_format = metadata, taken

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """See ModelRunner; returns copies of the results."""
        with self._turn:
            # Shared, because the request and the graph would each keep a copy; kept until there is another input.
            given = library().Tensor(np.require(array, requirements=("C", "W")), shared_memory=True)
            self._request.set_input_tensor(given)
            self._given = given
            self._request.infer()
            results = [np.array(self._request.get_tensor(name).data) for name in outputs or self._outputs]
            if self._release_requested or 0 < self._arena_values < array.size:
                self._release()
        return results


Head = tuple[NDArray[np.float32], NDArray[np.float32]]
ReadHead = Callable[[], Head]
Features = NDArray[np.float32]  # (T, F) for a line of T steps
STEPS: Final = 64  # steps per run of the classifier; their scores, 7 MB, about fill one core's share of the caches
# Output name of graph/rewrite.py, which cannot be imported here because it needs the package onnx.
_LOGITS: Final = "logits"


class Classifier(_Request):
    """The second model of a recognizer, an openvino.CompiledModel of `rewrite.make_classifier`, for STEPS steps."""

    def choose(self, rows: Features, begins: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(N,) best class per step (N, F); (N,) its probability at each character's first step, 0 at others."""
        count = len(rows)
        padded = -(-count // STEPS) * STEPS
        features, flags = np.zeros((padded, rows.shape[1]), np.float32), np.zeros(padded, bool)
        features[:count], flags[:count] = rows, begins
        # The classifier runs over STEPS steps and does not see the one before: let the first step begin a character.
        flags[::STEPS] = True
        best, shares = np.empty(padded, np.int64), np.zeros(padded, np.float32)
        with self._turn:
            given = [self._request.get_input_tensor(index).data for index in range(2)]
            for start in range(0, padded, STEPS):
                part = slice(start, start + STEPS)
                given[0][:], given[1][:] = features[part], flags[part]
                self._request.infer(share_outputs=True)
                best[part] = self._request.get_output_tensor(0).data
                first = first_steps(best[part], flags[part])
                shares[part][first] = self._request.get_output_tensor(1).data
            if self._release_requested:
                self._release()
        return best[:count], shares[:count]


class OpenVinoRecognizer(OpenVinoSession):
    """Both models of a recognizer in one session; `run` reads one line.

    `body` is an openvino.CompiledModel of `rewrite.keep_features`, for lines of any width; sessions may share
    `classifier`. `read_head` reads the classifier's weights, which `logits` needs.
    """

    def __init__(
        self,
        body: Any,
        classifier: Classifier,
        metadata: dict[str, str],
        read_head: ReadHead,
        taken: InputFormat = USUAL,
    ) -> None:
        super().__init__(body, metadata, 0, taken)
        self._read_head, self._classifier = read_head, classifier

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """See ModelRunner; returns classes and probabilities, and logits if `outputs` names them."""
        features = self.features(array)
        results: list[Any] = list(self.classify([features])[0])
        return [*results, self.logits(features)] if outputs is not None and _LOGITS in outputs else results

    def features(self, tensor: Any) -> Features:
        """Compute the features of one line, (1, 3, H, W) float32."""
        return cast(Features, super().run(tensor)[0])

    def logits(self, features: Features) -> NDArray[np.float32]:
        """(T, C) scores of all classes. Raises BadModel if the model's file was removed."""
        weights, bias = self._read_head()
        return features @ weights + bias

    def classify(self, lines: Sequence[Features]) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """For each line, the best class of each step, and the probability of each character at its first step."""
        lengths = [len(line) for line in lines]
        starts = np.cumsum([0, *lengths[:-1]])
        rows = np.concatenate(lines)
        begins = np.zeros(len(rows), bool)
        begins[starts] = True
        best, shares = self._classifier.choose(rows, begins)
        first = first_steps(best, begins)
        ends = starts + lengths
        inside = zip(np.searchsorted(first, starts), np.searchsorted(first, ends), strict=True)
        return [
            (best[start:end], shares[first[left:right]])
            for start, end, (left, right) in zip(starts, ends, inside, strict=True)
        ]


def first_steps(best: NDArray[np.int64], begins: NDArray[np.bool_] | None = None) -> NDArray[np.intp]:
    """(N,) first steps of the runs of equal non-blank classes (T,); a run also starts where `begins` (T,) is true."""
    changed = np.concatenate(([True], best[1:] != best[:-1]))
    return np.flatnonzero((changed if begins is None else changed | begins) & (best != 0))
