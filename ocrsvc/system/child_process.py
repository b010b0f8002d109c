"""Starts our own modules in child processes, and sends requests to sandboxed ones.

The child's side is `ocrsvc.system.child_program`. Both sides send messages of at most MESSAGE_BYTES over a
SOCK_SEQPACKET socket, which preserves message boundaries: a partial or endless line cannot block the reader.
"""

import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

from ocrsvc.errors import ResourcesExhausted
from ocrsvc.results import Check
from ocrsvc.system.child_program import MESSAGE_BYTES
from ocrsvc.system.sandbox import lower_priority

LOGGER: Final = logging.getLogger("ocrsvc.imaging")

# Time limit for a process to load its libraries: usually 45 ms, much more on a busy machine.
START_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.25
_END_S: Final = 5.0
_RETRY_AFTER_S: Final = 2
# An answer with a larger number is malformed: our programs send none.
_LARGEST: Final = 1e15


class ChildFailed(Exception):
    """The process has ended or has sent a malformed message."""


class ChildLate(ChildFailed):
    """The process has not answered in time."""


def describe_exit(code: int) -> str:
    """Describe a process's exit code: "exit code 1" or, if it is negative, the signal's name, such as "SIGSEGV"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class Program:
    """One of our modules running in a child process; call `end` to stop it.

    Its standard input is a SOCK_SEQPACKET socket connected to `wire`. It can import what this process can. It has its
    own process group, so that a terminal's signals do not end it before its parent. It inherits the open `files`. Its
    environment is `environ` and PYTHONPATH; it writes to `output`, by default where this process writes.

    Raises OSError if the system refuses a process or socket; then nothing stays open.
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
        """Close the connection, and kill the process unless it exits within `after_s`."""
        self.wire.close()
        # If the killed process is not dead in time, `subprocess` reaps it when the next process is started.
        with suppress(subprocess.TimeoutExpired):
            try:
                self.process.wait(after_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_END_S)


class ChildProcess:
    """A sandboxed child process that answers the requests of one thread; call `close` to end it.

    Its module calls `child_program.apply_limits` and `serve`; it may write files of at most `file_bytes`. `check` is
    called while the process starts, and may raise. Raises ResourcesExhausted if the process cannot be started.
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
            # The exit code or, if a signal ended the process, the negative signal number.
            _log_once("A process of %s did not start: code %s", module, self._program.process.returncode)
            raise ResourcesExhausted(
                "The service could not start a process that reads documents.", "Send the request again.", _RETRY_AFTER_S
            ) from failure

    def ask(self, request: str, limit_s: float, check: Check) -> tuple[str, list[float]]:
        """Send a request (a word and numbers); returns the answer, a word and numbers.

        Raises ChildFailed without a valid answer, ChildLate after `limit_s`, and what `check` raises. Any of these
        errors kills the process.
        """
        with _calling_on_failure(self.close):
            try:
                self._program.wire.send(f"{math.ceil(limit_s)} {request}".encode("ascii"), socket.MSG_DONTWAIT)
            except OSError as error:
                raise ChildFailed("takes no request") from error
            return self._receive(limit_s, check)

    def close(self) -> None:
        """Kill the process."""
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
    """Log an OSError that the block raises, and raise ResourcesExhausted instead."""
    try:
        yield
    except OSError as error:
        _log_once("The system refuses resources for reading a document: %s", error.strerror)
        raise ResourcesExhausted(
            f"The system refuses resources for reading a document: {error.strerror}.",
            "Send the request again in a moment.",
            _RETRY_AFTER_S,
        ) from error


@contextmanager
def _calling_on_failure(close: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        close()
        raise


def _spawn(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, process_group=0, **options)  # noqa: S603  our own program


def _read_answer(message: bytes) -> tuple[str, list[float]]:
    """Parse a word and numbers. Raises ValueError if they are malformed, or a number is not below 1e15."""
    if not 0 < len(message) <= MESSAGE_BYTES:
        raise ValueError("empty or too long")
    word, *texts = message.decode("ascii").split(" ")
    numbers = [float(text) for text in texts]
    if not all(abs(number) < _LARGEST for number in numbers):
        raise ValueError("not a finite number below 1e15")
    return word, numbers


def _check_ready(word: str, numbers: Sequence[float]) -> None:
    """Raise ChildFailed unless the process is ready; log a warning if the kernel lacks Landlock or seccomp."""
    if (word, len(numbers)) != ("ready", 2):
        raise ChildFailed("is not ready")
    landlock, seccomp = numbers
    if not landlock:
        _log_once("The kernel has no Landlock: a process that reads documents could read any file")
    if not seccomp:
        _log_once(
            "The kernel has no seccomp: a process that reads documents could connect, write files and start programs"
        )


@cache
def _log_once(message: str, *values: object) -> None:
    """Log a warning only once per message and values, because it would otherwise be repeated for every document."""
    LOGGER.warning(message, *values)
