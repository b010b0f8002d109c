"""The access log: one line for each request, written by a thread of its own so that no request waits for it.

Events go through a bounded queue; when it is full they are dropped and counted, because a log that nobody reads on must
not stop the service. An event holds what was asked and how it ended, and never anything of a page: the path without its
query, which may carry an image.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import orjson

QUEUE_EVENTS: Final = 10_000
_STDOUT: Final = 1
_LONGEST_PATH: Final = 200
_OPTIONAL: Final = ("trace_id", "text")


@dataclass(frozen=True, slots=True)
class Event:
    """One answered request.

    Attributes:
        at_s: When it came, Unix time.
        id: The request's id.
        trace_id: Of the trace that it belongs to; empty for none.
        client: Address of the peer; a proxy's own if there is one. Empty for a Unix socket.
        method, path: As asked.
        door: The name of the API adapter that answered.
        status, code: How it ended; the code is "ok" for a success.
        bytes_in, bytes_out: Bodies, as far as their lengths are declared.
        seconds: From its headers to its answer.
        text: What was read, as far as the log may have it; empty for nothing.
    """

    at_s: float
    id: str
    client: str
    method: str
    path: str
    door: str
    status: int
    code: str
    bytes_in: int
    bytes_out: int
    seconds: float
    trace_id: str = ""
    text: str = ""


def as_json(event: Event) -> bytes:
    """One line of JSON."""
    fields = asdict(event) | {"path": event.path[:_LONGEST_PATH], "seconds": round(event.seconds, 6)}
    del fields["at_s"]
    for name in _OPTIONAL:
        if not fields[name]:
            del fields[name]
    return orjson.dumps({"time": _moment(event.at_s), **fields}, option=orjson.OPT_APPEND_NEWLINE)


def as_text(event: Event) -> bytes:
    """One line of key=value; values that are not plain words are quoted as JSON quotes them."""
    pairs = orjson.loads(as_json(event))
    return " ".join(f"{name}={_plain(value)}" for name, value in pairs.items()).encode() + b"\n"


class AccessLog:
    """Writes events to a file descriptor, from a thread that the first event starts.

    Args:
        form: The format of a line.
        on_drop: Called for each event that found the queue full.
        target: File descriptor; standard output by default.
        most: Events that may wait.
    """

    def __init__(
        self,
        form: Literal["text", "json"],
        on_drop: Callable[[], object],
        target: int = _STDOUT,
        most: int = QUEUE_EVENTS,
    ) -> None:
        self._format = as_json if form == "json" else as_text
        self._on_drop = on_drop
        self._target = target
        self._events: queue.Queue[Event | None] = queue.Queue(most)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, event: Event) -> None:
        """Hand over an event; never waits."""
        try:
            if self._thread is None:
                self._start()
            self._events.put_nowait(event)
        except (queue.Full, RuntimeError):
            # RuntimeError: no more threads now; the next event tries again.
            self._on_drop()

    def stop(self, timeout_s: float) -> None:
        """Write what is queued, but not for longer than this. Safe to call when there was no event."""
        end_s = time.monotonic() + timeout_s
        if self._thread is None:
            return
        try:
            self._events.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(max(0.0, end_s - time.monotonic()))

    def _start(self) -> None:
        """Not before there is an event: that is after the fork, which no thread survives."""
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="access-log", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                _write(self._target, self._format(event))
            except Exception:  # noqa: BLE001  one event that cannot be written must not end the log
                self._on_drop()


def _write(target: int, line: bytes) -> None:
    """All of a line; in one piece where the pipe has space for it, so that lines of several workers do not mix."""
    while line:
        line = line[os.write(target, line) :]


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def _plain(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=\\') else json.dumps(text)
