"""gunicorn's logger, as text or JSON: a full disk costs lines, a file that is refused is tried at each line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

from gunicorn import glogging

from ocrsvc.access.api_keys import hide_secrets
from ocrsvc.telemetry.event_log import TARGETS, BackgroundHandler, JsonFormatter, ReadyStreamHandler, log_uncaught

Form = Literal["text", "json"]


class LastingFileHandler(logging.FileHandler):
    """A log file that may be missing for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or lose it: an error here would reach the code that logs."""
        try:
            super().emit(record)
        except OSError:
            return


class LastingLogger(glogging.Logger):  # type: ignore[misc]  # gunicorn has no types
    """See the module."""

    form: ClassVar[Form] = "text"

    def setup(self, cfg: Any) -> None:
        """Read the configuration; after the start, what cannot be done leaves the handlers as they were."""
        self.error_log.addFilter(hide_secrets)
        logs = (self.error_log, self.access_log)
        before = [list(log.handlers) for log in logs]
        try:
            super().setup(cfg)
        except (OSError, RuntimeError) as error:
            if not any(before):
                raise
            for log, handlers in zip(logs, before, strict=True):
                log.handlers[:] = handlers
            self.error("The log goes on as before: %s", error)
        for handler in self._handlers():
            if type(handler) is logging.FileHandler:
                handler.__class__ = LastingFileHandler
            elif type(handler) is logging.StreamHandler:
                handler.__class__ = ReadyStreamHandler
        # At a reload the class may be another than this one's.
        if getattr(cfg.logger_class, "form", self.form) == "json":
            self._write_json()

    def _write_json(self) -> None:
        """Everything that Python's logging, its warnings and its uncaught errors say, as JSON."""
        _set_json(self.error_log.handlers, None)
        logging.captureWarnings(capture=True)
        logging.getLogger().handlers[:] = self.error_log.handlers
        log_uncaught()

    def reopen_files(self) -> None:
        """Open the files again; in the arbiter and in each worker, there in a signal's handler."""
        try:
            super().reopen_files()
        except OSError as error:
            # The others would be left as they are: each is opened by its next line.
            for handler in self._handlers():
                if isinstance(handler, logging.FileHandler):
                    handler.close()
            self.error("A log file cannot be opened again: %s", error)

    def _handlers(self) -> Iterator[logging.Handler]:
        """Those that write; in a worker the service's log has its own elsewhere."""
        for log in (self.error_log, self.access_log, logging.getLogger(TARGETS)):
            yield from log.handlers


class JsonLogger(LastingLogger):
    """The same with JSON."""

    form: ClassVar[Form] = "json"


def count_lost_lines(log: LastingLogger, on_drop: Callable[[], object]) -> None:
    """Arbiter: call this for each line that is lost."""
    for handler in log.error_log.handlers:
        if isinstance(handler, ReadyStreamHandler):
            handler.on_drop = on_drop


def log_in_background(log: LastingLogger, worker: int, on_drop: Callable[[], object]) -> BackgroundHandler:
    """Worker, after its fork: have a thread write what gunicorn, this package and all others log; counts lost lines."""
    targets, handlers = logging.getLogger(TARGETS), list(log.error_log.handlers)
    targets.propagate, targets.handlers[:] = False, handlers
    count_lost_lines(log, on_drop)
    if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers):
        _set_json(handlers, worker)
    background = BackgroundHandler(on_drop)
    own = logging.getLogger("ocrsvc")
    own.propagate = False
    own.setLevel(log.error_log.level)
    for logger in (log.error_log, own, logging.getLogger()):
        logger.handlers[:] = [background]
    return background


def _set_json(handlers: list[logging.Handler], worker: int | None) -> None:
    """Write JSON from here on; syslog has a format of its own."""
    for handler in handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setFormatter(JsonFormatter(worker))
