"""Azure Document Intelligence: documentModels/prebuilt-read:analyze, its results, and searchable PDFs of them.

A document is a job (`ocrsvc.jobs`), which any worker answers for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from flask import Blueprint, Response

from ocrsvc.adapters.azure_read.analyze_request import Asked, document_of, parse_query
from ocrsvc.adapters.azure_read.analyze_result import SUCCEEDED, moment
from ocrsvc.adapters.context import AdapterContext
from ocrsvc.errors import CallerError, OcrsvcError, UnsupportedImage
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import is_image
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json
from ocrsvc.job_requests import ResultFiles, job_view, owner_of_request, store_of
from ocrsvc.jobs.intake import JobRequest, add_job, find_job
from ocrsvc.jobs.job import Job, Record, State
from ocrsvc.jobs.job_result import ANSWER
from ocrsvc.jobs.job_store import JobStore

PATHS: Final = ("/documentintelligence", "/formrecognizer")
SOURCE: Final = "azure_read"
STATES: Final[dict[State, str]] = {
    "waiting": "notStarted",
    "running": "running",
    "success": SUCCEEDED,
    "failure": "failed",
}

_RETRY_S: Final = 1
# Azure's own codes, by status; the inner one is ours, as words written together.
_CODES: Final = {401: "401", 403: "403", 404: "NotFound", 409: "Conflict", 429: "429", 503: "ServiceUnavailable"}
_WORD: Final = re.compile(r"(?:^|_)([a-z])")


class _NoResult(CallerError):
    """There is no result of this id, or no such file of it."""

    status = 404
    code = "not_found"
    title = "No such result"


def make_azure_read(context: AdapterContext) -> Blueprint:
    """…:analyze and analyzeResults below both of Azure's prefixes, over the job store."""
    blueprint = Blueprint("azure_read", __name__)
    blueprint.register_error_handler(Exception, _failure)
    blueprint.after_request(_with_request_id)
    views = _Views(context)
    for prefix in PATHS:
        models = f"{prefix}/documentModels/<model>"
        result = f"{models}/analyzeResults/<result_id>"
        for method, path, view in (
            ("POST", f"{models}:analyze", views.analyze),
            ("GET", result, views.result),
            ("GET", f"{result}/pdf", views.pdf),
            ("DELETE", result, views.delete),
        ):
            name = f"{prefix[1:]}_{view.__name__}"
            blueprint.add_url_rule(path, name, job_view(view), methods=[method])
    return blueprint


class _Views:
    """The views, each called with the names in its path."""

    def __init__(self, context: AdapterContext) -> None:
        self._context = context

    @property
    def _jobs(self) -> JobStore:
        """Raises JobsOff where there are none."""
        return store_of(self._context.jobs)

    @property
    def _files(self) -> ResultFiles:
        return ResultFiles(self._jobs, self._context.reader)

    def analyze(self, model: str) -> Response:
        """Take in a document."""
        jobs, context = self._jobs, self._context
        document = document_of(request.content, context.url_files)
        if not is_image(document):
            raise UnsupportedImage(
                "The document is no PDF and no image that is read.", "Send a PDF, TIFF, PNG or JPEG."
            )
        asked, options, ranges = parse_query(model, document, context.settings.pdf_dpi)
        job_request = JobRequest(
            document,
            options,
            Record(*owner_of_request(), SOURCE, asked=asked.packed(), formats=("pdf",) if asked.makes_pdf else ()),
            ranges,
        )
        job = add_job(jobs, context.reader, context.settings, job_request, request.context, request.left_s)
        response = Response(status=202)
        prefix = request.path.lstrip("/").partition("/")[0]
        where = f"{request.host_url}{prefix}/documentModels/{model}/analyzeResults/{job.id}"
        response.headers["Operation-Location"] = f"{where}?api-version={asked.version}"
        response.headers["Retry-After"] = str(_RETRY_S)
        return response

    def result(self, model: str, result_id: str) -> Response:
        """How far a document is; when it is read, all of it."""
        return self._of(model, result_id, self._result)

    def pdf(self, model: str, result_id: str) -> Response:
        """The searchable PDF."""
        return self._of(model, result_id, self._pdf)

    def delete(self, model: str, result_id: str) -> Response:
        """Delete a result, also of a document that is being read."""

        def clear(job: Job, _asked: Asked) -> Response:
            self._jobs.clear(job)
            return Response(status=204)

        return self._of(model, result_id, clear)

    def _of(self, model: str, result_id: str, respond: Callable[[Job, Asked], Response]) -> Response:
        """Raises _NoResult where there is none, or not any more, or of another caller or model."""
        job = find_job(self._jobs, result_id, owner_of_request(), SOURCE)
        try:
            if job is not None and (asked := Asked(**job.record().asked)).model == model:
                return respond(job, asked)
        except FileNotFoundError as error:
            raise _no_result() from error
        raise _no_result()

    def _result(self, job: Job, _asked: Asked) -> Response:
        status, error = _status_of(job)
        if status == SUCCEEDED:
            return self._files.send(job, ANSWER, JSON_TYPE)
        came_s = job.record().came_at_s
        members: dict[str, Any] = {
            "status": status,
            "createdDateTime": moment(came_s),
            "lastUpdatedDateTime": moment(job.progress().ended_at_s or came_s),
        }
        if error is not None:
            members["error"] = error
        response = as_json(members)
        if status != "failed":
            response.headers["Retry-After"] = str(_RETRY_S)
        return response

    def _pdf(self, job: Job, asked: Asked) -> Response:
        if not asked.makes_pdf or _status_of(job)[0] != SUCCEEDED:
            raise _NoResult("There is no PDF of this result.", "Analyze the document with output=pdf, and wait for it.")
        return self._files.send(job, "pdf", "application/pdf")


def _status_of(job: Job) -> tuple[str, dict[str, str] | None]:
    """The status, and the error of a document that failed, or of which no page could be read."""
    progress = job.progress()
    if progress.state in {"waiting", "running"}:
        return STATES[progress.state], None
    if progress.state == "failure":
        return "failed", {"code": _together(progress.code or OcrsvcError.code), "message": progress.why}
    first = next(job.pages(), None)
    if first is not None and len(job.failed_pages()) == job.page_count():
        return "failed", {"code": _together(first["code"]), "message": first["error"]}
    return SUCCEEDED, None


def _no_result() -> _NoResult:
    return _NoResult("There is no result of this id.", "It was deleted, it made room for others, or its time is over.")


def _together(code: str) -> str:
    """A code as Azure writes them: bad_option as BadOption."""
    return _WORD.sub(lambda found: found[1].upper(), code)


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    code = _CODES.get(failure.status) or ("InvalidRequest" if failure.status < 500 else "InternalServerError")
    inner = {"code": _together(failure.code), "message": str(failure)}
    response = as_json({"error": {"code": code, "message": str(failure), "innererror": inner}}, failure.status)
    response.headers["x-ms-error-code"] = code
    return response


def _with_request_id(response: Response) -> Response:
    response.headers["apim-request-id"] = request.id
    return response
