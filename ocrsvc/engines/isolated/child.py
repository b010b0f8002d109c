"""The worker's side of its child processes: starts them through a fork server, sends tasks, receives answers.

Images whose child crashed are retried; an image that crashed its child twice is refused with 422.

The fork server (fork_server.py) is a small process without threads that has imported the engine's modules and forks on
demand. A worker has threads and native libraries, so it must not fork itself; a new interpreter would cost 0.5 s of CPU
time per child. The fork server and its children end when the worker's socket closes, however the worker ends.
"""

import contextlib
import itertools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
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
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import ClientGone, DeadlineExceeded, EngineFailed, ImageCrashesEngine, OcrsvcError
from ocrsvc.formats.page_serialization import InvalidData
from ocrsvc.results import FileTask, Page, Task
from ocrsvc.serving.crash_denylist import CRASHES, CrashDenylist
from ocrsvc.serving.work_queue import CLIENT_CHECK_S
from ocrsvc.settings.settings import Settings
from ocrsvc.system.child_process import Program, describe_exit
from ocrsvc.system.thread_plan import ThreadPlan, set_library_environment

LOG: Final = logging.getLogger("ocrsvc.isolation")

HANG: Final = "hang"
INVALID_ANSWER: Final = "nonsense"
CLOSE_S: Final = 10.0  # time that an engine has to close before its process is killed

_PROGRAM: Final = "ocrsvc.engines.isolated.fork_server"
_END_S: Final = 5.0
_EXIT_WAIT_S: Final = 1.5  # wait after killing a process, until its memory, also on a GPU, is free for the next engine
_TRIES: Final = 4  # attempts to read an image, counting those whose child died before it started with the image
# Options that are part of the crash denylist's key, because they change which code processes an image.
_CHOOSING_OPTIONS: Final = ("rotate", "detect", "upright_boxes", "unwarp", "layout", "tables", "barcodes", "region")


class Spawner:
    """Starts and ends the children of one model, through a fork server that it restarts if necessary. Thread-safe."""

    def __init__(self, settings: Settings, plan: ThreadPlan, model: ModelVersion | None = None) -> None:
        named = None if model is None else model.reference
        # The model's key is sent only over the fork server's socket, never in its arguments or environment.
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
        """Process id of the fork server; 0 if it is not running."""
        return 0 if (server := self._server) is None else server.process.pid

    def spawn(self, end: socket.socket, area_fd: int) -> int:
        """Fork a child that uses the socket `end`; its exit is reported there too. Returns its key for `kill`."""
        key = next(self._keys)
        fds = [end.fileno(), area_fd]
        with self._lock:
            try:
                self._send({"spawn": key}, fds)
            except OSError:
                # The fork server was killed, and its children with it: start another.
                self._end()
                self._send({"spawn": key}, fds)
        return key

    def kill(self, key: int, after_s: float = 0.0) -> None:
        """Have the fork server kill a child that lives after `after_s`; the worker itself might hit a reused pid."""
        with self._lock, contextlib.suppress(OSError):
            if self._server is not None:
                self._server.wire.send(orjson.dumps({"kill": key, "after_s": after_s}))

    def close(self) -> None:
        """End the fork server and every child."""
        with self._lock:
            self._end()

    def _send(self, message: dict[str, int], fds: list[int]) -> None:
        if self._server is None:
            # Numeric libraries read these variables only once, when they are loaded.
            set_library_environment(environ := dict(os.environ), self._library_threads)
            self._server = Program(_PROGRAM, environ=environ)
            self._server.wire.send(self._first_message)
        socket.send_fds(self._server.wire, [orjson.dumps(message)], fds)

    def _end(self) -> None:
        if self._server is not None:
            self._server.end(_END_S)
            self._server = None


class ChildLost(Exception):
    """A child died (cause "SIGSEGV", "exit code 1"), hung or sent garbage; `is_blamed`: its images may be the cause."""

    def __init__(self, cause: str, *, is_blamed: bool) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_blamed = is_blamed


class Child:
    """One child process, which has `open_s` seconds to open and warm up its engine; see `wait_ready`.

    `images` counts images read; `private_bytes` and `gpu_bytes` (0 if NVML does not report it) are the child's memory
    after the last image. Raises ChildLost if the fork server does not start, or memory or descriptors run out.
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
        self.ready: Ready  # set by `wait_ready`
        self.images = self.private_bytes = self.gpu_bytes = 0

    def wait_ready(self, until_s: float) -> bool:
        """Wait until `until_s`; returns whether the child is ready. Raises ChildLost, or the error of its engine."""
        try:
            message = self._receive(min(until_s, self._open_until_s))
            if "failed" in message:
                raise unpack_failure(message["failed"])
            self.ready = unpack_ready(message.get("ready"))
        except TimeoutError:
            if time.monotonic() >= self._open_until_s:
                raise self._lost(HANG) from None
            return False
        except InvalidData:
            raise self._lost(INVALID_ANSWER) from None
        self.private_bytes, self.gpu_bytes = self.ready.private_bytes, self.ready.gpu_bytes
        return True

    def read(self, tasks: Sequence[Task], until_s: float) -> list[Page | OcrsvcError]:
        """Read images in the child, which counts as hanging if there is no answer by `until_s` (monotonic).

        `until_s` is later than the tasks' deadlines. Raises ChildLost; OcrsvcError if the engine or memory failed.
        """
        with _memory_errors_translated():
            message = pack_tasks(tasks, self._area)
        try:
            # If the child died while it was idle, sending fails; the fork server's report of its exit follows.
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
        """Kill the child now or, without `kill`, give it CLOSE_S to close its engine."""
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
        """Wait for the answer; if all tasks are cancelled or expired, notify the child, which then answers early."""
        while True:
            try:
                return self._receive(min(until_s, time.monotonic() + CLIENT_CHECK_S))
            except TimeoutError:
                if time.monotonic() >= until_s:
                    raise
                if not any(map(_is_wanted, tasks)):
                    self._area.is_given_up = True

    def _receive(self, until_s: float) -> dict[str, Any]:
        """The next message of the child or the fork server. Raises ChildLost, InvalidData, TimeoutError, OSError."""
        self._socket.settimeout(None if math.isinf(until_s) else max(0.0, until_s - time.monotonic()))
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            # The child died before it received our message; the fork server's report of its exit follows.
            return self._receive(until_s)
        except BlockingIOError:
            raise TimeoutError from None
        if not data:
            # The socket closes only if the fork server is dead, and its children die with it.
            raise ChildLost("its fork server died", is_blamed=False)
        message = unpack_message(data)
        if "died" in message:
            status = message["died"]
            raise self._lost(describe_exit(status) if isinstance(status, int) else str(status))
        return message

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
    """Raise EngineFailed if shared memory cannot grow; the child remains usable."""
    try:
        yield
    except OSError as error:
        raise EngineFailed(
            f"Shared memory for this image cannot be allocated ({error.strerror}).", "Send it again in a moment."
        ) from error


@dataclass(slots=True)
class _Trial:
    """An image with its number of crashes, of which `noted_crashes` were already in the denylist."""

    task: Task
    noted_crashes: int
    crashes: int
    answer: Page | OcrsvcError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CrashHandling:
    """Reads images in a child process, and retries or refuses those that crash it. Used by one thread."""

    _read_in_child: Callable[[list[Task]], list[Page | OcrsvcError]]  # raises ChildLost if the process ended
    _denylist: CrashDenylist
    _model: str = ""  # digest of the model that the crashes belong to; "" without OCRSVC_MODELS

    def read(self, tasks: Sequence[Task]) -> list[Page | OcrsvcError]:
        """Return a result per task. If a batch crashes the child, no image is blamed, and each is read again alone."""
        trials = [self._begin(task) for task in tasks]
        waiting = [trial for trial in trials if trial.answer is None]
        if len(waiting) > 1:
            with contextlib.suppress(OcrsvcError, ChildLost):
                for trial, answer in zip(waiting, self._read_in_child([trial.task for trial in waiting]), strict=True):
                    trial.answer = self._clear_if_noted(trial, answer)
        return [trial.answer or self._read_alone(trial) for trial in trials]

    def _begin(self, task: Task) -> _Trial:
        crashes = 0 if self._denylist.is_empty() else self._denylist.crashes(digest_of(task, self._model))
        return _Trial(task, crashes, crashes, _refusal() if crashes >= CRASHES else None)

    def _read_alone(self, trial: _Trial) -> Page | OcrsvcError:
        for _ in range(_TRIES):
            try:
                return self._clear_if_noted(trial, *self._read_in_child([trial.task]))
            except OcrsvcError as error:
                return error
            except ChildLost as lost:
                trial.crashes += lost.is_blamed
                if trial.crashes >= CRASHES or time.monotonic() >= trial.task.deadline:
                    return self._give_up(trial, lost)
        return EngineFailed(f"The engine's process ended {_TRIES} times before it began with this image.")

    def _clear_if_noted(self, trial: _Trial, answer: Page | OcrsvcError) -> Page | OcrsvcError:
        if trial.noted_crashes and not isinstance(answer, DeadlineExceeded | ClientGone):
            self._denylist.clear(digest_of(trial.task, self._model))
        return answer

    def _give_up(self, trial: _Trial, lost: ChildLost) -> OcrsvcError:
        digest = digest_of(trial.task, self._model)
        if trial.crashes > trial.noted_crashes:
            self._denylist.note(digest, trial.crashes, lost.cause)
        if trial.crashes < CRASHES:
            return DeadlineExceeded(f"The engine's process ended ({lost.cause}), and no time was left for a retry.")
        LOG.error("DENYLISTED image %s: %s", digest.hex(), lost.cause)
        return _refusal()


def _refusal() -> ImageCrashesEngine:
    return ImageCrashesEngine(
        "This image crashed the engine's process twice.",
        "Send another image, or convert this one again; it is retried after OCRSVC_CRASH_DENYLIST_S.",
    )


def digest_of(task: Task, model: str = "") -> bytes:
    """Denylist key of a task's file or pixels, the model and the relevant options; takes 1 ms per megabyte."""
    options, shape = task.options, () if isinstance(task, FileTask) else task.image.pixels.shape
    chosen = (shape, options and tuple(getattr(options, name) for name in _CHOOSING_OPTIONS))
    digest = blake2b(repr(chosen).encode(), digest_size=16, key=model.encode()[:64])
    digest.update(task.data if isinstance(task, FileTask) else np.ascontiguousarray(task.image.pixels).data)
    return digest.digest()
