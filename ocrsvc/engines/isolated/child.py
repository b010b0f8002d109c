"""The worker's side of its child processes: starts them through a fork server, sends tasks, receives answers.

The fork server (fork_server.py) is a small process without threads that has imported the modules and forks on demand.
A worker has threads and native libraries and must not fork itself; a new interpreter would cost 0.5 s of CPU time per
child. The fork server and its children end when the worker's end of its socket closes, however the worker ends.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import orjson

from ocrsvc.engines.isolated.messages import (
    MESSAGE_BYTES,
    Ready,
    SharedArea,
    pack_tasks,
    unpack_answers,
    unpack_failure,
    unpack_message,
    unpack_ready,
)
from ocrsvc.engines.model.version import ModelVersion, VersionName
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.formats.page_serialization import InvalidData
from ocrsvc.results import Page, Task
from ocrsvc.serving.work_queue import CLIENT_CHECK_S
from ocrsvc.settings.settings import Settings
from ocrsvc.system.child_process import Program, describe_exit
from ocrsvc.system.thread_plan import ThreadPlan, set_library_environment

LOG: Final = logging.getLogger("ocrsvc.isolation")

_PROGRAM: Final = "ocrsvc.engines.isolated.fork_server"
_END_S: Final = 5.0


class Spawner:
    """Starts and ends children through a worker's fork server, and restarts a dead fork server. Thread-safe.

    The children open `model`, or the engine's built-in one if it is None. The key of an encrypted model is sent over
    the fork server's socket.
    """

    def __init__(self, settings: Settings, plan: ThreadPlan, model: ModelVersion | None = None) -> None:
        named = None if model is None else asdict(VersionName.of(model))
        key = None if model is None or model.key is None else model.key.expose()
        self._first_message = orjson.dumps(
            {"settings": settings.model_dump(mode="json"), "plan": asdict(plan), "model": named, "model_key": key}
        )
        self._library_threads = plan.library_threads
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._server: Program | None = None

    @property
    def pid(self) -> int:
        """Process id of the fork server; 0 while none runs."""
        server = self._server
        return 0 if server is None else server.process.pid

    def spawn(self, end: socket.socket, area_fd: int) -> int:
        """Fork a child that communicates over `end`, which also reports its exit; returns the key for `kill`."""
        key = next(self._keys)
        fds = [end.fileno(), area_fd]
        with self._lock:
            try:
                self._send({"spawn": key}, fds)
            except OSError:
                # The fork server was killed, and with it its children.
                self._end()
                self._send({"spawn": key}, fds)
        return key

    def kill(self, key: int, after_s: float = 0.0) -> None:
        """Kill a child after `after_s` unless it has ended. Only the fork server can be sure of its process id."""
        with self._lock, contextlib.suppress(OSError):
            if self._server is not None:
                self._server.wire.send(orjson.dumps({"kill": key, "after_s": after_s}))

    def close(self) -> None:
        """End the fork server and every child."""
        with self._lock:
            self._end()

    def _send(self, message: dict[str, int], fds: list[int]) -> None:
        if self._server is None:
            # Numeric libraries read this once, when they load.
            set_library_environment(environ := dict(os.environ), self._library_threads)
            self._server = Program(_PROGRAM, environ=environ)
            self._server.wire.send(self._first_message)
        socket.send_fds(self._server.wire, [orjson.dumps(message)], fds)

    def _end(self) -> None:
        if self._server is not None:
            self._server.end(_END_S)
            self._server = None


HANG: Final = "hang"
INVALID_ANSWER: Final = "nonsense"

CLOSE_S: Final = 10.0  # time limit for an engine to close before its process is killed

_EXIT_WAIT_S: Final = 1.5  # a killed process should free its memory, on a GPU too, before the next one opens


class ChildLost(Exception):
    """A child died, hung or sent an invalid answer.

    `cause` is for example "SIGSEGV", "hang" or "exit code 1". If `is_blamed`, the request that it was reading may be
    the cause.
    """

    def __init__(self, cause: str, *, is_blamed: bool) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_blamed = is_blamed


class Child:
    """One child process, which opens and warms up its engine within `open_s`; wait for that with `wait_ready`.

    `private_bytes` and `gpu_bytes` are its memory after the last of its `images`; GPU memory is 0 if NVML does not
    report it. Raises ChildLost: the fork server does not start, or memory or descriptors run out.
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
        """The child's first message; only call this after `wait_ready` returned True."""
        assert self.ready is not None, "the child is open"
        return self.ready

    def wait_ready(self, until_s: float) -> bool:
        """Wait until the engine is open and warm, or until `until_s` (monotonic); returns whether it is.

        Raises ChildLost, or the engine's error, mostly EngineUnavailable.
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
        """Read images in the child; no answer by `until_s` (monotonic, past the tasks' deadlines) counts as a hang.

        Raises ChildLost, or OcrsvcError: the engine failed on the whole batch, or shared memory ran out.
        """
        with _memory_errors_translated():
            message = pack_tasks(tasks, self._area)
        try:
            # A child that died idle refuses the message; the fork server's report of its exit follows.
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
        """Release the child: kill it now, or give it CLOSE_S to close its engine."""
        self._spawner.kill(self._key, 0.0 if kill else CLOSE_S)
        with contextlib.suppress(ChildLost, OSError):
            while kill:
                with contextlib.suppress(InvalidData):
                    self._receive(time.monotonic() + _EXIT_WAIT_S)
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
        raise InvalidData("not an answer")

    def _receive_while_wanted(self, tasks: Sequence[Task], until_s: float) -> dict[str, Any]:
        """The answer; once no task is wanted any more, the child is notified and answers soon."""
        while True:
            try:
                return self._receive(min(until_s, time.monotonic() + CLIENT_CHECK_S))
            except TimeoutError:
                if time.monotonic() >= until_s:
                    raise
                if not any(map(_is_wanted, tasks)):
                    self._area.is_given_up = True

    def _receive(self, until_s: float) -> dict[str, Any]:
        """The next message. Raises ChildLost, InvalidData, TimeoutError, OSError."""
        self._socket.settimeout(None if math.isinf(until_s) else max(0.0, until_s - time.monotonic()))
        try:
            data = self._recv()
        except BlockingIOError:
            raise TimeoutError from None
        if not data:
            # Only a dead fork server closes the socket, and its children die with it.
            raise ChildLost("its fork server died", is_blamed=False)
        message = unpack_message(data)
        if "died" in message:
            status = message["died"]
            raise self._lost(describe_exit(status) if isinstance(status, int) else str(status))
        return message

    def _recv(self) -> bytes:
        try:
            return self._socket.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            # The child died before it took our message; the fork server's report follows.
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
    """Raises EngineFailed when shared memory cannot grow; the child stays usable."""
    try:
        yield
    except OSError as error:
        raise EngineFailed(
            f"Shared memory for this image cannot be allocated ({error.strerror}).", "Send it again in a moment."
        ) from error
