"""The child's side of `ocrsvc.system.child_process`: restricts itself, then answers requests.

Its standard input is a SOCK_SEQPACKET socket. It sends `ready LANDLOCK SECCOMP` after it has loaded its libraries and
restricted itself; then it answers each request, `SECONDS WORD NUMBER…`, with `WORD NUMBER…`.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from ocrsvc.system.sandbox import end_with_parent, limit_resources, raise_oom_score, restrict

# Longest request or answer.
MESSAGE_BYTES: Final = 256
_CONNECTION: Final = 0
_OPEN_FILES: Final = 64
# The parent kills a late program. If the parent is stopped itself, the program ends this much later.
_GRACE_S: Final = 5


class RequestFailed(Exception):
    """A request failed; the parent gets this word and these numbers."""

    def __init__(self, word: str, *numbers: float) -> None:
        super().__init__(word, *numbers)
        self.answer = pack(word, *numbers)


def apply_limits() -> tuple[int, ...]:
    """Apply the limits in the arguments; returns the descriptors of the inherited files."""
    parent, memory_bytes, file_bytes, *files = map(int, sys.argv[1:])
    end_with_parent(parent)
    limit_resources(memory_bytes, file_bytes, _OPEN_FILES)
    raise_oom_score()
    return tuple(files)


def serve(answers: Mapping[str, Callable[..., str]], readable: Iterable[str]) -> None:
    """Restrict the process to `readable` files and folders, then answer until the parent closes the connection.

    `answers` maps a request's word to a function of its numbers, which may raise RequestFailed.
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
    """Format an answer."""
    return " ".join([word, *(repr(float(number)) for number in numbers)])


def _answer(answer: Callable[..., str], numbers: Iterable[int]) -> str:
    try:
        return answer(*numbers)
    except RequestFailed as failure:
        return failure.answer


def _send(answer: str) -> None:
    os.write(_CONNECTION, answer.encode("ascii"))
