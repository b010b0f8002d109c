"""Reads the documents in the job store: one thread of each worker, one document at a time, at batch priority.

It takes whichever job is free, so that what a worker leaves behind, because it was replaced or died, is continued by
another one after the last page that was written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ocrsvc.access.gate import AccessGate
from ocrsvc.errors import ClientGone, OcrsvcError, QuotaExceeded, Refused
from ocrsvc.jobs.begun_pages import MOST_TRIES, OPENING, BegunPages
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_reading import JobReading
from ocrsvc.jobs.job_result import make_result
from ocrsvc.jobs.store import JobStore, StorageFull, storing
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.work_queue import RequestContext, client_gone
from ocrsvc.telemetry.loggable import loggable_error

LOGGER: Final = logging.getLogger("ocrsvc.jobs")
_POLL_S: Final = 1.0
_SWEEP_ROUNDS: Final = 60
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_LOG_INTERVAL_S: Final = 60.0


class Runner:
    """A thread that reads what waits; `start` it when the reader is ready, and `stop` it before the reader is.

    Args:
        jobs: Where they are.
        reader: Reads their pages, at low priority.
        page_s: Seconds that a page may take, its wait included.
        is_leaving: Whether this process is to end, so that others should go on.
        gate: Counts the pages for the keys of those who left the documents; None where there are no keys.
    """

    def __init__(
        self,
        jobs: JobStore,
        reader: Reader,
        page_s: float,
        is_leaving: Callable[[], bool],
        gate: AccessGate | None = None,
    ) -> None:
        self._jobs, self._reader, self._page_s, self._is_leaving = jobs, reader, page_s, is_leaving
        self._gate = gate
        self._stopped = threading.Event()
        self._pause_s = 0.0
        self._quiet_until_s = 0.0
        self._thread = threading.Thread(target=self._run, name="documents", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Leave the job that is under way to others."""
        self._stopped.set()
        self._jobs.added.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _is_stopping(self) -> bool:
        return self._stopped.is_set() or self._is_leaving()

    def _run(self) -> None:
        rounds = 0
        # An earlier service may have left some.
        self._jobs.added.set()
        while not self._is_stopping():
            self._jobs.added.wait(_POLL_S)
            self._jobs.added.clear()
            rounds += 1
            try:
                with storing():
                    if rounds % _SWEEP_ROUNDS == 0:
                        self._jobs.sweep()
                    self._read_all()
                self._pause_s = 0.0
            except Exception as error:  # noqa: BLE001  a thread that ended would leave every later document unread
                self._pause(error)

    def _pause(self, error: Exception) -> None:
        """Try again later, and later each time; what is wrong with the disk is logged now and then, not each time."""
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_INTERVAL_S
            shown = loggable_error(error)
            cause = None if isinstance(error, StorageFull) else shown
            LOGGER.error("documents cannot be read; tried again later: %s", shown, exc_info=cause)
        self._stopped.wait(self._pause_s)

    def _read_all(self) -> None:
        for job in self._jobs.waiting():
            if self._is_stopping():
                return
            with suppress(FileNotFoundError), job.claim() as is_ours:
                if is_ours and job.state()[0] in {"waiting", "running"}:
                    self._read(job)

    def _read(self, job: Job) -> None:
        """Read what is left of a job; one that meets a full disk, also at its very end, is left to be gone on with."""
        try:
            with storing():
                self._read_remaining_pages(job)
        except StorageFull:
            job.release()
            raise

    def _read_remaining_pages(self, job: Job) -> None:
        context = RequestContext("batch", lambda: self._is_stopping() or not job.is_there())
        try:
            with storing():
                JobReading(job, self._reader, self._page_s, context, self._gate, self._give_way).read()
                self._make_files(job, context)
        except StorageFull:
            raise
        except QuotaExceeded as error:
            self._fail(job, error)
        except (ClientGone, Refused):
            return
        except OcrsvcError as error:
            self._fail(job, error)
        except Exception as error:
            if not job.is_there():
                return
            LOGGER.error("a document cannot be read", exc_info=loggable_error(error))
            self._fail(job, OcrsvcError("Something went wrong here; it is in the service's log."))
        else:
            job.finish("success")
            self._jobs.note("done")

    def _make_files(self, job: Job, context: RequestContext) -> None:
        """Those that were asked for; who fetches one that could not be made learns why. Raises ClientGone, OSError."""

        def check() -> None:
            if context.is_gone():
                raise client_gone()

        begun = BegunPages(job)
        for place, name in enumerate(job.about().get("formats", ())):
            number = OPENING - 1 - place
            if begun.times(number) >= MOST_TRIES:
                LOGGER.error("no file was made of job %s format=%s: whoever makes it ends", job.id, name)
                continue
            begun.begin(number)
            try:
                make_result(self._jobs, job, name, check)
            except ClientGone:
                begun.forget(number)
                raise
            except OcrsvcError as error:
                LOGGER.info("no file was made of job %s format=%s code=%s", job.id, name, error.code)
            begun.end(number)

    def _fail(self, job: Job, error: OcrsvcError) -> None:
        job.finish("failure", str(error), error.code)
        self._jobs.note("failed")

    def _give_way(self) -> None:
        """Others come first."""
        self._stopped.wait(_POLL_S)
