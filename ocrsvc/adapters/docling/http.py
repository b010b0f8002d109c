"""The API of docling-serve (docling-project/docling-serve, port 5001) over HTTP: documents as Markdown, text and JSON.

A document that cannot be read is reported in an HTTP 200 with the status `failure`, as there; wrong options are 422,
and refusals keep their true status. Asynchronous requests are jobs.
"""

from __future__ import annotations

import io
import threading
import time
from typing import Any, Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, StoredDocuments, add_job_routes, add_routes, make_blueprint
from ocrsvc.adapters.docling.contents import Converted, write_answer, write_archive
from ocrsvc.adapters.docling.conversion import Conversion, Document, request_of_form, request_of_json
from ocrsvc.errors import BadOption, CallerError, OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, is_reported_in_a_200
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import ANSWER
from ocrsvc.serving.request_guard import waiting

VERSIONS: Final = ("/v1", "/v1alpha")
SOURCE: Final = "docling"
ZIP_TYPE: Final = "application/zip"
ARCHIVE_HEADERS: Final = {"Content-Disposition": 'attachment; filename="converted_docs.zip"'}
_STATES: Final = {"waiting": "pending", "running": "started", "success": "success", "failure": "failure"}
_LONGEST_WAIT_S: Final = 10.0
_LOOK_S: Final = 0.05
# Each waiting request holds a thread of the worker; further ones are answered at once.
_WAITING: Final = 2


class _TaskUnknown(OcrsvcError, status=404, code="task_unknown", title="No such task"):
    """There is no such task; docling's client looks for this sentence."""

    def __init__(self, text: str = "Task not found.") -> None:
        super().__init__(text)


def make_docling(context: AdapterContext) -> Blueprint:
    """POST /v1/convert/… and GET /health; /v1/status/… and /v1/result/… where there are jobs."""
    blueprint, views = make_blueprint("docling", _failure), _Views(context)
    add_job_routes(blueprint, ("GET", "/health", lambda: as_json({"status": "ok"})))
    for prefix in VERSIONS:
        for kind, asked in (("file", views.form), ("source", views.sources)):
            path = f"{prefix}/convert/{kind}"
            add_routes(blueprint, [("POST", path, lambda asked=asked: views.convert(*asked()))])
            if context.jobs is not None:
                add_job_routes(blueprint, ("POST", f"{path}/async", lambda asked=asked: views.take(*asked())))
        if context.jobs is not None:
            add_job_routes(
                blueprint,
                ("GET", f"{prefix}/status/poll/<task_id>", views.status),
                ("GET", f"{prefix}/result/<task_id>", views.result),
            )
    return blueprint


class _Views:
    """The views, for any thread."""

    def __init__(self, context: AdapterContext) -> None:
        self._context, self._tasks = context, StoredDocuments(context, SOURCE)
        self._waiting = threading.BoundedSemaphore(_WAITING)

    def form(self) -> tuple[list[Document], Conversion]:
        return request_of_form(request.content)

    def sources(self) -> tuple[list[Document], Conversion]:
        return request_of_json(request.content, self._context)

    def convert(self, documents: list[Document], asked: Conversion) -> Response:
        began_s = time.monotonic()
        until_s = began_s + min(request.left_s, asked.limit_s or request.left_s)
        # The limit is for all of them together.
        read = [self._read(one, asked, max(0.0, until_s - time.monotonic())) for one in documents]
        check, whole = request.make_check(), io.BytesIO()
        if len(read) == 1 and asked.target != "zip":
            write_answer(read[0], asked, time.monotonic() - began_s, whole, check)
            return Response(whole.getvalue(), content_type=JSON_TYPE)
        write_archive(read, asked, whole, check)
        return Response(whole.getvalue(), content_type=ZIP_TYPE, headers=ARCHIVE_HEADERS)

    def _read(self, document: Document, asked: Conversion, limit_s: float) -> Converted:
        """Read a document. Raises errors that are not the caller's."""
        reader, data, name = self._context.reader, document.data, document.filename
        options = asked.read_options(has_models=reader.has_models)
        try:
            if not may_have_pages(data) and asked.pages[0] == 1:
                page = reader.read(data, options, limit_s, request.context).page
                return Converted(name, [page], 1)
            file = reader.read_files([data], options, limit_s, request.context, asked.ranges)[0]
        except CallerError as error:
            if not is_reported_in_a_200(error):
                raise
            return Converted(name, (), 0, [(None, str(failure_of(error)))])
        for _, failed in file.errors:
            if not file.readings and not is_reported_in_a_200(failed):
                raise failed
        errors = [(number, str(failure_of(error))) for number, error in file.errors]
        pages = [] if errors and asked.stops_at_error else [reading.page for reading in file.readings]
        return Converted(name, pages, len(pages), errors)

    def take(self, documents: list[Document], asked: Conversion) -> Response:
        if len(documents) != 1:
            raise BadOption("A task takes one document.", "Send each by itself, or all of them without async.")
        options = asked.read_options(has_models=self._context.reader.has_models)
        kept = asked.model_dump(mode="json", exclude_none=True)
        job = self._tasks.add(documents[0].data, options, asked.ranges, kept, documents[0].filename)
        return as_json(_status_of(job))

    def status(self, task_id: str) -> Response:
        """The state of a task; with `wait`, once it is done or these seconds have passed."""
        with self._tasks.found(task_id, _TaskUnknown()) as job:
            self._wait(job, request.args.get("wait", 0.0, float))
            return as_json(_status_of(job))

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
        with self._tasks.found(task_id, _TaskUnknown()) as job:
            progress = job.progress()
            if progress.state not in {"success", "failure"}:
                raise _TaskUnknown("Task result not found. Please wait for a completion status.")
            if progress.state == "failure":
                return as_json({"kind": "TaskFailureResult", "failure": _failure_of_task(progress.why)})
            is_archive = job.record().asked["target"] == "zip"
            answer = self._tasks.files.send(job, ANSWER, ZIP_TYPE if is_archive else JSON_TYPE)
            answer.headers.update(ARCHIVE_HEADERS if is_archive else {})
            return answer


def _status_of(job: Job) -> dict[str, Any]:
    """TaskStatusResponse of a task. Raises FileNotFoundError for a cleared one."""
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
    """PublicFailureInfo of a task that failed."""
    return {"category": "backend_failure", "message": why, "retryable": False, "phase": "execution", "details": {}}


def _failure(error: Exception) -> Response:
    """As FastAPI: a sentence in `detail`."""
    failure = failure_of(error)
    is_bad_request = isinstance(failure, CallerError) and failure.status == CallerError.status
    return as_json({"detail": str(failure)}, 422 if is_bad_request else failure.status)
