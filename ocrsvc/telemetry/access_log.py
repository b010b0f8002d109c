"""The access log: one line for each request, written by a thread of its own so that no request waits for it.

An event holds what was asked and how it ended, and nothing of a page: the path without its query, which may carry an
image.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ocrsvc.telemetry.line_writer import QUEUE_LINES, LineWriter
from ocrsvc.telemetry.log_schema import DROPPED, LINE_BYTES, REQUEST, json_line, moment

_STDOUT: Final = 1
_LONGEST_PATH: Final = 200
# What a worker that is killed may lose of its lines.
_PAUSE_S: Final = 0.02
_LOGGER: Final = "ocrsvc.access"
_SERVER_ERROR: Final = 500
# gRPC's numbers of what is our fault; those of HTTP begin at 100.
_OUR_FAULT: Final = frozenset({2, 4, 12, 13, 14, 15})


@dataclass(frozen=True, slots=True)
class Event:
    """One answered request.

    Attributes:
        at_s: When it came, Unix time.
        id: The request's id.
        client: Address of the peer; a proxy's own if there is one. Empty for a Unix socket.
        method, path: As asked.
        door: The name of the API adapter that answered.
        status, code: How it ended; the code is "ok" for a success.
        bytes_in, bytes_out: Bodies, as far as their lengths are declared.
        seconds: From its headers to its answer.
        trace_id: Of the trace that it belongs to; empty for none.
        key: The name of the API key that it was let in with; empty for none.
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
    key: str = ""

    @property
    def level(self) -> str:
        """Its level in the schema of JSON lines."""
        return "error" if self.status >= _SERVER_ERROR or self.status in _OUR_FAULT else "info"


@dataclass(frozen=True, slots=True)
class Origin:
    """The process that writes a line, and the number of its worker; None for none."""

    pid: int
    worker: int | None = None


def as_json(event: Event, origin: Origin) -> bytes:
    """One line of JSON, in the schema of log_schema.py."""
    fields = _common(event.at_s, event.level, REQUEST, origin) | {"id": event.id}
    return json_line(fields | _optional(event) | _fields(event))


def as_text(event: Event, _origin: Origin) -> bytes:
    """One line of key=value; values that are not plain words are quoted as JSON quotes them."""
    pairs = {"time": moment(event.at_s), "id": event.id} | _fields(event) | _optional(event)
    return " ".join(f"{name}={_plain(value)}" for name, value in pairs.items()).encode("utf-8", "replace") + b"\n"


def _common(at_s: float, level: str, event: str, origin: Origin) -> dict[str, Any]:
    return {
        "time": moment(at_s),
        "level": level,
        "event": event,
        "logger": _LOGGER,
        "pid": origin.pid,
        "worker": origin.worker,
    }


def _fields(event: Event) -> dict[str, Any]:
    return {
        "client": event.client,
        "method": event.method,
        "path": event.path[:_LONGEST_PATH],
        "door": event.door,
        "status": event.status,
        "code": event.code,
        "bytes_in": event.bytes_in,
        "bytes_out": event.bytes_out,
        "seconds": round(event.seconds, 6),
    }


def _optional(event: Event) -> dict[str, Any]:
    return {name: value for name, value in (("trace_id", event.trace_id), ("key", event.key)) if value}


class AccessLog:
    """Writes events to a file descriptor, from a thread that the first event starts.

    Args:
        form: The format of a line.
        on_drop: Called for each event that found the queue full.
        target: File descriptor; standard output by default.
        most: Events that may wait.
        origin: Of the lines; this process by default.
    """

    def __init__(
        self,
        form: Literal["text", "json"],
        on_drop: Callable[[], object],
        target: int = _STDOUT,
        most: int = QUEUE_LINES,
        origin: Origin | None = None,
    ) -> None:
        self._as_line = as_json if form == "json" else as_text
        self._form, self._target, self._origin = form, target, origin or Origin(os.getpid())
        self._on_drop = on_drop
        self._writer: LineWriter[Event] = LineWriter(
            "access-log", self._write, self._write_lost, on_drop, most, _PAUSE_S
        )
        self.put, self.stop = self._writer.put, self._writer.stop

    def _write(self, events: Sequence[Event]) -> None:
        """Several lines in one call, as far as a pipe takes them whole."""
        together = b""
        for line in self._lines_of(events):
            if together and len(together) + len(line) > LINE_BYTES:
                _write_all(self._target, together)
                together = b""
            together += line
        _write_all(self._target, together)

    def _lines_of(self, events: Sequence[Event]) -> Iterator[bytes]:
        """The line of each; one that cannot be formed is dropped alone."""
        for event in events:
            try:
                yield self._as_line(event, self._origin)
            except (TypeError, ValueError):
                self._on_drop()

    def _write_lost(self, lost: int) -> None:
        message = f"DROPPED {lost} lines of this log"
        fields = _common(time.time(), "warning", DROPPED, self._origin) | {"message": message}
        line = json_line(fields) if self._form == "json" else f"time={fields['time']} lost={lost}\n".encode()
        _write_all(self._target, line)


def _write_all(target: int, line: bytes) -> None:
    """All of a line; in one piece where the pipe has space for it, so that lines of several workers do not mix."""
    while line:
        line = line[os.write(target, line) :]


def _plain(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=\\') else json.dumps(text)
