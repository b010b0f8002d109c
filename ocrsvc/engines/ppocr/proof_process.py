"""Proves runtimes in a child process, so that what only the proof needs does not stay in the worker's memory.

ONNX Runtime, the package onnx and the rejected runtimes take 49 MB. The child records its log messages, and the parent
logs them.
"""

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime_proof import Parts, Proof, prove_runtimes
from ocrsvc.system.sandbox import end_with_parent

LOG: Final = logging.getLogger("ocrsvc.ppocr")

_LONGEST_S: Final = 300  # usually 6 s
Message = tuple[int, str]  # level and text


def prove_in_child(parts: Parts, config: SessionConfig, cache: ModelCache) -> Sequence[Proof]:
    """Call `prove_runtimes` in a child process.

    It is called in this process if the child fails, or if the models are encrypted, because the key stays here.
    """
    if cache.is_encrypted:
        return prove_runtimes(parts, config, cache)
    try:
        ended = subprocess.run(  # noqa: S603  our own module
            [sys.executable, "-m", __name__, str(os.getpid())],
            input=pickle.dumps((parts, config, cache)),
            stdout=subprocess.PIPE,
            timeout=_LONGEST_S,
            check=True,
            process_group=0,  # so that a terminal's signals do not end it before this process
        )
        proofs, messages = pickle.loads(ended.stdout)  # noqa: S301  from our own child
    except (OSError, subprocess.SubprocessError, pickle.UnpicklingError, EOFError) as error:
        LOG.warning("The child process that should compare runtimes failed, so they are compared here: %s", error)
        return prove_runtimes(parts, config, cache)
    for level, text in messages:
        LOG.log(level, "%s", text)
    return list[Proof](proofs)


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append((record.levelno, record.getMessage()))


def _answer(request: bytes) -> bytes:
    """In the child: return the pickled proofs and log messages."""
    parts, config, cache = pickle.loads(request)  # noqa: S301  from our own parent
    recorder = _Recorder()
    LOG.addHandler(recorder)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    return pickle.dumps((list(prove_runtimes(parts, config, cache)), recorder.messages))


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.stdout.buffer.write(_answer(sys.stdin.buffer.read()))
