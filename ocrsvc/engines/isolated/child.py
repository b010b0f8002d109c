"""The worker's side of one child process: starts it, sends it tasks, receives answers. One thread at a time uses it."""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ocrsvc.engines.isolated.messages import (
    MESSAGE_BYTES,
    Ready,
    pack_tasks,
    unpack_answers,
    unpack_failure,
    unpack_message,
    unpack_ready,
)
from ocrsvc.engines.isolated.shared_area import SharedArea
from ocrsvc.engines.isolated.spawner import Spawner
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.formats.page_serialization import InvalidData
from ocrsvc.records import Page, Task
from ocrsvc.serving.work_queue import GONE_S

HANG: Final = "hang"
INVALID_ANSWER: Final = "nonsense"

CLOSE_S: Final = 10.0
"""How long an engine may take to close before its process is ended."""

# A killed process gives its memory back, on a GPU too, before the next one opens.
_EXIT_WAIT_S: Final = 1.5


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
        ready: What it said when its engine was open; None before.
        images: Images that it has read.
        private_bytes, gpu_bytes: Its own memory after the last of them, and that of the GPU; 0 where NVML does not
            report it.

    Args:
        spawner: Starts it.
        open_s: How long its engine may take to open.

    Raises:
        ChildLost: There is no fork server, or no memory or descriptor for what is shared with it.
    """

    def __init__(self, spawner: Spawner, open_s: float) -> None:
        self._spawner = spawner
        try:
            with contextlib.ExitStack() as opened:
                self._area = SharedArea()
                opened.callback(self._area.close)
                self._socket, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                opened.callback(self._socket.close)
                with end:
                    self._key = spawner.spawn(end, self._area.fd)
                opened.pop_all()
        except OSError as error:
            raise ChildLost(f"not started: {error.strerror}", is_blamed=False) from error
        self._open_until_s = time.monotonic() + open_s
        self.ready: Ready | None = None
        self.images = 0
        self.private_bytes = 0
        self.gpu_bytes = 0

    @property
    def opened(self) -> Ready:
        """What it said when its engine was open; only asked of children that are."""
        assert self.ready is not None, "it is open"
        return self.ready

    def wait_ready(self, until_s: float) -> bool:
        """Wait (monotonic) until the engine is open and warm; whether it is.

        Raises:
            ChildLost: The child died while it opened, or takes too long.
            OcrsvcError: What the engine said when it could not be opened, mostly EngineUnavailable.
        """
        try:
            message = self._receive(min(until_s, self._open_until_s))
            if "failed" in message:
                raise unpack_failure(message["failed"])
            self.ready = ready = unpack_ready(message.get("ready"))
        except TimeoutError:
            if time.monotonic() >= self._open_until_s:
                raise self._lost(HANG) from None
            return False
        except InvalidData:
            raise self._lost(INVALID_ANSWER) from None
        self.private_bytes, self.gpu_bytes = ready.private_bytes, ready.gpu_bytes
        return True

    def read(self, tasks: Sequence[Task], until_s: float) -> list[Page | OcrsvcError]:
        """Have some images read.

        Args:
            tasks: As for engines.contract.Handle.read.
            until_s: Monotonic seconds at which an answer that has not come counts as a hang; may be infinite. A child
                that calls the tasks' `check` has answered before that.

        Raises:
            ChildLost: There is no answer, and there will be none.
            OcrsvcError: The engine failed as a whole, or the shared memory cannot be made large enough.
        """
        with _memory_errors_translated():
            message = pack_tasks(tasks, self._area)
        try:
            # One that has died idle does not take it; how it died is what comes next.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._socket.send(message)
            answer = self._receive_while_wanted(tasks, until_s)
            self.images += len(tasks)
            return self._unpack(answer, tasks)
        except TimeoutError:
            raise self._lost(HANG) from None
        except InvalidData:
            raise self._lost(INVALID_ANSWER) from None
        except OSError as error:
            raise self._lost("gone") from error

    def end(self, *, kill: bool = True) -> None:
        """Let go of the child: at once, or after what it closes by itself, for which it has CLOSE_S."""
        self._spawner.kill(self._key, 0.0 if kill else CLOSE_S)
        if kill:
            self._wait_for_exit()
        self._socket.close()
        self._area.close()

    def _unpack(self, answer: dict[str, Any], tasks: Sequence[Task]) -> list[Page | OcrsvcError]:
        match answer:
            case {"failed": failure}:
                raise unpack_failure(failure)
            case {"answer": place, "private_bytes": int(private_bytes), "gpu_bytes": int(gpu_bytes)}:
                self.private_bytes, self.gpu_bytes = private_bytes, gpu_bytes
                with _memory_errors_translated():
                    answers = unpack_answers(place, tasks, self._area)
                    self._area.give_back()
                return answers
        raise InvalidData("no answer")

    def _receive_while_wanted(self, tasks: Sequence[Task], until_s: float) -> dict[str, Any]:
        """The answer. When nobody waits for it any more, the child is notified and answers soon."""
        while True:
            try:
                return self._receive(min(until_s, time.monotonic() + GONE_S))
            except TimeoutError:
                if time.monotonic() >= until_s:
                    raise
                if not any(map(_is_wanted, tasks)):
                    self._area.is_given_up = True

    def _wait_for_exit(self) -> None:
        with contextlib.suppress(ChildLost, OSError):
            while True:
                with contextlib.suppress(InvalidData):
                    self._receive(time.monotonic() + _EXIT_WAIT_S)

    def _receive(self, until_s: float) -> dict[str, Any]:
        """The next message. Raises ChildLost, InvalidData, TimeoutError, OSError."""
        self._socket.settimeout(None if math.isinf(until_s) else max(0.0, until_s - time.monotonic()))
        try:
            data = self._recv()
        except BlockingIOError:
            raise TimeoutError from None
        if not data:
            # Only when the fork server has died, which takes its children with it.
            raise ChildLost("its fork server died", is_blamed=False)
        message = unpack_message(data)
        if "died" in message:
            raise self._lost(_cause(message["died"]))
        return message

    def _recv(self) -> bytes:
        try:
            return self._socket.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            # It died before it took our message; the fork server's, which says how, comes next.
            return self._socket.recv(MESSAGE_BYTES)

    def _lost(self, cause: str) -> ChildLost:
        return ChildLost(cause, is_blamed=self._area.has_begun)


def _is_wanted(task: Task) -> bool:
    try:
        task.check()
    except OcrsvcError:
        return False
    return True


@contextlib.contextmanager
def _memory_errors_translated() -> Iterator[None]:
    """Raises EngineFailed when shared memory cannot grow: the child is well, and others may still be served."""
    try:
        yield
    except OSError as error:
        raise EngineFailed(
            f"There is no room for this image between the worker and the engine's process ({error.strerror}).",
            "Send it again in a moment.",
        ) from error


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
