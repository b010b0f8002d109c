"""Azure Document Intelligence: documentModels/prebuilt-read:analyze, its results, and searchable PDFs of them.

A document is a job (`ocrsvc.jobs`), which any worker answers for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from flask import Blueprint, Response

from ocrsvc.adapters.azure_read.analyze_request import LAYOUT, READ, AnalyzeQuery, Asked, document_of_request
from ocrsvc.adapters.azure_read.analyze_result import SUCCEEDED, moment
from ocrsvc.adapters.context import AdapterContext, StoredDocuments, add_job_routes, make_blueprint
from ocrsvc.adapters.request_values import parse_values
from ocrsvc.errors import CallerError, OcrsvcError, UnsupportedImage
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import is_image
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json
from ocrsvc.imaging.document import is_pdf
from ocrsvc.jobs.job import Job, State
from ocrsvc.jobs.job_result import ANSWER

PATHS: Final = ("/documentintelligence", "/formrecognizer")
SOURCE: Final = "azure_read"
FAILED: Final = "failed"
STATES: Final[dict[State, str]] = {
    "waiting": "notStarted",
    "running": "running",
    "success": SUCCEEDED,
    "failure": FAILED,
}

_RETRY: Final = {"Retry-After": "1"}
# Azure's own codes, by status; the inner one is ours, as words written together.
_CODES: Final = {401: "401", 403: "403", 404: "NotFound", 409: "Conflict", 429: "429", 503: "ServiceUnavailable"}
_WORD: Final = re.compile(r"(?:^|_)([a-z])")


class _ModelNotFound(CallerError, status=404, code="model_not_found", title="No such model"):
    """There is no such model here."""


class _NoResult(CallerError, status=404, code="not_found", title="No such result"):
    """There is no result of this id, or no such file of it."""


def make_azure_read(context: AdapterContext) -> Blueprint:
    """…:analyze and analyzeResults below both of Azure's prefixes, over the job store."""
    blueprint, views = make_blueprint("azure_read", _failure), _Views(context)
    blueprint.after_request(_with_request_id)
    for prefix in PATHS:
        models = f"{prefix}/documentModels/<model>"
        result = f"{models}/analyzeResults/<result_id>"
        add_job_routes(
            blueprint,
            ("POST", f"{models}:analyze", views.analyze),
            ("GET", result, views.result),
            ("GET", f"{result}/pdf", views.pdf),
            ("DELETE", result, views.delete),
        )
    return blueprint


class _Views:
    """The views, each called with the names in its path."""

    def __init__(self, context: AdapterContext) -> None:
        self._context, self._documents = context, StoredDocuments(context, SOURCE)

    def analyze(self, model: str) -> Response:
        # Whoever takes none says so first.
        _ = self._documents.jobs
        data = document_of_request(self._context)
        if not is_image(data):
            text = "The document is no PDF and no image that is read."
            raise UnsupportedImage(text, "Send a PDF, TIFF, PNG or JPEG.")
        if model not in {READ, LAYOUT}:
            raise _ModelNotFound(f"There is no model {model[:40]!r} here.", f"Ask for {READ} or {LAYOUT}.")
        query = parse_values(AnalyzeQuery, request.args)
        version, dpi = query.api_version, self._context.settings.pdf_dpi
        content, index_type = query.output_content_format, query.string_index_type
        asked = Asked(model, version, content, index_type, is_pdf(data), bool(query.output), dpi)
        options = query.read_options(model)
        job = self._documents.add(data, options, query.ranges, asdict(asked), formats=tuple(query.output))
        where = f"{request.base_url.removesuffix(':analyze')}/analyzeResults/{job.id}?api-version={version}"
        return Response(status=202, headers={"Operation-Location": where, **_RETRY})

    def result(self, model: str, result_id: str) -> Response:
        """How far a document is; when it is read, all of it."""
        with self._found(model, result_id) as (job, _):
            status, error = _status_of(job)
            if status == SUCCEEDED:
                return self._documents.files.send(job, ANSWER, JSON_TYPE)
            came_s = job.record().came_at_s
            ended_s = job.progress().ended_at_s or came_s
            times = {"createdDateTime": moment(came_s), "lastUpdatedDateTime": moment(ended_s)}
            response = as_json({"status": status, **times, **({"error": error} if error else {})})
            response.headers.update({} if status == FAILED else _RETRY)
            return response

    def pdf(self, model: str, result_id: str) -> Response:
        with self._found(model, result_id) as (job, asked):
            if not asked.makes_pdf or _status_of(job)[0] != SUCCEEDED:
                text = "There is no PDF of this result."
                raise _NoResult(text, "Analyze the document with output=pdf, and wait for it.")
            return self._documents.files.send(job, "pdf", "application/pdf")

    def delete(self, model: str, result_id: str) -> Response:
        """Delete a result, also of a document that is being read."""
        with self._found(model, result_id) as (job, _):
            self._documents.jobs.clear(job)
            return Response(status=204)

    @contextmanager
    def _found(self, model: str, result_id: str) -> Iterator[tuple[Job, Asked]]:
        """Raises _NoResult where there is none, or not any more, or of another caller or model."""
        text = "It was deleted, it made room for others, or its time is over."
        missing = _NoResult("There is no result of this id.", text)
        with self._documents.found(result_id, missing) as job:
            asked = Asked(**job.record().asked)
            if asked.model != model:
                raise missing
            yield job, asked


def _status_of(job: Job) -> tuple[str, dict[str, Any] | None]:
    """The status, and the error of a document that failed, or of which no page could be read."""
    progress = job.progress()
    if progress.state == "failure":
        return FAILED, {"code": _together(progress.code or OcrsvcError.code), "message": progress.why}
    first = next(job.pages(), None) if progress.state == "success" else None
    if first is not None and len(job.failed_pages()) == job.page_count():
        return FAILED, {"code": _together(first["code"]), "message": first["error"]}
    return STATES[progress.state], None


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
