"""gunicorn's logger, which survives files that cannot be written or opened again.

A full disk costs lines of the log and nothing else; a file that cannot be opened again at SIGUSR1 or SIGHUP is tried
again at each line.
"""

from __future__ import annotations

import logging
from typing import Any

from gunicorn import glogging

from ocrsvc.access.log_filter import SECRETS_HIDDEN


class LastingFileHandler(logging.FileHandler):
    """A log file that may be missing for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or lose it: an error here would reach whoever logs."""
        try:
            super().emit(record)
        except OSError:
            return


class LastingLogger(glogging.Logger):  # type: ignore[misc]  # gunicorn has no types
    """See the module."""

    def setup(self, cfg: Any) -> None:
        """Read the configuration; after the start, what cannot be done leaves the handlers as they were."""
        self.error_log.addFilter(SECRETS_HIDDEN)
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
        for handler in (handler for log in logs for handler in log.handlers):
            if type(handler) is logging.FileHandler:
                handler.__class__ = LastingFileHandler

    def reopen_files(self) -> None:
        """Open the files again; in the arbiter and in each worker, there in a signal's handler."""
        try:
            super().reopen_files()
        except OSError as error:
            # The others would be left as they are: each is opened by its next line.
            for handler in (handler for log in (self.error_log, self.access_log) for handler in log.handlers):
                if isinstance(handler, logging.FileHandler):
                    handler.close()
            self.error("A log file cannot be opened again: %s", error)
