"""Log lines, one JSON event each as docs/log.schema.json describes, and the thread that writes them.

A line has at most LINE_BYTES, so that a write to a pipe is atomic and lines of several processes never mix. When the
queue is full, lines are dropped and counted; a later line reports their number.
"""

import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import orjson

T = TypeVar("T")

QUEUE_LINES: Final = 10_000
_TOGETHER: Final = 64

LINE_BYTES: Final = 4096
"""Longest line with its newline: Linux's PIPE_BUF, up to which a write to a pipe is atomic."""

# Values of the field `event` for an answered request, and for dropped log lines.
REQUEST: Final = "request"
DROPPED: Final = "dropped"
_MESSAGE: Final = "message"
# The field that is shortened first in a long line. It loses its beginning, because a stack trace ends with the error.
_STACK: Final = "stack"
_LONG: Final = (_STACK, _MESSAGE, "path")
_MIN_CHARACTERS: Final = 40
# Our messages begin with the event's name in capitals: READY, WANTS, DRAINING, RECYCLED, STUCK, HELD, CHILD … LOST.
_NAMED: Final = re.compile(r"(?:CHILD \S+ )?([A-Z]{4,20})\b(?!-)")


def head(at_s: float, level: str, event: str, logger: str, pid: int | None, worker: int | None) -> dict[str, Any]:
    """The fields with which every line begins."""
    return {"time": moment(at_s), "level": level, "event": event, "logger": logger, "pid": pid, "worker": worker}


def json_line(fields: dict[str, Any]) -> bytes:
    """Format fields as a line with its newline; shorten long texts until the line has at most LINE_BYTES."""
    line = _dump(fields)
    for name in _LONG:
        if len(line) <= LINE_BYTES:
            break
        if text := fields.get(name):
            fields = fields | {name: _shortened(text, len(line) - LINE_BYTES, at_end=name != _STACK)}
            line = _dump(fields)
    return line


def event_name(message: str) -> str:
    """The first word in lower case if it is an event's name, as in this service's own messages; else "message"."""
    named = _NAMED.match(message)
    return named[1].lower() if named else _MESSAGE


def moment(at_s: float) -> str:
    """Format a Unix time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def _shortened(text: str, excess_bytes: int, *, at_end: bool) -> str:
    """Shorten a text by `excess_bytes` or more of its JSON, keeping at least 40 characters; "…" marks the cut."""
    keep, full_bytes = len(text), len(orjson.dumps(text))
    while keep > _MIN_CHARACTERS and full_bytes - len(orjson.dumps(_cut(text, keep, at_end=at_end))) < excess_bytes:
        keep = max(_MIN_CHARACTERS, keep - max(_MIN_CHARACTERS, keep // 8))
    return _cut(text, keep, at_end=at_end)


def _cut(text: str, keep: int, *, at_end: bool) -> str:
    if len(text) <= keep:
        return text
    return f"{text[:keep]}…" if at_end else f"…{text[-keep:]}"


def _dump(fields: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # orjson refuses lone surrogates, by which Python represents bytes that are not UTF-8.
        plain = {
            name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            for name, value in fields.items()
        }
        return orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE)


class LineWriter(Generic[T]):
    """Writes lines in order in a thread, which starts with the first line because threads do not survive a fork.

    Any thread and signal handlers may call it. The thread calls `write` with lines, and `write_lost` with the number of
    lost ones; if `write` raises, its lines are lost. After each write it waits `pause_s` for more lines, because waking
    it for each line would cost more than writing it.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[T]], object],
        write_lost: Callable[[int], object],
        on_drop: Callable[[], object],
        max_queued: int = QUEUE_LINES,
        pause_s: float = 0.0,
    ) -> None:
        self._name, self._write, self._write_lost, self._on_drop = name, write, write_lost, on_drop
        self._max_queued, self._pause_s = max_queued, pause_s
        # SimpleQueue, because its `put` is reentrant and so cannot deadlock in a signal handler.
        self._lines: queue.SimpleQueue[T | threading.Event | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._lost = 0

    def put(self, line: T) -> None:
        """Queue a line, or drop it if the queue is full; never blocks."""
        if self._lines.qsize() >= self._max_queued:
            self._lost += 1
            self._on_drop()
        elif self._start():
            self._lines.put(line)
        else:
            self._on_drop()

    def flush(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until all queued lines are written; return whether they are."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._lines.put(done)
        return done.wait(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Write queued lines for at most `timeout_s`, and end the thread."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(timeout_s)

    def _start(self) -> bool:
        """Start the thread if needed; return whether it runs. If the system refuses it, the next line tries again."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:
                        return False
                    self._thread = thread
        return True

    def _run(self) -> None:
        is_over = False
        while not is_over:
            lines, marks = list[T](), list[threading.Event]()
            for line in self._take():
                if line is None:
                    is_over = True
                elif isinstance(line, threading.Event):
                    marks.append(line)
                else:
                    lines.append(line)
            if lines:
                self._write_out(lines)
            for mark in marks:
                mark.set()
            if self._pause_s and not is_over:
                time.sleep(self._pause_s)

    def _take(self) -> list[T | threading.Event | None]:
        """Wait for a queued line, and return up to 64 lines."""
        taken = [self._lines.get()]
        with suppress(queue.Empty):
            while len(taken) < _TOGETHER:
                taken.append(self._lines.get_nowait())
        return taken

    def _write_out(self, lines: Sequence[T]) -> None:
        try:
            self._write(lines)
            if self._lost:
                lost, self._lost = self._lost, 0
                self._write_lost(lost)
        except Exception:  # noqa: BLE001  a failed write must not end the thread
            for _ in lines:
                self._on_drop()
