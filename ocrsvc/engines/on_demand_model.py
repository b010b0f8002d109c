"""An additional ONNX Runtime model on the CPU, opened when it is first used. Its runs do not overlap."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.errors import EngineFailed
from ocrsvc.results import Check, no_check

_CHECK_S: Final = 0.1  # a page that waits for the model calls `check` at this interval


@dataclass(eq=False, slots=True)
class OnDemandModel:
    """A model with one input, which most processes never need. Threads may share it.

    Threads take turns, so that memory does not grow with their number, and a page's result does not depend on load.
    """

    _file: Path
    _request_option: str  # the request option that needs the model, for error messages
    _session_options: Mapping[str, str] = field(default_factory=dict)
    _session: Any = None
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def run(self, tensor: NDArray[np.float32], check: Check = no_check) -> list[Any]:
        """The outputs for one (1, 3, H, W) input, without axis 0; calls `check` meanwhile. Raises EngineFailed."""
        check()
        while not self._turn.acquire(timeout=_CHECK_S):
            check()
        try:
            if self._session is None:
                self._session = self._open()
            return [output[0] for output in self._session.run(None, {self._session.get_inputs()[0].name: tensor})]
        finally:
            self._turn.release()

    def _open(self) -> Any:
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise EngineFailed(
                f"{self._request_option}=true needs the package onnxruntime, which is not installed.",
                f"Install the extra cpu, or leave out {self._request_option}.",
            ) from error
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False
        for name, value in self._session_options.items():
            options.add_session_config_entry(name, value)
        return ort.InferenceSession(self._file.read_bytes(), options, providers=[("CPUExecutionProvider", {})])
