"""The program's side of `ocrsvc.system.child_process`: takes on its limits, then answers requests.

Its standard input is a socket that keeps messages apart. It sends `ready LANDLOCK SECCOMP` once it has loaded what it
needs and has given up everything else; then it answers each request, `SECONDS WORD NUMBER…`, with `WORD NUMBER…`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from ocrsvc.system.sandbox import end_with_parent, limit_resources, raise_oom_score, restrict

MESSAGE_BYTES: Final = 256
"""The most that a request or an answer holds."""

_CONNECTION: Final = 0
_OPEN_FILES: Final = 64
# The parent ends what is late. Should it be stopped itself, the program ends so much later.
_GRACE_S: Final = 5


class RequestFailed(Exception):
    """Why a request cannot be answered: a word for the parent, and its numbers."""

    def __init__(self, word: str, *numbers: float) -> None:
        super().__init__(word, *numbers)
        self.answer = pack(word, *numbers)


def apply_limits() -> tuple[int, ...]:
    """Take on the limits that the parent has set; gives the numbers of the files that it has passed."""
    parent, memory_bytes, file_bytes, *files = map(int, sys.argv[1:])
    end_with_parent(parent)
    limit_resources(memory_bytes, file_bytes, _OPEN_FILES)
    raise_oom_score()
    return tuple(files)


def serve(answers: Mapping[str, Callable[..., str]], readable: Iterable[str]) -> None:
    """Give up all but `readable` files and folders, and answer until the parent closes the connection.

    What answers a word of a request gets its numbers, and may raise RequestFailed.
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
    """An answer."""
    return " ".join([word, *(repr(float(number)) for number in numbers)])


def _answer(answer: Callable[..., str], numbers: Iterable[int]) -> str:
    try:
        return answer(*numbers)
    except RequestFailed as wrong:
        return wrong.answer


def _send(answer: str) -> None:
    os.write(_CONNECTION, answer.encode("ascii"))
