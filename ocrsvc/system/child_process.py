"""Starts, asks and ends a program of ours in a process of its own, within limits of time and size.

The program's side is `ocrsvc.system.child_program`. Both sides send one message at a time, of MESSAGE_BYTES at most,
over a socket that keeps messages apart: there is no half a line to wait for, and no endless one.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

from ocrsvc.errors import ResourcesExhausted
from ocrsvc.system.child_program import MESSAGE_BYTES
from ocrsvc.system.sandbox.restrict import lower_priority

LOGGER: Final = logging.getLogger("ocrsvc.imaging")

Check = Callable[[], object]
"""Raises what ends the request when nobody waits for it any more."""

READ_ONLY: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Seals of a file in memory that stays as it is."""

START_LIMIT_S: Final = 30.0
"""For a process to load its libraries: 45 ms, and much more on a machine that is busy."""

_POLL_S: Final = 0.25
_END_S: Final = 5.0
_RETRY_AFTER_S: Final = 2
# Beyond what any of our programs counts or measures.
_LARGEST: Final = 1e15


class ChildFailed(Exception):
    """The process has ended, or has said what it must not."""


class ChildLate(Exception):
    """The process has not answered in time."""


class ChildProcess:
    """A process that is ready to be asked; `close` it. For one thread.

    Args:
        program: A module that calls `child_program.apply_limits` and `serve`.
        memory_bytes: The most memory of its own that it may take.
        file_bytes: To which a file may grow on which it writes.
        files: Numbers of open files that it gets.
        check: Asked while it starts.

    Raises:
        ResourcesExhausted: The system gives no process, or it does not get ready.
    """

    def __init__(self, program: str, memory_bytes: int, file_bytes: int, files: tuple[int, ...], check: Check) -> None:
        with resources_exhausted():
            self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, _closed_on_failure(self._wire):
                self._process = _spawn(program, [os.getpid(), memory_bytes, file_bytes, *files], theirs, files)
                lower_priority(self._process.pid)
        self.is_open = True
        try:
            with _closed_on_failure(self):
                _check_ready(*self._receive(START_LIMIT_S, check))
        except (ChildFailed, ChildLate) as failure:
            # It has ended by itself, or was ended here; then the code is that of the signal.
            _log_once("A process of %s did not start: code %s", program, self._process.returncode)
            raise ResourcesExhausted(
                "A process of the service that reads documents did not start.", "Send it again.", _RETRY_AFTER_S
            ) from failure

    def ask(self, request: str, limit_s: float, check: Check) -> tuple[str, list[float]]:
        """Ask, and wait for the answer. Whatever is raised, the process is ended.

        Args:
            request: A word, and numbers.
            limit_s: Seconds that the answer may take.
            check: Asked meanwhile.

        Returns:
            A word, and numbers that are finite and of a sensible size.

        Raises:
            ChildFailed, ChildLate: There is no answer.
        """
        with _closed_on_failure(self):
            try:
                self._wire.send(f"{math.ceil(limit_s)} {request}".encode("ascii"), socket.MSG_DONTWAIT)
            except OSError as error:
                raise ChildFailed("takes no request") from error
            return self._receive(limit_s, check)

    def close(self) -> None:
        """End the process, whatever it does."""
        if not self.is_open:
            return
        self.is_open = False
        self._process.kill()
        self._wire.close()
        # One that the system does not let die is reaped when the next is started.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def _receive(self, limit_s: float, check: Check) -> tuple[str, list[float]]:
        stop_s = time.monotonic() + limit_s
        poll = select.poll()
        poll.register(self._wire, select.POLLIN)
        while not poll.poll(_POLL_S * 1000):
            check()
            if time.monotonic() >= stop_s:
                raise ChildLate
        try:
            return _read_answer(self._wire.recv(MESSAGE_BYTES + 1, socket.MSG_DONTWAIT))
        except (OSError, ValueError) as error:
            raise ChildFailed("answers nonsense") from error


@contextmanager
def resources_exhausted() -> Iterator[None]:
    """What the system refuses inside the block is the service's fault, and passes."""
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
def _closed_on_failure(thing: ChildProcess | socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        thing.close()
        raise


def open_memory(name: str, data: bytes = b"", seals: int = 0) -> int:
    """A file in memory, with these bytes and then these seals. Raises OSError, and leaves nothing behind."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(file)
        raise
    return file


def _spawn(
    program: str, arguments: Sequence[int], wire: socket.socket, files: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  our own program
        [sys.executable, "-m", program, *map(str, arguments)],
        stdin=wire.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=files,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.environ.get("PATH", "")},
    )


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
    match word, numbers:
        case "ready", [landlock, seccomp]:
            _log_restrictions(int(landlock), seccomp=bool(seccomp))
        case _:
            raise ChildFailed("is not ready")


def _log_restrictions(landlock: int, *, seccomp: bool) -> None:
    if not landlock:
        _log_once("There is no Landlock here: a process that reads a PDF could open any file for reading")
    if not seccomp:
        _log_once("There is no seccomp here: a process that reads a PDF could connect, write files and start programs")


@cache
def _log_once(message: str, *facts: object) -> None:
    """A warning, once in a process for the same facts: a machine without resources would write nothing else."""
    LOGGER.warning(message, *facts)
