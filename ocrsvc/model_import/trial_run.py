"""Runs a recognizer that does not say what it takes, in a process of its own, which bounds what a bad one can do."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Final

from ocrsvc.errors import BadModel

_HEIGHTS_PX: Final = (48, 32, 64)
"""Of PP-OCR from version 3, before it, and of others."""
_WIDTH_PX: Final = 96
_LONGEST_S: Final = 60
_MEMORY_BYTES: Final = 6 << 30


def run_apart(content: bytes, name: str) -> tuple[int, int]:
    """Height in pixels of the lines that a recognizer takes, and the number of its classes. Raises BadModel."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ocrsvc.model_import.trial_run"],
            input=content,
            capture_output=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BadModel(f"{name} reads no line within {_LONGEST_S} s.", "Export the model once more.") from error
    words = done.stdout.decode("utf-8", "replace").split()
    if done.returncode or len(words) != 2:
        reason = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["its process was killed"])[-1]
        raise BadModel(f"{name} reads no line of {_HEIGHTS_PX} pixels: {reason[:300]}.", "Export the model once more.")
    return int(words[0]), int(words[1])


def _run(content: bytes) -> tuple[int, int]:
    """In the child: the first height that works, and the classes that come out. Raises what ONNX Runtime does."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    reason: Exception | None = None
    for height in _HEIGHTS_PX:
        line = np.zeros((1, 3, height, _WIDTH_PX), np.float32)
        try:
            (given,) = session.run(None, {session.get_inputs()[0].name: line})
        except Exception as error:  # noqa: BLE001  ONNX Runtime has no base class of its own
            reason = error
            continue
        if np.ndim(given) == 3:
            return height, int(np.shape(given)[2])
    raise ValueError(str(reason or "what comes out is no table of classes").replace("\n", " "))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST_S, _LONGEST_S))
    print(*_run(sys.stdin.buffer.read()))  # noqa: T201  what the caller reads
