"""The service's own log: JSON lines, and handlers that never block a request.

The arbiter writes its lines directly if the stream accepts them; a worker has a thread for that (log_lines.py).
"""

import logging
import select
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from ocrsvc.results import ignore
from ocrsvc.telemetry.log_lines import DROPPED, LineWriter, event_name, head, json_line
from ocrsvc.telemetry.loggable import loggable_error
from ocrsvc.telemetry.request_ids import RequestIds, current_ids

TARGETS: Final = "ocrsvc.log_targets"
"""Name of the logger whose handlers write a worker's lines. A logger, so that gunicorn reopens its files on SIGUSR1."""

_PATIENCE_MS: Final = 1000
_IDS: Final = "request_ids"


class JsonFormatter(logging.Formatter):
    """Formats records as JSON lines, as log_lines.py describes; `worker` is the worker's slot."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line without a newline."""
        message = record.getMessage()
        event = getattr(record, "event", None) or event_name(message)
        fields = head(record.created, record.levelname.lower(), event, record.name, record.process, self._worker)
        ids: RequestIds | None = getattr(record, _IDS, None) or current_ids()
        if ids is not None:
            fields |= {"id": ids.id} | ({"trace_id": ids.trace_id} if ids.trace_id else {})
        fields["message"] = message
        if stack := _stack_of(record):
            fields["stack"] = stack
        return json_line(fields).decode().removesuffix("\n")


def _stack_of(record: logging.LogRecord) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return "\n".join(part for part in (record.exc_text, record.stack_info) if part)


class ReadyStreamHandler(logging.StreamHandler[Any]):
    """Writes to a stream; if the stream accepts nothing for a second, drops lines until it does."""

    lost = 0
    on_drop: Callable[[], object] = ignore

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or drop it if the stream cannot take it now."""
        if not _is_writable(self.stream, 0 if self.lost else _PATIENCE_MS):
            self.lost += 1
            self.on_drop()
            return
        super().emit(record)
        if self.lost:
            lost, self.lost = self.lost, 0
            super().emit(lost_record(lost))


def _is_writable(stream: Any, patience_ms: int) -> bool:
    """Whether the stream accepts a line within `patience_ms`; True if it cannot be polled."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return bool(poll.poll(patience_ms))
    except (AttributeError, OSError, ValueError):
        return True


class BackgroundHandler(logging.Handler):
    """Passes records to a thread that writes them with the handlers of TARGETS; `on_drop` counts lost records."""

    def __init__(self, on_drop: Callable[[], object], max_queued: int = 1000) -> None:
        super().__init__()
        self._is_stopped = False
        self._writer: LineWriter[logging.LogRecord] = LineWriter(
            *("event-log", lambda records: [*map(_write, records)], lambda lost: _write(lost_record(lost))),
            *(on_drop, max_queued),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Format a record and queue it, without keeping its arguments in memory."""
        setattr(record, _IDS, current_ids())
        try:
            record.msg, record.args = record.getMessage(), None
        except Exception:  # noqa: BLE001  a library's malformed log call must not fail a request
            record.args = None
        _stack_of(record)
        record.exc_info = None
        if self._is_stopped:
            _write(record)
        else:
            self._writer.put(record)

    def wait(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until all queued lines are written."""
        self._writer.flush(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Write queued lines for at most `timeout_s`; later lines are written by the thread that logs them."""
        self._is_stopped = True
        self._writer.stop(timeout_s)


def _write(record: logging.LogRecord) -> None:
    logging.getLogger(TARGETS).callHandlers(record)


def lost_record(lost: int) -> logging.LogRecord:
    """A warning record with the number of lost lines."""
    record = logging.LogRecord("ocrsvc", logging.WARNING, __file__, 0, f"DROPPED {lost} lines of this log", None, None)
    record.event = DROPPED
    return record


def log_as_json() -> None:
    """Write all logs of this process to stderr as JSON; for processes without gunicorn's logger."""
    handler = ReadyStreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger().handlers[:] = [handler]
    logging.captureWarnings(capture=True)
    log_uncaught()


def log_uncaught() -> None:
    """Log uncaught exceptions of all threads instead of printing them."""

    def log_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            _log_uncaught(loggable_error(args.exc_value), args.thread.name if args.thread is not None else "")

    threading.excepthook = log_thread
    sys.excepthook = lambda _kind, error, _trace: _log_uncaught(error, "main")


def _log_uncaught(error: BaseException, thread: str) -> None:
    logging.getLogger("ocrsvc").error("The thread %s ended with an error", thread, exc_info=error)
