"""The API of docling-serve (docling-project/docling-serve, port 5001) over HTTP: documents as Markdown, text and JSON.

A document that cannot be read is reported in an HTTP 200 with the status `failure`, as there; options that cannot be
met are 422, and what the service refuses keeps its true status.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from typing import Final

from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.docling.contents import Converted, Writing, write_answer, write_archive
from ocrsvc.adapters.docling.conversion import ZIP, Conversion
from ocrsvc.adapters.docling.sources import ConvertRequest, Document, request_of_form, request_of_json
from ocrsvc.adapters.docling.tasks import ARCHIVE_HEADERS, ZIP_TYPE, TaskViews
from ocrsvc.errors import CallerError, OcrsvcError
from ocrsvc.http.admission import WITHOUT_ENGINE
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, is_reported_in_a_200
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.job_requests import job_view
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading

VERSIONS: Final = ("/v1", "/v1alpha")
_UNPROCESSABLE: Final = 422


def make_docling(context: AdapterContext) -> Blueprint:
    """POST /v1/convert/…, with /v1/status/… and /v1/result/… where documents may wait; GET /health."""
    blueprint = Blueprint("docling", __name__)
    blueprint.register_error_handler(Exception, _failure)
    reader = context.reader

    def convert_file() -> Response:
        return _convert(reader, request_of_form(request.content))

    def convert_source() -> Response:
        return _convert(reader, request_of_json(request.content, context.url_files))

    def health() -> Response:
        return as_json({"status": "ok"})

    setattr(health, WITHOUT_ENGINE, True)
    for prefix in VERSIONS:
        _add(blueprint, "POST", f"{prefix}/convert/file", convert_file)
        _add(blueprint, "POST", f"{prefix}/convert/source", convert_source)
    _add(blueprint, "GET", "/health", health)
    if context.jobs is not None:
        _add_tasks(blueprint, TaskViews(context.settings, reader, context.jobs, context.url_files))
    return blueprint


def _add(blueprint: Blueprint, method: str, path: str, view: Callable[..., ResponseReturnValue]) -> None:
    endpoint = path.strip("/").replace("/", "_").partition("<")[0]
    blueprint.add_url_rule(path, endpoint, view, methods=[method])


def _add_tasks(blueprint: Blueprint, views: TaskViews) -> None:
    for prefix in VERSIONS:
        for method, path, view in (
            ("POST", "convert/file/async", views.take_form),
            ("POST", "convert/source/async", views.take_sources),
            ("GET", "status/poll/<task_id>", views.status),
            ("GET", "result/<task_id>", views.result),
        ):
            _add(blueprint, method, f"{prefix}/{path}", job_view(view))


def _convert(reader: Reader, asked: ConvertRequest) -> Response:
    began_s = time.monotonic()
    conversion = asked.conversion
    until_s = began_s + min(request.left_s, conversion.limit_s or request.left_s)
    # The time is that of all of them together.
    documents = [_read(reader, one, conversion, max(0.0, until_s - time.monotonic())) for one in asked.documents]
    return _answer(documents, conversion, began_s)


def _read(reader: Reader, document: Document, asked: Conversion, limit_s: float) -> Converted:
    """What was read of a document. Raises what is not the caller's fault."""
    options = asked.read_options(has_models=reader.has_models)
    try:
        if not may_have_pages(document.data) and asked.first == 1:
            page = reader.read(document.data, options, limit_s, request.context).page
            return Converted(document.filename, [page], 1)
        file = reader.read_files([document.data], options, limit_s, request.context, asked.ranges)[0]
    except CallerError as error:
        if not is_reported_in_a_200(error):
            raise
        return Converted(document.filename, (), 0, [(None, str(failure_of(error)))])
    for _, failed in file.errors:
        if not file.readings and not is_reported_in_a_200(failed):
            raise failed
    return _converted(document.filename, file.pages, asked)


def _converted(filename: str, pages: Sequence[tuple[int, Reading | OcrsvcError]], asked: Conversion) -> Converted:
    errors = [(number, str(failure_of(outcome))) for number, outcome in pages if isinstance(outcome, OcrsvcError)]
    read = [outcome.page for _, outcome in pages if isinstance(outcome, Reading)]
    kept = [] if errors and asked.stops_at_error else read
    return Converted(filename, kept, len(kept), errors)


def _answer(documents: Sequence[Converted], asked: Conversion, began_s: float) -> Response:
    """One document in the body, several as an archive."""
    writing, whole = Writing(request.left_s, request.make_check()), io.BytesIO()
    if len(documents) == 1 and asked.target != ZIP:
        write_answer(documents[0], asked, time.monotonic() - began_s, whole, writing)
        return Response(whole.getvalue(), content_type=JSON_TYPE)
    write_archive(documents, asked, whole, writing)
    return Response(whole.getvalue(), content_type=ZIP_TYPE, headers=ARCHIVE_HEADERS)


def _failure(error: Exception) -> Response:
    """As FastAPI reports it: a sentence in `detail`."""
    failure = failure_of(error)
    status = (
        _UNPROCESSABLE if isinstance(failure, CallerError) and failure.status == CallerError.status else failure.status
    )
    return as_json({"detail": str(failure)}, status)
