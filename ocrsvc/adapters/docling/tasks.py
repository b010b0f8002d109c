"""The asynchronous half of docling-serve: documents that are taken in, asked after, and fetched when they are done."""

from __future__ import annotations

import math
import threading
import time
from typing import IO, Any, Final

from flask import Response

from ocrsvc.adapters.docling.contents import Converted, Writing, write_answer, write_archive
from ocrsvc.adapters.docling.conversion import ZIP, Conversion, as_members, from_members
from ocrsvc.adapters.docling.sources import ConvertRequest, request_of_form, request_of_json
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.job_requests import ResultFiles, owner_of_request
from ocrsvc.jobs.intake import JobRequest, add_job, find_job
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_result import ANSWER, JobPages
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Check
from ocrsvc.serving.request_guard import waiting
from ocrsvc.settings.settings import Settings

SOURCE: Final = "docling"
_STATES: Final = {"waiting": "pending", "running": "started", "success": "success", "failure": "failure"}
_LONGEST_WAIT_S: Final = 10.0
_LOOK_S: Final = 0.05
# Each holds a thread of the worker; whoever finds none free is answered at once.
_WAITING: Final = 2

ZIP_TYPE: Final = "application/zip"
ARCHIVE_HEADERS: Final = {"Content-Disposition": 'attachment; filename="converted_docs.zip"'}
"""Of an answer that is an archive."""


class TaskUnknown(OcrsvcError):
    """There is no such task; docling's client knows it by this sentence."""

    status = 404
    code = "task_unknown"
    title = "No such task"


def unknown() -> TaskUnknown:
    """The error of a task that is not there."""
    return TaskUnknown("Task not found.")


class TaskViews:
    """The views of tasks; for any thread.

    Args:
        settings, reader: Those of the service.
        tasks: Keeps the documents.
        url_files: Fetches those that are named by a URL.
    """

    def __init__(self, settings: Settings, reader: Reader, jobs: JobStore, url_files: UrlFiles) -> None:
        self._settings, self._reader, self._jobs, self._url_files = settings, reader, jobs, url_files
        self._waiting = threading.BoundedSemaphore(_WAITING)

    def take_form(self) -> Response:
        """Take in a file of a form."""
        return self._take(request_of_form(request.content))

    def take_sources(self) -> Response:
        """Take in a source of JSON."""
        return self._take(request_of_json(request.content, self._url_files))

    def _take(self, asked: ConvertRequest) -> Response:
        if len(asked.documents) != 1:
            raise BadOption("A task takes one document.", "Send each by itself, or all of them without async.")
        document, conversion = asked.documents[0], asked.conversion
        job_request = JobRequest(
            document.data,
            conversion.read_options(has_models=self._reader.has_models),
            Record(*owner_of_request(), SOURCE, document.filename, asked=as_members(conversion)),
            conversion.ranges,
        )
        job = add_job(self._jobs, self._reader, self._settings, job_request, request.context, request.left_s)
        return as_json(status_of(job))

    def status(self, task_id: str) -> Response:
        """How far a task is; with `wait` not before it is done, or so many seconds have passed."""
        job = self.find(task_id)
        try:
            self._wait(job, request.args.get("wait", 0.0, float))
            return as_json(status_of(job))
        except FileNotFoundError as error:
            raise unknown() from error

    def _wait(self, job: Job, asked_s: float) -> None:
        until_s = time.monotonic() + min(asked_s, _LONGEST_WAIT_S, request.left_s / 2)
        if not asked_s > 0 or not self._waiting.acquire(blocking=False):
            return
        try:
            with waiting():
                while not job.is_done() and job.is_there() and time.monotonic() < until_s and not request.is_gone():
                    time.sleep(_LOOK_S)
        finally:
            self._waiting.release()

    def result(self, task_id: str) -> Response:
        """The answer of a task that is done."""
        job = self.find(task_id)
        try:
            progress = job.progress()
            if progress.state not in {"success", "failure"}:
                raise TaskUnknown("Task result not found. Please wait for a completion status.")
            if progress.state == "failure":
                return as_json({"kind": "TaskFailureResult", "failure": failure_of_task(progress.why)})
            is_archive = _conversion_of(job).target == ZIP
            answer = ResultFiles(self._jobs, self._reader).send(job, ANSWER, ZIP_TYPE if is_archive else JSON_TYPE)
        except FileNotFoundError as error:
            raise unknown() from error
        if is_archive:
            answer.headers.update(ARCHIVE_HEADERS)
        return answer

    def find(self, task_id: str) -> Job:
        """The task of this id. Raises TaskUnknown, also for one of another key or format."""
        job = find_job(self._jobs, task_id, owner_of_request(), SOURCE)
        if job is None:
            raise unknown()
        return job


def status_of(job: Job) -> dict[str, Any]:
    """TaskStatusResponse of a task. Raises FileNotFoundError when it was cleared."""
    progress = job.progress()
    state, why = progress.state, progress.why
    is_done = state in {"success", "failure"}
    return {
        "task_id": job.id,
        "task_type": "convert",
        "task_status": _STATES[state],
        "task_position": None,
        "task_meta": {
            "num_docs": 1,
            "num_processed": int(is_done),
            "num_succeeded": int(state == "success"),
            "num_failed": int(state == "failure"),
        },
        "error_message": why or None,
        "failure": failure_of_task(why) if state == "failure" else None,
    }


def failure_of_task(why: str) -> dict[str, object]:
    """PublicFailureInfo of a task that failed."""
    return {"category": "backend_failure", "message": why, "retryable": False, "phase": "execution", "details": {}}


def write_task_answer(job: Job, output: IO[bytes], check: Check) -> None:
    """Write the answer of a task whose pages are all read, a page at a time.

    Raises:
        CallerError: It is to be an archive, and no page was read.
        FileNotFoundError: It was cleared.
    """
    record, asked, failed = job.record(), _conversion_of(job), set(job.failed_pages())
    errors = (
        [(row["number"], row["error"]) for place, row in enumerate(job.pages()) if place in failed] if failed else []
    )
    count = 0 if failed and asked.stops_at_error else job.page_count() - len(failed)
    converted = Converted(record.name, JobPages(job), count, errors)
    writing = Writing(math.inf, check)
    if asked.target == ZIP:
        write_archive([converted], asked, output, writing)
    else:
        spent_s = time.time() - (job.started_at_s() or record.came_at_s)
        write_answer(converted, asked, spent_s, output, writing)


def _conversion_of(job: Job) -> Conversion:
    return from_members(job.record().asked)
