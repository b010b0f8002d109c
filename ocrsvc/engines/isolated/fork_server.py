"""The fork server, which forks and reaps a worker's children: `python -m ocrsvc.engines.isolated.fork_server`.

It imports what an engine needs and starts no thread (a fork copies only the thread that calls it), no model and nothing
of CUDA. Commands come over its standard input: it forks a child for each "spawn", kills one for each "kill", reaps
them, and reports on a dead child's socket how it ended. It ends when the worker's end of that connection is closed; its
children are killed with it, by it or, when it is killed itself, by the kernel.
"""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import orjson

from ocrsvc.engines.model.encryption import ModelKey, parse_key
from ocrsvc.engines.model.version import VersionName
from ocrsvc.registry import engines
from ocrsvc.settings.settings import Settings, settings_class
from ocrsvc.system.allocator import limit_arenas
from ocrsvc.system.sandbox import end_with_parent, forbid_core_dumps, ignore_signals
from ocrsvc.system.thread_plan import ThreadPlan, set_library_environment
from ocrsvc.telemetry.event_log import log_as_json
from ocrsvc.telemetry.loggable import loggable_error

LOG: Final = logging.getLogger("ocrsvc.isolation")

_MESSAGE_BYTES: Final = 1 << 17
_SPAWN_FDS: Final = 2
_FAILED: Final = 70


@dataclass(slots=True)
class _RunningChild:
    """A running child: its number for the worker, our copy of its socket for a last message, and when to kill it."""

    key: int
    end: socket.socket
    kill_at_s: float = math.inf


class ForkServer:
    """The fork server's loop. One thread; commands come in over `control`."""

    def __init__(
        self,
        control: socket.socket,
        settings: Settings,
        plan: ThreadPlan,
        model: VersionName | None = None,
        key: ModelKey | None = None,
    ) -> None:
        self._control = control
        self._settings = settings
        self._plan = plan
        self._model = model
        self._key = key
        self._children: dict[int, _RunningChild] = {}
        self._wake_receiver, self._wake_sender = socket.socketpair()

    def run(self) -> None:
        """Until the worker has gone."""
        self._wake_on_child_exit()
        is_wanted = True
        while is_wanted:
            ready, _, _ = select.select([self._control, self._wake_receiver], [], [], self._wait_s())
            self._kill_overdue()
            if self._wake_receiver in ready:
                self._wake_receiver.recv(4096)
                self._reap()
            if self._control in ready:
                is_wanted = self._handle_command()
        self._kill_all()

    def _wake_on_child_exit(self) -> None:
        self._wake_sender.setblocking(False)
        signal.set_wakeup_fd(self._wake_sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)

    def _handle_command(self) -> bool:
        """Carry out one command; whether there may be more."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, _SPAWN_FDS)
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
            # The kernel leaves out what there is no descriptor for; the worker sees its end close.
            for fd in fds:
                os.close(fd)
        return True

    def _spawn(self, key: int, end_fd: int, area_fd: int) -> None:
        end = socket.socket(fileno=end_fd)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _report_exit(end, f"no process: {error.strerror}")
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
            from ocrsvc.engines.isolated.child_main import serve_worker
            from ocrsvc.engines.isolated.messages import SharedArea

            serve_worker(end, SharedArea(area_fd), self._settings, self._plan, self._model, self._key)
            code = 0
        except BaseException as error:
            LOG.error("A child ends", exc_info=loggable_error(error))
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            # No destructors of native libraries: what is closed was closed by the engine.
            os._exit(code)

    def _wait_s(self) -> float | None:
        """Until the next child is overdue; None without one."""
        kill_at_s = min((child.kill_at_s for child in self._children.values()), default=math.inf)
        return None if kill_at_s == math.inf else max(0.0, kill_at_s - time.monotonic())

    def _kill_overdue(self) -> None:
        """End the children whose time is over; those that have ended by themselves are not listed any more."""
        for pid, child in self._children.items():
            if child.kill_at_s <= time.monotonic():
                os.kill(pid, signal.SIGKILL)
                child.kill_at_s = math.inf

    def _reap(self) -> None:
        """Reap every child that has died by now, and report how."""
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self._children.pop(pid)
            _report_exit(child.end, os.waitstatus_to_exitcode(status))

    def _kill_all(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)


def _report_exit(end: socket.socket, how: object) -> None:
    with end, contextlib.suppress(OSError):
        end.send(orjson.dumps({"died": how}), socket.MSG_DONTWAIT)


def preload(engine: str) -> None:
    """Import what the engine needs; what cannot be imported is reported by the child that opens it."""
    for name in ("ocrsvc.engines.isolated.child_main", "ocrsvc.imaging.geometry", *engines()[engine].preload):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # What is imported stays: no garbage collection in a child touches, and so copies, these pages.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run the fork server of the worker that holds the other end of the socket."""
    # SIGTERM to a whole cgroup and SIGINT from a terminal are for the worker, which drains, then closes the socket.
    ignore_signals()
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    first: dict[str, Any] = orjson.loads(control.recv(_MESSAGE_BYTES) or b"{}")
    if not first:
        return
    key = None if first["model_key"] is None else parse_key(first.pop("model_key"))
    if key is not None:
        forbid_core_dumps()
    settings, plan = settings_class().model_validate(first["settings"]), ThreadPlan(**first["plan"])
    set_library_environment(os.environ, plan.library_threads)
    limit_arenas()
    if settings.log_format == "json":
        log_as_json()
    preload(settings.engine)
    model = None if first["model"] is None else VersionName(**first["model"])
    ForkServer(control, settings, plan, model, key).run()


if __name__ == "__main__":
    main()
