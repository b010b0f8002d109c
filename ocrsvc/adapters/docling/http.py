"""The HTTP API of docling-serve (docling-project/docling-serve, port 5001): documents as Markdown, text and JSON.

As in docling-serve, the response for an unreadable document is HTTP 200 with status `failure`, for wrong options 422.
Access and overload errors keep their own HTTP status. Asynchronous requests are stored as jobs.
"""

import io
import threading
import time
from typing import Any, Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, Route, StoredDocuments, make_blueprint
from ocrsvc.adapters.docling.contents import Converted, write_answer, write_archive
from ocrsvc.adapters.docling.conversion import Conversion, Documents, request_of_form, request_of_json
from ocrsvc.errors import BadOption, CallerError, OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, is_reported_in_a_200
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import ANSWER
from ocrsvc.serving.request_guard import waiting

VERSIONS: Final = ("/v1", "/v1alpha")
ZIP_TYPE: Final = "application/zip"
ARCHIVE_HEADERS: Final = {"Content-Disposition": 'attachment; filename="converted_docs.zip"'}
_STATES: Final = {"waiting": "pending", "running": "started", "success": "success", "failure": "failure"}
# docling's client recognizes a missing task by this sentence.
_NOT_FOUND: Final = "Task not found."
_MAX_WAIT_S, _POLL_S = 10.0, 0.05
# How many requests may wait for a job's end, each occupying a worker thread; further ones return immediately.
_MAX_WAITING: Final = 2


class _UnknownJob(OcrsvcError, status=404, code="task_unknown", title="No such task"):
    """No job has this id, or the job has not ended."""


def make_docling(context: AdapterContext) -> Blueprint:
    """Make POST /v1/convert/… and GET /health; with a job store also /v1/status/… and /v1/result/…."""
    views, health = _Views(context), ("GET", "/health", lambda: as_json({"status": "ok"}))
    routes, job_routes = list[Route](), list[Route]()
    for prefix in VERSIONS:
        for kind, parse in (("file", request_of_form), ("source", request_of_json)):
            path, parsed = f"{prefix}/convert/{kind}", lambda parse=parse: parse(request.content, context)
            routes.append(("POST", path, lambda parsed=parsed: views.convert(*parsed())))
            job_routes.append(("POST", f"{path}/async", lambda parsed=parsed: views.add(*parsed())))
        job_routes.append(("GET", f"{prefix}/status/poll/<task_id>", views.status))
        job_routes.append(("GET", f"{prefix}/result/<task_id>", views.result))
    return make_blueprint("docling", _failure, routes, [health, *(job_routes if context.jobs is not None else ())])


class _Views:
    """The view functions of docling-serve's routes."""

    def __init__(self, context: AdapterContext) -> None:
        self._context, self._jobs = context, StoredDocuments(context, "docling")
        self._waiting = threading.BoundedSemaphore(_MAX_WAITING)

    def convert(self, documents: Documents, options: Conversion) -> Response:
        began_s = time.monotonic()
        until_s = began_s + min(request.left_s, options.limit_s or request.left_s)
        # All documents together share one time limit, so each gets what the previous ones left.
        read = [self._read(name, data, options, max(0.0, until_s - time.monotonic())) for name, data in documents]
        check, whole = request.make_check(), io.BytesIO()
        if len(read) == 1 and options.target != "zip":
            write_answer(read[0], options, time.monotonic() - began_s, whole, check)
            return Response(whole.getvalue(), content_type=JSON_TYPE)
        write_archive(read, options, whole, check)
        return Response(whole.getvalue(), content_type=ZIP_TYPE, headers=ARCHIVE_HEADERS)

    def _read(self, name: str, data: bytes, options: Conversion, limit_s: float) -> Converted:
        """Read a document; the result contains its errors. Raises errors that have their own HTTP status."""
        reader = self._context.reader
        read_options = options.read_options(has_models=reader.has_models)
        try:
            if not may_have_pages(data) and options.pages[0] == 1:
                page = reader.read(data, read_options, limit_s, request.context).page
                return Converted(name, [page], 1)
            file = reader.read_files([data], read_options, limit_s, request.context, options.ranges)[0]
        except CallerError as error:
            if not is_reported_in_a_200(error):
                raise
            return Converted(name, (), 0, [(None, str(failure_of(error)))])
        for _, failed in file.errors:
            if not file.readings and not is_reported_in_a_200(failed):
                raise failed
        errors = [(number, str(failure_of(error))) for number, error in file.errors]
        pages = [] if errors and options.stops_at_error else [reading.page for reading in file.readings]
        return Converted(name, pages, len(pages), errors)

    def add(self, documents: Documents, options: Conversion) -> Response:
        if len(documents) != 1:
            remedy = "Send one request per document, or all documents without async."
            raise BadOption("An asynchronous request takes one document.", remedy)
        name, data = documents[0]
        read_options = options.read_options(has_models=self._context.reader.has_models)
        kept = options.model_dump(mode="json", exclude_none=True)
        return as_json(_status_of(self._jobs.add(data, read_options, options.ranges, kept, name)))

    def status(self, task_id: str) -> Response:
        """Return a job's state when the job ends, or after the `wait` seconds in the query."""
        with self._jobs.find(task_id, _UnknownJob(_NOT_FOUND)) as job:
            self._wait(job, request.args.get("wait", 0.0, float))
            return as_json(_status_of(job))

    def _wait(self, job: Job, wait_s: float) -> None:
        until_s = time.monotonic() + min(wait_s, _MAX_WAIT_S, request.left_s / 2)
        if not wait_s > 0 or not self._waiting.acquire(blocking=False):
            return
        try:
            with waiting():
                while not job.is_done() and job.is_there() and time.monotonic() < until_s and not request.is_gone():
                    time.sleep(_POLL_S)
        finally:
            self._waiting.release()

    def result(self, task_id: str) -> Response:
        with self._jobs.find(task_id, _UnknownJob(_NOT_FOUND)) as job:
            progress = job.progress()
            if progress.state not in {"success", "failure"}:
                raise _UnknownJob("Task result not found. Please wait for a completion status.")
            if progress.state == "failure":
                return as_json({"kind": "TaskFailureResult", "failure": _failure_of_task(progress.why)})
            is_archive = job.record().asked["target"] == "zip"
            answer = self._jobs.send(job, ANSWER, ZIP_TYPE if is_archive else JSON_TYPE)
            answer.headers.update(ARCHIVE_HEADERS if is_archive else {})
            return answer


def _status_of(job: Job) -> dict[str, Any]:
    """A job as docling's TaskStatusResponse. Raises FileNotFoundError for a deleted one."""
    progress = job.progress()
    succeeded, failed = int(progress.state == "success"), int(progress.state == "failure")
    done = {"num_processed": succeeded + failed, "num_succeeded": succeeded, "num_failed": failed}
    return {
        "task_id": job.id,
        "task_type": "convert",
        "task_status": _STATES[progress.state],
        "task_position": None,
        "task_meta": {"num_docs": 1, **done},
        "error_message": progress.why or None,
        "failure": _failure_of_task(progress.why) if failed else None,
    }


def _failure_of_task(why: str) -> dict[str, object]:
    """A failed job as docling's PublicFailureInfo."""
    return {"category": "backend_failure", "message": why, "retryable": False, "phase": "execution", "details": {}}


def _failure(failure: OcrsvcError) -> Response:
    """The response to an error, in FastAPI's format."""
    is_bad_request = isinstance(failure, CallerError) and failure.status == CallerError.status
    return as_json({"detail": str(failure)}, 422 if is_bad_request else failure.status)
