"""What does a worker know of one child, and how does it speak with it? One thread at a time uses a child."""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import orjson

from ocrsvc.engines.isolated.area import Area
from ocrsvc.engines.isolated.exchange import (
    MESSAGE_BYTES,
    Ready,
    pack_tasks,
    unpack_answers,
    unpack_failure,
    unpack_ready,
)
from ocrsvc.engines.isolated.nursery import Nursery
from ocrsvc.errors import OcrsvcError
from ocrsvc.formats.packed import Nonsense
from ocrsvc.records import Page, Task

_T = TypeVar("_T")

HANG: Final = "hang"
NONSENSE: Final = "nonsense"

_TIMEVAL: Final = struct.Struct("@ll")

# A killed process gives its memory back, on a GPU too, before the next one opens.
_DEATH_S: Final = 1.5


class ChildLost(Exception):
    """A child has died, or can no longer be believed or waited for.

    Args:
        cause: In a word or two, such as "SIGSEGV", "hang", "nonsense", "exit code 1".
        is_blamed: Whether it was at work on a request, which may then be what it died of.
    """

    def __init__(self, cause: str, *, is_blamed: bool) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_blamed = is_blamed


class Child:
    """One child process. It opens and warms its engine by itself; wait for that with `wait_ready`.

    Attributes:
        began_s: When it was asked for, monotonic seconds.
        ready: What it said when its engine was open; None before.
        images: Images that it has read.
        private_bytes: Its own memory after the last of them.

    Raises:
        ChildLost: There is no zygote to fork it.
    """

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._area = Area()
        self._socket, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with end:
            self._key = self._spawn(end)
        self.began_s = time.monotonic()
        self.ready: Ready | None = None
        self.images = 0
        self.private_bytes = 0

    def wait_ready(self, until_s: float) -> bool:
        """Wait (monotonic) until the engine is open and warm; whether it is.

        Raises:
            ChildLost: The child died while it opened.
            OcrsvcError: What the engine said when it could not be opened, mostly EngineUnavailable.
        """
        if self.ready is not None:
            return True
        try:
            message = self._receive(until_s, is_blamed=False)
        except TimeoutError:
            return False
        if "failed" in message:
            raise unpack_failure(message["failed"])
        self.ready = ready = _checked(unpack_ready, message.get("ready"))
        self.private_bytes = ready.private_bytes
        return True

    def read(self, tasks: Sequence[Task], until_s: float) -> list[Page | OcrsvcError]:
        """Have some images read.

        Args:
            tasks: As for engines.base.Handle.read.
            until_s: Monotonic seconds at which an answer that has not come counts as a hang; may be infinite.

        Raises:
            ChildLost: There is no answer, and there will be none.
            OcrsvcError: The engine failed as a whole.
        """
        message = pack_tasks(tasks, self._area)
        try:
            # One that has died idle does not take it; how it died is what comes next.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._socket.send(message)
            answer = self._receive(until_s, is_blamed=True)
        except TimeoutError:
            raise ChildLost(HANG, is_blamed=True) from None
        except OSError as error:
            raise ChildLost("gone", is_blamed=self._area.has_begun) from error
        self.images += len(tasks)
        return self._unpack(answer, tasks)

    def end(self, *, kill: bool = True) -> None:
        """Let go of the child: at once, or after what it closes by itself."""
        if kill:
            self._nursery.kill(self._key)
            self._see_it_die()
        self._socket.close()
        self._area.close()

    def _spawn(self, end: socket.socket) -> int:
        try:
            return self._nursery.spawn(end, self._area.fd)
        except OSError as error:
            self._socket.close()
            self._area.close()
            raise ChildLost(f"no zygote: {error.strerror}", is_blamed=False) from error

    def _unpack(self, answer: dict[str, Any], tasks: Sequence[Task]) -> list[Page | OcrsvcError]:
        if "failed" in answer:
            raise _checked(unpack_failure, answer["failed"])
        private_bytes = answer.get("private_bytes")
        if not isinstance(private_bytes, int):
            raise ChildLost(NONSENSE, is_blamed=True)
        self.private_bytes = private_bytes
        answers = _checked(lambda place: unpack_answers(place, tasks, self._area), answer.get("answer"))
        self._area.give_back()
        return answers

    def _see_it_die(self) -> None:
        try:
            while True:
                self._receive(time.monotonic() + _DEATH_S, is_blamed=False)
        except (ChildLost, OSError):
            return

    def _receive(self, until_s: float, *, is_blamed: bool) -> dict[str, Any]:
        """The next message. Raises ChildLost, TimeoutError, OSError."""
        left_s = until_s - time.monotonic()
        if left_s > 0:
            # The kernel's timeout, not settimeout(): each system call less is one wait less for the interpreter's lock.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(left_s))
        try:
            data = self._recv(0 if left_s > 0 else socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise TimeoutError from None
        blame = is_blamed and self._area.has_begun
        if not data:
            # Only when the zygote has died, which takes its children with it.
            raise ChildLost("its zygote died", is_blamed=False)
        try:
            message = orjson.loads(data)
        except ValueError:
            raise ChildLost(NONSENSE, is_blamed=blame) from None
        if not isinstance(message, dict):
            raise ChildLost(NONSENSE, is_blamed=blame)
        if "died" in message:
            raise ChildLost(_cause(message["died"]), is_blamed=blame)
        return message

    def _recv(self, flags: int) -> bytes:
        try:
            return self._socket.recv(MESSAGE_BYTES, flags)
        except ConnectionResetError:
            # It died before it took our message; the zygote's, which says how, comes next.
            return self._socket.recv(MESSAGE_BYTES, flags)


def _timeval(left_s: float) -> bytes:
    """As SO_RCVTIMEO wants it: zero waits for ever."""
    whole_s, rest_s = divmod(left_s, 1.0) if math.isfinite(left_s) else (0, 0.0)
    return _TIMEVAL.pack(int(whole_s), int(rest_s * 1e6) if whole_s or not rest_s else max(1, int(rest_s * 1e6)))


def _checked(unpack: Callable[[Any], _T], row: Any) -> _T:
    """What a child sent, unpacked. Raises ChildLost when it is nonsense."""
    try:
        return unpack(row)
    except Nonsense:
        raise ChildLost(NONSENSE, is_blamed=True) from None


def _cause(status: object) -> str:
    """How a process ended, in words, from waitpid's exit code: negative for a signal."""
    if not isinstance(status, int):
        return str(status)
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
