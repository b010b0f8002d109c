"""Starts and ends the children of a worker: the worker's side of the fork server (fork_server.py).

The fork server is a small process without threads, started with exec, which has the modules imported and forks on
demand: a worker itself has threads and native libraries and must not fork, and a new interpreter would cost half a
second of processor time for every child. It ends, with all its children, as soon as the worker's end of its socket is
closed, however the worker ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from dataclasses import asdict
from typing import Final

import orjson

from ocrsvc.engines.isolated.model_name import ModelName
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.settings.settings import Settings
from ocrsvc.system.child_process import Program
from ocrsvc.system.thread_plan import ThreadPlan

_PROGRAM: Final = "ocrsvc.engines.isolated.fork_server"
_END_S: Final = 5.0


class Spawner:
    """Starts and ends children through a worker's fork server. Any thread may call.

    The fork server is started when it is first needed, and anew should it die.

    Args:
        settings: Which engine the children open.
        plan: Their library threads.
        model: What the engine reads with, which the children open themselves; None for the model that it comes with.
            The key of an encrypted one goes to them over the fork server's socket.
    """

    def __init__(self, settings: Settings, plan: ThreadPlan, model: ModelVersion | None = None) -> None:
        named = None if model is None else asdict(ModelName.of(model))
        key = None if model is None or model.key is None else model.key.expose()
        self._first_message = orjson.dumps(
            {"settings": settings.model_dump(mode="json"), "plan": asdict(plan), "model": named, "model_key": key}
        )
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._server: Program | None = None

    @property
    def pid(self) -> int:
        """Of the fork server; 0 while there is none."""
        server = self._server
        return 0 if server is None else server.process.pid

    def spawn(self, end: socket.socket, area_fd: int) -> int:
        """Have a child forked that talks over `end`, with the shared area `area_fd`; returns what `kill` calls it.

        Returns at once. What becomes of the child is reported on its socket: its first message, or how it died.
        """
        key = next(self._keys)
        fds = [end.fileno(), area_fd]
        with self._lock:
            try:
                self._send({"spawn": key}, fds)
            except OSError:
                # The fork server was killed, and its children with it.
                self._end()
                self._send({"spawn": key}, fds)
        return key

    def kill(self, key: int, after_s: float = 0.0) -> None:
        """End a child, at once or if it is still there later. Only the fork server knows its process id for sure."""
        with self._lock, contextlib.suppress(OSError):
            if self._server is not None:
                self._server.wire.send(orjson.dumps({"kill": key, "after_s": after_s}))

    def close(self) -> None:
        """End the fork server and every child."""
        with self._lock:
            self._end()

    def _send(self, message: dict[str, int], fds: list[int]) -> None:
        if self._server is None:
            self._server = Program(_PROGRAM, environ=os.environ)
            self._server.wire.send(self._first_message)
        socket.send_fds(self._server.wire, [orjson.dumps(message)], fds)

    def _end(self) -> None:
        if self._server is not None:
            self._server.end(_END_S)
            self._server = None
