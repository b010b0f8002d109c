"""gunicorn's logger, as text or JSON. Write errors only lose lines; each line tries again to open a closed file."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar

from gunicorn import glogging

from ocrsvc.access.api_keys import hide_secrets
from ocrsvc.telemetry.event_log import TARGETS, BackgroundHandler, JsonFormatter, ReadyStreamHandler, log_uncaught


class LastingFileHandler(logging.FileHandler):
    """Writes to a log file that may be unwritable for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line; ignore errors, which would otherwise reach the code that logs."""
        with suppress(OSError):
            super().emit(record)


class LastingLogger(glogging.Logger):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's logger with handlers that neither raise nor block."""

    is_json: ClassVar[bool] = False

    def setup(self, cfg: Any) -> None:
        """Apply the configuration; on an error after the start the old handlers stay."""
        logs = (self.error_log, self.access_log)
        for log in logs:
            log.addFilter(hide_secrets)
        before = [list(log.handlers) for log in logs]
        try:
            super().setup(cfg)
        except (OSError, RuntimeError) as error:
            if not any(before):
                raise
            for log, handlers in zip(logs, before, strict=True):
                log.handlers[:] = handlers
            self.error("The log keeps its files: %s", error)
        for handler in self._handlers():
            if type(handler) is logging.FileHandler:
                handler.__class__ = LastingFileHandler
            elif type(handler) is logging.StreamHandler:
                handler.__class__ = ReadyStreamHandler
        # A reload may choose another logger class.
        if getattr(cfg.logger_class, "is_json", self.is_json):
            # Write the logs, warnings and uncaught errors of all packages as JSON.
            _set_json(self.error_log.handlers, None)
            logging.captureWarnings(capture=True)
            logging.getLogger().handlers[:] = self.error_log.handlers
            log_uncaught()

    def reopen_files(self) -> None:
        """Reopen the files; runs in the arbiter and, in a signal handler, in each worker."""
        try:
            super().reopen_files()
        except OSError as error:
            # Close all handlers: each reopens its file with its next line.
            for handler in self._handlers():
                if isinstance(handler, logging.FileHandler):
                    handler.close()
            self.error("A log file cannot be reopened: %s", error)

    def _handlers(self) -> Iterator[logging.Handler]:
        """Handlers that write to files and streams; in a worker, the logger TARGETS has the error log's handlers."""
        for log in (self.error_log, self.access_log, logging.getLogger(TARGETS)):
            yield from log.handlers


class JsonLogger(LastingLogger):
    """LastingLogger with lines in JSON."""

    is_json: ClassVar[bool] = True


def count_lost_lines(log: LastingLogger, on_drop: Callable[[], object]) -> None:
    """Call `on_drop` for each lost line of the error log."""
    for handler in log.error_log.handlers:
        if isinstance(handler, ReadyStreamHandler):
            handler.on_drop = on_drop


def log_in_background(log: LastingLogger, worker: int, on_drop: Callable[[], object]) -> BackgroundHandler:
    """Worker, after its fork: let a thread write the logs of gunicorn and all packages; `on_drop` counts lost lines."""
    targets, handlers = logging.getLogger(TARGETS), list(log.error_log.handlers)
    targets.propagate, targets.handlers[:] = False, handlers
    count_lost_lines(log, on_drop)
    if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers):
        _set_json(handlers, worker)
    background = BackgroundHandler(on_drop)
    package_log = logging.getLogger("ocrsvc")
    package_log.propagate = False
    package_log.setLevel(log.error_log.level)
    for logger in (log.error_log, package_log, logging.getLogger()):
        logger.handlers[:] = [background]
    return background


def _set_json(handlers: list[logging.Handler], worker: int | None) -> None:
    """Write JSON to files and streams; syslog keeps its format."""
    for handler in handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setFormatter(JsonFormatter(worker))
