"""The access log: one line per request, without page content or query strings, written in a background thread."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ocrsvc.telemetry.log_lines import DROPPED, LINE_BYTES, QUEUE_LINES, REQUEST, LineWriter, head, json_line, moment

_STDOUT: Final = 1
_LONGEST_PATH: Final = 200
_FIELDS: Final = ("client", "method", "path", "adapter", "status", "code", "bytes_in", "bytes_out", "seconds")
# Delay before lines are written, so that one call writes several; a killed worker loses delayed lines.
_PAUSE_S: Final = 0.02
_LOGGER: Final = "ocrsvc.access"
_SERVER_ERROR: Final = 500
# gRPC status codes of server faults; the same field may hold an HTTP status, but those begin at 100.
_OUR_FAULT: Final = frozenset({2, 4, 12, 13, 14, 15})


@dataclass(frozen=True, slots=True)
class Event:
    """The data of one answered request for its log line; `at_s` is Unix time.

    `client` is the peer's address, empty for a Unix socket; `key` is the name of an API key.
    """

    at_s: float
    id: str
    client: str
    method: str
    path: str
    adapter: str
    status: int
    code: str
    bytes_in: int
    bytes_out: int
    seconds: float
    trace_id: str = ""
    key: str = ""


class Origin(NamedTuple):
    """The process that writes a line, and its slot in the worker table."""

    pid: int
    worker: int | None = None


def as_json(event: Event, origin: Origin) -> bytes:
    """Format an event as one line of JSON, in the schema of log_lines.py."""
    level = "error" if event.status >= _SERVER_ERROR or event.status in _OUR_FAULT else "info"
    fields = head(event.at_s, level, REQUEST, _LOGGER, origin.pid, origin.worker)
    return json_line(fields | {"id": event.id} | _optional(event) | _fields(event))


def as_text(event: Event, _origin: Origin) -> bytes:
    """Format an event as one line of key=value; values other than plain words are quoted as JSON strings."""
    pairs = {"time": moment(event.at_s), "id": event.id} | _fields(event) | _optional(event)
    return " ".join(f"{name}={_plain(value)}" for name, value in pairs.items()).encode("utf-8", "replace") + b"\n"


def _fields(event: Event) -> dict[str, Any]:
    changed = {"path": event.path[:_LONGEST_PATH], "seconds": round(event.seconds, 6)}
    return {name: changed[name] if name in changed else getattr(event, name) for name in _FIELDS}


def _optional(event: Event) -> dict[str, Any]:
    return {name: value for name, value in (("trace_id", event.trace_id), ("key", event.key)) if value}


class AccessLog:
    """Writes events to a file descriptor in a background thread; calls `on_drop` for each lost event."""

    def __init__(
        self,
        form: Literal["text", "json"],
        on_drop: Callable[[], object],
        target: int = _STDOUT,
        max_queued: int = QUEUE_LINES,
        origin: Origin | None = None,
    ) -> None:
        self._as_line = as_json if form == "json" else as_text
        self._form, self._target, self._origin = form, target, origin or Origin(os.getpid())
        self._on_drop = on_drop
        self._writer: LineWriter[Event] = LineWriter(
            "access-log", self._write, self._write_lost, on_drop, max_queued, _PAUSE_S
        )
        self.put, self.stop = self._writer.put, self._writer.stop

    def _write(self, events: Sequence[Event]) -> None:
        """Write lines in groups small enough to be written to a pipe atomically."""
        together = b""
        for line in self._lines_of(events):
            if together and len(together) + len(line) > LINE_BYTES:
                _write_all(self._target, together)
                together = b""
            together += line
        _write_all(self._target, together)

    def _lines_of(self, events: Sequence[Event]) -> Iterator[bytes]:
        """Format events as lines; drop events that cannot be formatted."""
        for event in events:
            try:
                yield self._as_line(event, self._origin)
            except (TypeError, ValueError):
                self._on_drop()

    def _write_lost(self, lost: int) -> None:
        fields = head(time.time(), "warning", DROPPED, _LOGGER, self._origin.pid, self._origin.worker)
        fields["message"] = f"DROPPED {lost} lines of this log"
        line = json_line(fields) if self._form == "json" else f"time={fields['time']} lost={lost}\n".encode()
        _write_all(self._target, line)


def _write_all(target: int, line: bytes) -> None:
    """Write bytes with one call if the pipe has room, so that lines of several workers do not mix."""
    while line:
        line = line[os.write(target, line) :]


def _plain(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=\\') else json.dumps(text)
