"""Reads the documents in the job store: one thread of each worker, one page after the other, at batch priority.

It takes whichever job is free, so that what a worker leaves behind, because it was replaced or died, is continued by
another one after the last page that was written.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ocrsvc.access.gate import AccessGate
from ocrsvc.access.request_pages import RequestPages
from ocrsvc.errors import ClientGone, DeadlineExceeded, KeyRefused, OcrsvcError, QuotaExceeded, Refused
from ocrsvc.formats.page_serialization import pack_page
from ocrsvc.imaging.document import DocumentPage
from ocrsvc.jobs.store import MOST_TRIES, StorageFull, Task, Tasks, storing
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.records import ReadOptions
from ocrsvc.serving.work_queue import NeverStarted, RequestContext, client_gone
from ocrsvc.telemetry.loggable import loggable_error

if TYPE_CHECKING:
    # Loaded where there is a model repository alone.
    from ocrsvc.model_serving.loaded_models import Lease

LOGGER: Final = logging.getLogger("ocrsvc.tasks")
_POLL_S: Final = 1.0
_SWEEP_ROUNDS: Final = 60
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_LOG_INTERVAL_S: Final = 60.0


class Runner:
    """A thread that reads what waits; `start` it when the reader is ready, and `stop` it before the reader is.

    Args:
        tasks: Where they are.
        reader: Reads their pages, at low priority.
        page_s: Seconds that a page may take, its wait included.
        is_leaving: Whether this process is to end, so that others should go on.
        gate: Counts the pages for the keys of those who left the documents; None where there are no keys.
    """

    def __init__(
        self,
        tasks: Tasks,
        reader: Reader,
        page_s: float,
        is_leaving: Callable[[], bool],
        gate: AccessGate | None = None,
    ) -> None:
        self._tasks, self._reader, self._page_s, self._is_leaving = tasks, reader, page_s, is_leaving
        self._gate = gate
        self._stopped = threading.Event()
        self._pause_s = 0.0
        self._quiet_until_s = 0.0
        self._thread = threading.Thread(target=self._run, name="documents", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Leave the task that is under way to others."""
        self._stopped.set()
        self._tasks.added.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _is_stopping(self) -> bool:
        return self._stopped.is_set() or self._is_leaving()

    def _run(self) -> None:
        rounds = 0
        while not self._is_stopping():
            self._tasks.added.wait(_POLL_S)
            self._tasks.added.clear()
            rounds += 1
            try:
                with storing():
                    if rounds % _SWEEP_ROUNDS == 0:
                        self._tasks.sweep()
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
        for task in self._tasks.waiting():
            if self._is_stopping():
                return
            with suppress(FileNotFoundError), task.claim() as is_ours:
                if is_ours and task.state()[0] in {"waiting", "running"}:
                    self._read(task)

    def _read(self, task: Task) -> None:
        """Read what is left of a task; one that meets a full disk, also at its very end, is left to be gone on with."""
        try:
            with storing():
                self._read_remaining_pages(task)
        except StorageFull:
            task.release()
            raise

    def _read_remaining_pages(self, task: Task) -> None:
        context = RequestContext("batch", lambda: self._is_stopping() or not task.is_there())
        try:
            with storing():
                about = task.about()
                options = ReadOptions(**about["options"])
                with (
                    self._reader.open_document(task.data(), math.inf, context) as document,
                    self._reader.one_version(options, self._page_s, context) as lease,
                ):
                    for number in about["numbers"][task.count_pages() :]:
                        row = self._read_page(task, DocumentPage(document, number), about, context, lease)
                        task.add_page({"number": number, **row})
        except StorageFull:
            raise
        except QuotaExceeded as error:
            task.finish("failure", str(error))
        except (ClientGone, Refused):
            return
        except OcrsvcError as error:
            task.finish("failure", str(error))
        except Exception as error:
            if not task.is_there():
                return
            LOGGER.error("a document cannot be read", exc_info=loggable_error(error))
            task.finish("failure", "Something went wrong here; it is in the service's log.")
        else:
            task.finish("success")

    def _read_page(
        self,
        task: Task,
        page: DocumentPage,
        about: Mapping[str, Any],
        context: RequestContext,
        lease: Lease | None,
    ) -> dict[str, Any]:
        """What is written of a page, tried again while others come first, and a few times where it takes too long.

        Raises:
            ClientGone: This process ends, or the task was cleared.
            KeyRefused: The key of who left the document is not valid any more.
            QuotaExceeded: It has no pages left.
        """
        why = f"The page was begun {MOST_TRIES} times and never finished, and is left out."
        times = task.begin(page.number)
        while times < MOST_TRIES:
            try:
                if context.is_gone():
                    raise client_gone()
                read = self._read_counted(page, about, context, lease)
                return {"page": pack_page(read.page), "took_s": read.timing.total_s, "at_s": time.time()}
            except ClientGone:
                task.forget_begin(page.number)
                raise
            except (KeyRefused, QuotaExceeded):
                task.forget_begin(page.number)
                raise
            except (Refused, NeverStarted):
                self._stopped.wait(_POLL_S)
            except DeadlineExceeded as late:
                # A page that is too slow for us counts like one that ends us.
                times, why = task.begin(page.number), str(late)
            except OcrsvcError as error:
                return {"error": str(error)}
        return {"error": why}

    def _read_counted(
        self, page: DocumentPage, about: Mapping[str, Any], context: RequestContext, lease: Lease | None
    ) -> Reading:
        """One page, which counts for the key of who left the document. Raises OcrsvcError."""
        options = ReadOptions(**about["options"])
        if self._gate is None or about.get("key") is None:
            return self._reader.read(page, options, self._page_s, context, lease)
        pages = RequestPages(self._gate.resume(about["key"]))
        try:
            read = self._reader.read(page, options, self._page_s, replace(context, pages=pages), lease)
            pages.settle(succeeded=True)
            return read
        finally:
            pages.release()
