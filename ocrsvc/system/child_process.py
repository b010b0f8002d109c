"""Starts and ends programs of ours in processes of their own, and asks those that are held to limits.

The side of a program that is asked is `ocrsvc.system.child_program`. Both sides send one message at a time, of
MESSAGE_BYTES at most, over a socket that keeps messages apart: there is no half a line to wait for, and no endless one.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

from ocrsvc.errors import ResourcesExhausted
from ocrsvc.system.child_program import MESSAGE_BYTES
from ocrsvc.system.sandbox import lower_priority

LOGGER: Final = logging.getLogger("ocrsvc.imaging")

Check = Callable[[], object]
"""Raises what ends a request that is no longer waited for."""

START_LIMIT_S: Final = 30.0
"""For a process to load its libraries: 45 ms, and much more on a machine that is busy."""

_POLL_S: Final = 0.25
_END_S: Final = 5.0
_RETRY_AFTER_S: Final = 2
# Beyond what any of our programs counts or measures.
_LARGEST: Final = 1e15


class ChildFailed(Exception):
    """The process has ended, or has said what it must not."""


class ChildLate(ChildFailed):
    """The process has not answered in time."""


class Program:
    """A module of ours that runs in a process of its own; `end` it.

    It has our connection to it as its standard input, imports what this process can import, and is in a process group
    of its own: what a terminal sends to the service's must not end it before its parent. It inherits the open `files`,
    gets `environ` and PYTHONPATH, and writes to `output`, or where we write. Our end, `wire`, keeps messages apart.

    Raises OSError where the system gives no process or connection; nothing is left open then.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[int] = (),
        files: Sequence[int] = (),
        *,
        environ: Mapping[str, str],
        output: int | None = None,
    ) -> None:
        self.wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = filter(None, [os.environ.get("PYTHONPATH"), *sys.path])
        with theirs, _calling_on_failure(self.wire.close):
            self.process = _spawn(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                pass_fds=files,
                env={**environ, "PYTHONPATH": os.pathsep.join(path)},
            )

    def end(self, after_s: float = 0.0) -> None:
        """Close the connection, and kill it unless it ends by itself within `after_s`."""
        self.wire.close()
        # One that the system does not let die is reaped when the next is started.
        with suppress(subprocess.TimeoutExpired):
            try:
                self.process.wait(after_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_END_S)


class ChildProcess:
    """A process that is ready to be asked, by one thread; `close` it.

    The module calls `child_program.apply_limits` and `serve`; it may write files of `file_bytes`. `check` is called
    while it starts. Raises ResourcesExhausted where the system gives no process, or it does not get ready.
    """

    def __init__(self, module: str, memory_bytes: int, file_bytes: int, files: tuple[int, ...], check: Check) -> None:
        limits = (os.getpid(), memory_bytes, file_bytes, *files)
        environ = {"PATH": os.environ.get("PATH", "")}
        with resources_exhausted():
            self._program = Program(module, limits, files, environ=environ, output=subprocess.DEVNULL)
        self.is_open = True
        lower_priority(self._program.process.pid)
        try:
            with _calling_on_failure(self.close):
                _check_ready(*self._receive(START_LIMIT_S, check))
        except ChildFailed as failure:
            # It has ended by itself, or was ended here; then the code is that of the signal.
            _log_once("A process of %s did not start: code %s", module, self._program.process.returncode)
            raise ResourcesExhausted(
                "A process of the service that reads documents did not start.", "Send it again.", _RETRY_AFTER_S
            ) from failure

    def ask(self, request: str, limit_s: float, check: Check) -> tuple[str, list[float]]:
        """Ask with a word and numbers; the answer is a word, and finite numbers of a sensible size.

        Raises ChildFailed without an answer, ChildLate without one in time, and what `check` raises; each ends it.
        """
        with _calling_on_failure(self.close):
            try:
                self._program.wire.send(f"{math.ceil(limit_s)} {request}".encode("ascii"), socket.MSG_DONTWAIT)
            except OSError as error:
                raise ChildFailed("takes no request") from error
            return self._receive(limit_s, check)

    def close(self) -> None:
        """End the process, whatever it does."""
        if self.is_open:
            self.is_open = False
            self._program.end()

    def _receive(self, limit_s: float, check: Check) -> tuple[str, list[float]]:
        stop_s = time.monotonic() + limit_s
        wire = self._program.wire
        wire.settimeout(_POLL_S)
        while True:
            try:
                return _read_answer(wire.recv(MESSAGE_BYTES + 1))
            except TimeoutError:
                check()
            except (OSError, ValueError) as error:
                raise ChildFailed("answers nonsense") from error
            if time.monotonic() >= stop_s:
                raise ChildLate


@contextmanager
def resources_exhausted() -> Iterator[None]:
    """What the system refuses in the block is the service's fault, and passes."""
    try:
        yield
    except OSError as error:
        _log_once("The system refuses what reading a document needs: %s", error.strerror)
        raise ResourcesExhausted(
            f"The system refuses what reading a document needs: {error.strerror}.",
            "Send it again in a moment.",
            _RETRY_AFTER_S,
        ) from error


@contextmanager
def _calling_on_failure(close: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        close()
        raise


def _spawn(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, process_group=0, **how)  # noqa: S603  our own program


def _read_answer(message: bytes) -> tuple[str, list[float]]:
    """Raises ValueError unless it is one short word and a few numbers that can be reckoned with."""
    if not 0 < len(message) <= MESSAGE_BYTES:
        raise ValueError("too long, or nothing")
    word, *texts = message.decode("ascii").split(" ")
    numbers = [float(text) for text in texts]
    if not all(abs(number) < _LARGEST for number in numbers):
        raise ValueError("a number that is none")
    return word, numbers


def _check_ready(word: str, numbers: Sequence[float]) -> None:
    """Raises ChildFailed unless a program says that it is ready, and what it is held to."""
    if (word, len(numbers)) != ("ready", 2):
        raise ChildFailed("is not ready")
    landlock, seccomp = numbers
    if not landlock:
        _log_once("There is no Landlock here: a process that reads a PDF could open any file for reading")
    if not seccomp:
        _log_once("There is no seccomp here: a process that reads a PDF could connect, write files and start programs")


@cache
def _log_once(message: str, *facts: object) -> None:
    """A warning, once in a process for the same facts: a machine without resources would write nothing else."""
    LOGGER.warning(message, *facts)
