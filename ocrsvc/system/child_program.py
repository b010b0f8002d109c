"""The child's side of `ocrsvc.system.child_process`: sandboxes its own process, then answers requests.

Its standard input is a SOCK_SEQPACKET socket. After it has loaded its libraries and given up its rights, it sends
`ready LANDLOCK SECCOMP`. Then it answers each request `SECONDS WORD NUMBER…` with `WORD NUMBER…`.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from ocrsvc.system.sandbox import end_with_parent, limit_resources, raise_oom_score, restrict

# Longest request or answer, in bytes.
MESSAGE_BYTES: Final = 256
_CONNECTION: Final = 0
_OPEN_FILES: Final = 64
# The parent kills a late program. If the parent is stopped itself, an alarm ends the program this much later.
_GRACE_S: Final = 5


class RequestFailed(Exception):
    """Raised to answer a request with an error: a word such as `damaged`, and numbers."""

    def __init__(self, word: str, *numbers: float) -> None:
        super().__init__(word, *numbers)
        self.answer = pack(word, *numbers)


def apply_limits() -> tuple[int, ...]:
    """Apply the limits in this program's arguments; returns the file descriptors that the program inherited."""
    parent, memory_bytes, file_bytes, *files = map(int, sys.argv[1:])
    end_with_parent(parent)
    limit_resources(memory_bytes, file_bytes, _OPEN_FILES)
    raise_oom_score()
    return tuple(files)


def serve(answers: Mapping[str, Callable[..., str]], readable: Iterable[str]) -> None:
    """Sandbox the process, which may then open only `readable` paths, and answer until the parent disconnects.

    `answers` maps the word of a request to a function, which gets the request's numbers and may raise RequestFailed.
    """
    restrictions = restrict(readable)
    with suppress(BrokenPipeError, ConnectionResetError):
        _send(pack("ready", restrictions.landlock, restrictions.seccomp))
        while 0 < len(request := os.read(_CONNECTION, MESSAGE_BYTES + 1)) <= MESSAGE_BYTES:
            seconds, word, *numbers = request.decode("ascii").split(" ")
            signal.alarm(int(seconds) + _GRACE_S)
            _send(_answer(answers[word], map(int, numbers)))
            signal.alarm(0)


def pack(word: str, *numbers: float) -> str:
    """Format an answer as a message."""
    return " ".join([word, *(repr(float(number)) for number in numbers)])


def _answer(answer: Callable[..., str], numbers: Iterable[int]) -> str:
    try:
        return answer(*numbers)
    except RequestFailed as failure:
        return failure.answer


def _send(answer: str) -> None:
    os.write(_CONNECTION, answer.encode("ascii"))
