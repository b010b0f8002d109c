"""A model beside those of the engine, under ONNX Runtime on the CPU: opened when first needed, one run at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.errors import EngineFailed
from ocrsvc.results import Check, no_check

_CHECK_S: Final = 0.1  # how long a page waits for its turn before it asks whether it is still wanted


class OnDemandModel:
    """A model of one input that most processes never need; safe to share between threads, which take turns.

    One run at a time keeps what runs need from growing with the number of threads. A run has one thread, so that a page
    reads the same alone and among others. `request_option` is what asks for it, as a message names it.
    """

    def __init__(
        self, file: Path, request_option: str, session_options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._file = file
        self._request_option = request_option
        self._session_options = session_options
        self._session: Any = None
        self._turn = threading.Lock()

    def run(self, tensor: NDArray[np.float32], check: Check = no_check) -> list[Any]:
        """All outputs for one (1, 3, H, W) input, the first axis of each left out; `check` is called while it waits.

        Raises EngineFailed: ONNX Runtime is not installed.
        """
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
                f"{self._request_option}=true needs the package onnxruntime, which is not installed here.",
                f"Install the extra: ocrsvc[cpu]; or leave {self._request_option} out.",
            ) from error
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False
        for name, value in self._session_options.items():
            options.add_session_config_entry(name, value)
        return ort.InferenceSession(self._file.read_bytes(), options, providers=[("CPUExecutionProvider", {})])
