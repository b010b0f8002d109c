"""A worker's fork server and the program of its children: `python -m ocrsvc.engines.isolated.fork_server`.

It imports an engine's modules, but starts no thread (a fork copies only the calling thread), loads no model and does
not touch CUDA. It receives commands over its standard input: "spawn" forks a child, "kill" kills one. It reaps
children, and reports each exit on the dead child's socket. When the worker closes the connection, it kills the children
and ends; if it is killed itself, the kernel kills them. A child opens the engine and one handle, and serves one thread
of a worker from its only thread. A child also decodes image files, so that a decoder's crash affects only that image.
"""

import contextlib
import faulthandler
import gc
import importlib
import logging
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NoReturn

import orjson

from ocrsvc.engines.contract import Handle
from ocrsvc.engines.isolated.messages import MESSAGE_BYTES, Ready, SharedArea, pack_answers, pack_failure, unpack_tasks
from ocrsvc.engines.model.encryption import ModelKey, parse_key
from ocrsvc.engines.model.version import Named, find_version
from ocrsvc.engines.open_engine import open_engine_in_process
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits, decode_pixels, open_encoded_image
from ocrsvc.imaging.engine_input import EngineInput
from ocrsvc.plugins import engines
from ocrsvc.results import DecodedPage, FileTask, Page, ReadTask
from ocrsvc.settings.settings import Settings, settings_class
from ocrsvc.system.allocator import limit_arenas, release_free_memory
from ocrsvc.system.gpu import Siblings, open_gpu_memory_reader
from ocrsvc.system.memory import read_private_bytes
from ocrsvc.system.sandbox import end_with_parent, forbid_core_dumps, ignore_signals, raise_oom_score
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.event_log import log_as_json
from ocrsvc.telemetry.loggable import loggable_error

LOG: Final = logging.getLogger("ocrsvc.isolation")

_FIRST_BYTES: Final = 1 << 17
_SPAWN_FDS: Final = 2
_FAILED: Final = 70
_IDLE_S: Final = 5.0  # as in serving/executor.py
_GPU_EVERY_S: Final = 1.0


@dataclass(slots=True)
class _RunningChild:
    """A running child: the worker's number for it, the socket on which to report its exit, and when to kill it."""

    key: int
    end: socket.socket
    kill_at_s: float = math.inf


class ForkServer:
    """The fork server's loop, in one thread: takes commands on `control`; each child runs `serve` on its socket."""

    def __init__(self, control: socket.socket, serve: Callable[[socket.socket, SharedArea], None]) -> None:
        self._control, self._serve = control, serve
        self._children: dict[int, _RunningChild] = {}
        self._wake_receiver, self._wake_sender = socket.socketpair()

    def run(self) -> None:
        """Run until the worker closes the connection."""
        self._wake_sender.setblocking(False)
        signal.set_wakeup_fd(self._wake_sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        is_connected = True
        while is_connected:
            kill_at_s = min((child.kill_at_s for child in self._children.values()), default=math.inf)
            wait_s = None if kill_at_s == math.inf else max(0.0, kill_at_s - time.monotonic())
            ready, _, _ = select.select([self._control, self._wake_receiver], [], [], wait_s)
            self._kill_overdue()
            if self._wake_receiver in ready:
                self._wake_receiver.recv(4096)
                self._reap()
            if self._control in ready:
                is_connected = self._handle_command()
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _handle_command(self) -> bool:
        """Execute one command; returns False once the worker has closed the connection."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, _SPAWN_FDS)
        except OSError:
            return False
        if not data:
            return False
        command: dict[str, Any] = orjson.loads(data)
        if "kill" in command:
            for child in self._children.values():
                if child.key == command["kill"]:
                    child.kill_at_s = time.monotonic() + command["after_s"]
            self._kill_overdue()
        elif len(fds) == _SPAWN_FDS:
            self._spawn(command["spawn"], *fds)
        else:
            # The kernel dropped a descriptor, so no child can start: close the received ones, and the worker notices.
            for fd in fds:
                os.close(fd)
        return True

    def _spawn(self, key: int, end_fd: int, area_fd: int) -> None:
        end = socket.socket(fileno=end_fd)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _report_exit(end, f"not forked: {error.strerror}")
            os.close(area_fd)
            return
        if pid == 0:
            self._run_child(end, area_fd, parent)
        os.close(area_fd)
        self._children[pid] = _RunningChild(key, end)

    def _run_child(self, end: socket.socket, area_fd: int, parent: int) -> NoReturn:
        code = _FAILED
        try:
            end_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ends = (child.end for child in self._children.values())
            for held in (self._control, self._wake_receiver, self._wake_sender, *ends):
                held.close()
            self._serve(end, SharedArea(area_fd))
            code = 0
        except BaseException as error:
            LOG.error("A child ends", exc_info=loggable_error(error))
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            # Skips the destructors of native libraries, because the engine has already closed its resources.
            os._exit(code)

    def _kill_overdue(self) -> None:
        for pid, child in self._children.items():
            if child.kill_at_s <= time.monotonic():
                os.kill(pid, signal.SIGKILL)
                child.kill_at_s = math.inf

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self._children.pop(pid)
            _report_exit(child.end, os.waitstatus_to_exitcode(status))


def _report_exit(end: socket.socket, status: int | str) -> None:
    with end, contextlib.suppress(OSError):
        end.send(orjson.dumps({"died": status}), socket.MSG_DONTWAIT)


class _GpuMemory:
    """Reads this child's GPU memory from NVML. Create it before the engine is loaded."""

    def __init__(self, settings: Settings) -> None:
        log = logging.getLogger("ocrsvc.isolation.gpu")
        # Do not log NVML's errors in each child: the worker reads NVML too, and logs them.
        log.disabled = True
        on_cpu = "cpu" in (settings.device, settings.provider)
        self._reader = None if on_cpu else open_gpu_memory_reader(log, Siblings())
        self._again_s = 0.0
        self._last_reading = (0, 0)

    def read(self) -> tuple[int, int]:
        """Bytes used by this process, and the GPU's total, at most 1 s old; zeros if NVML does not report them."""
        if self._reader is not None and time.monotonic() >= self._again_s:
            self._again_s = time.monotonic() + _GPU_EVERY_S
            reading = self._reader.read(Siblings())
            is_listed = reading is not None and self._reader.is_listed
            self._last_reading = (reading.own_bytes, reading.total_bytes) if reading and is_listed else (0, 0)
        return self._last_reading


def serve(
    settings: Settings, plan: ThreadPlan, name: Named | None, key: ModelKey | None, end: socket.socket, area: SharedArea
) -> None:
    """A child's program: open the engine with a model, and answer requests until the worker disconnects."""
    faulthandler.enable()
    raise_oom_score()
    # The timer kills a child that opens too slowly, even in native code or while no worker thread waits for it.
    signal.setitimer(signal.ITIMER_REAL, settings.boot_limit_s)
    gpu_memory = _GpuMemory(settings)
    try:
        model = None if name is None else find_version(settings.models, *name, key)
        # A child uses one thread, because it cannot know whether the other children's cores are idle.
        engine = open_engine_in_process(settings, replace(plan, engine_threads=1), model)
        handle = engine.open_handle()
        handle.warm_up()
    except Exception as failure:  # noqa: BLE001  the worker raises it in the thread that waits
        if not isinstance(failure, OcrsvcError):
            failure = EngineFailed(f"The engine cannot be opened: {type(failure).__name__}: {failure}.")
        _send(end, {"failed": pack_failure(failure)})
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    ready = Ready(os.getpid(), engine.describe(), engine.traits, read_private_bytes(), *gpu_memory.read())
    _send(end, {"ready": ready})
    limits, gray = PixelLimits(settings.max_pixels, settings.format_max_pixels), engine.traits.wants_gray
    while message := _receive(end):
        area.has_begun = True
        try:
            tasks = unpack_tasks(message, area)
            # Images are read one by one, so that only one decoded image is in memory.
            answers = [
                read_file(handle, task, limits, gray=gray) if isinstance(task, FileTask) else handle.read([task])[0]
                for task in tasks
            ]
            place = pack_answers(answers, area)
        except Exception as failure:  # noqa: BLE001  the batch loop survives any error of an engine
            _send(end, {"failed": pack_failure(failure)})
            continue
        memory = {"private_bytes": read_private_bytes(), "gpu_bytes": gpu_memory.read()[0]}
        _send(end, {"answer": place, **memory})
    # If closing takes too long, the fork server kills this child.
    handle.close()
    engine.close()


def read_file(handle: Handle, task: FileTask, limits: PixelLimits, *, gray: bool) -> Page | OcrsvcError:
    """Decode a file and read it; if the task has no options, return the decoded image instead."""
    began_s, options = time.perf_counter(), task.options
    try:
        task.check()
        image = decode_pixels(
            open_encoded_image(task.data, limits), gray=gray and options is not None, check=task.check
        )
        task.check()
        decode_s = time.perf_counter() - began_s
        if options is None:
            return DecodedPage.of(Page(image.width, image.height, 0, ()), decode_s, image)
        view = EngineInput(options)
        seen = view.apply(image)
    except OcrsvcError as error:
        return error
    [page] = handle.read([ReadTask(seen, view.left, task.deadline, task.check)])
    return page if isinstance(page, OcrsvcError) else DecodedPage.of(view.restore(page), decode_s)


def _receive(wire: socket.socket) -> bytes:
    """Wait for the next request; empty if the worker has disconnected. Frees unused memory when idle."""
    for limit_s in (_IDLE_S, None):
        wire.settimeout(limit_s)
        try:
            return wire.recv(MESSAGE_BYTES)
        except TimeoutError:
            release_free_memory()
        except OSError:
            break
    return b""


def _send(wire: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        wire.send(orjson.dumps(message))


def preload(engine: str) -> None:
    """Import the engine's modules; if that fails, the child that opens the engine reports the error."""
    for name in ("ocrsvc.imaging.geometry", *engines()[engine].preload):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # Freeze all objects: garbage collection in a child would write to shared memory pages, and so copy them.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run the fork server for the worker that is connected to standard input."""
    # Ignore signals to the whole cgroup or terminal: the worker finishes its requests, then closes the socket.
    ignore_signals()
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    first: dict[str, Any] = orjson.loads(control.recv(_FIRST_BYTES) or b"{}")
    if not first:
        return
    key = None if first["model_key"] is None else parse_key(first.pop("model_key"))
    if key is not None:
        forbid_core_dumps()
    settings, plan = settings_class().model_validate(first["settings"]), ThreadPlan(**first["plan"])
    limit_arenas()
    if settings.log_format == "json":
        log_as_json()
    preload(settings.engine)
    ForkServer(control, partial(serve, settings, plan, first["model"], key)).run()


if __name__ == "__main__":
    main()
