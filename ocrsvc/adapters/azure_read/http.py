"""Azure Document Intelligence: documentModels/{model}:analyze as jobs, their results, and searchable PDFs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from flask import Blueprint, Response
from pydantic import BeforeValidator, Field, PlainValidator
from pydantic.alias_generators import to_camel, to_pascal

from ocrsvc.access.api_keys import KeyRequest
from ocrsvc.adapters.azure_read.analyze_result import SUCCEEDED, AnalyzeOptions, moment
from ocrsvc.adapters.context import AdapterContext, RequestValues, Route, StoredDocuments, make_blueprint
from ocrsvc.errors import CallerError, NothingSent, OcrsvcError, UnsupportedImage
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.parsed_body import is_image
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, is_url
from ocrsvc.imaging.document import is_pdf
from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, Ranges, parse_ranges
from ocrsvc.jobs.job import Job, State
from ocrsvc.jobs.job_result import ANSWER
from ocrsvc.results import ReadOptions

PATHS: Final = ("/documentintelligence", "/formrecognizer")
READ, LAYOUT = "prebuilt-read", "prebuilt-layout"
FAILED: Final = "failed"
STATES: Final[dict[State, str]] = {"waiting": "notStarted", "running": "running", "success": SUCCEEDED}

_RETRY: Final = {"Retry-After": "1"}
# Azure's error codes by HTTP status; the member `innererror` has this service's code in Pascal case.
_CODES: Final = {401: "401", 403: "403", 404: "NotFound", 409: "Conflict", 429: "429", 503: "ServiceUnavailable"}
# Values of the query parameter `features`; only `barcodes` has an effect.
_Feature = Literal["ocrHighResolution", "languages", "styleFont", "barcodes"]
_Listed = BeforeValidator(lambda text: [part.strip() for part in text.split(",") if part.strip()])


class _ModelNotFound(CallerError, status=404, code="model_not_found", title="No such model"):
    """The path names an unknown model."""


class _NoResult(CallerError, status=404, code="not_found", title="No such result"):
    """No result has this id, or it has no PDF."""


def _ranges(text: str) -> Ranges:
    try:
        return parse_ranges(text)
    except ValueError as error:
        raise ValueError(f"accepted are {ACCEPTED}") from error


class _AnalyzeQuery(RequestValues, alias_generator=to_camel):
    """The query parameters of an analyze request."""

    api_version: Annotated[str, Field(alias="api-version", pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?$")] = (
        "2024-11-30"
    )
    pages: Annotated[Ranges, PlainValidator(_ranges)] = ALL
    features: Annotated[frozenset[_Feature], _Listed] = frozenset()
    output: Annotated[frozenset[Literal["pdf"]], _Listed] = frozenset()
    output_content_format: Literal["text", "markdown"] = "text"
    string_index_type: Literal["textElements", "unicodeCodePoint", "utf16CodeUnit"] = "textElements"

    def read_options(self, model: str) -> ReadOptions:
        is_layout = model == LAYOUT
        return ReadOptions(words=True, tables=is_layout, layout=is_layout, barcodes="barcodes" in self.features)


def credentials(request: KeyRequest) -> str:
    """The API key in Azure's own header. See AdapterEntry.credentials."""
    return request.header("Ocp-Apim-Subscription-Key")


def make_azure_read(context: AdapterContext) -> Blueprint:
    """Make the routes documentModels/{model}:analyze and …/analyzeResults/… under both of Azure's prefixes."""
    views, job_routes = _Views(context), list[Route]()
    for prefix in PATHS:
        models = f"{prefix}/documentModels/<model>"
        result = f"{models}/analyzeResults/<result_id>"
        job_routes += [("POST", f"{models}:analyze", views.analyze), ("GET", result, views.result)]
        job_routes += [("GET", f"{result}/pdf", views.pdf), ("DELETE", result, views.delete)]
    blueprint = make_blueprint("azure_read", _failure, job_routes=job_routes)
    blueprint.after_request(_with_request_id)
    return blueprint


class _Views:
    """The view functions of the routes."""

    def __init__(self, context: AdapterContext) -> None:
        self._context, self._documents = context, StoredDocuments(context, "azure_read")

    def analyze(self, model: str) -> Response:
        # Without a job store this raises JobsOff, before anything else is checked.
        _ = self._documents.jobs
        data = self._document()
        if not is_image(data):
            raise UnsupportedImage(
                "The document is not a PDF or a known image.", "Send a PDF, TIFF, PNG, JPEG or HEIC."
            )
        if model not in {READ, LAYOUT}:
            raise _ModelNotFound(f"Unknown model {model[:40]!r}.", f"Use {READ} or {LAYOUT}.")
        query = _AnalyzeQuery.from_values(request.args)
        version, dpi = query.api_version, self._context.settings.pdf_dpi if is_pdf(data) else None
        kept = asdict(AnalyzeOptions(model, version, query.output_content_format, query.string_index_type, dpi))
        options, formats = query.read_options(model), tuple(query.output)
        job = self._documents.add(data, options, query.pages, kept, formats=formats)
        where = f"{request.base_url.removesuffix(':analyze')}/analyzeResults/{job.id}?api-version={version}"
        return Response(status=202, headers={"Operation-Location": where, **_RETRY})

    def _document(self) -> bytes:
        """The document: the body, or a JSON object's base64Source or urlSource. Raises NothingSent, and as `fetch`."""
        content = request.content
        if content.raw is not None:
            return content.raw
        url, text = content.members.get("urlSource"), content.members.get("base64Source")
        if isinstance(text, str) and text:
            return decode_base64(text, content.share)
        if not isinstance(url, str) or not is_url(url):
            raise NothingSent("The request has no document.", "Send it as the body or as base64Source in JSON.")
        return self._context.fetch(url, "Send the document as the body or as base64Source.").data

    def result(self, model: str, result_id: str) -> Response:
        with self._find(model, result_id) as job:
            status, error = _status_of(job)
            if status == SUCCEEDED:
                return self._documents.send(job, ANSWER, JSON_TYPE)
            came_s = job.record().came_at_s
            ended_s = job.progress().ended_at_s or came_s
            times = {"createdDateTime": moment(came_s), "lastUpdatedDateTime": moment(ended_s)}
            response = as_json({"status": status, **times, **({"error": error} if error else {})})
            response.headers.update({} if status == FAILED else _RETRY)
            return response

    def pdf(self, model: str, result_id: str) -> Response:
        with self._find(model, result_id) as job:
            if "pdf" not in job.record().formats or _status_of(job)[0] != SUCCEEDED:
                remedy = "Analyze the document with output=pdf and wait until it has succeeded."
                raise _NoResult("This result has no PDF.", remedy)
            return self._documents.send(job, "pdf", "application/pdf")

    def delete(self, model: str, result_id: str) -> Response:
        with self._find(model, result_id) as job:
            self._documents.jobs.clear(job)
            return Response(status=204)

    @contextmanager
    def _find(self, model: str, result_id: str) -> Iterator[Job]:
        """The caller's job with this id and model. Raises _NoResult."""
        missing = _NoResult("No result has this id.", "It was deleted, evicted or has expired: analyze again.")
        with self._documents.find(result_id, missing) as job:
            if job.record().asked["model"] != model:
                raise missing
            yield job


def _status_of(job: Job) -> tuple[str, dict[str, Any] | None]:
    """Azure's status of a job; also the error if the job failed or none of its pages could be read."""
    progress = job.progress()
    if progress.state == "failure":
        return FAILED, {"code": to_pascal(progress.code or OcrsvcError.code), "message": progress.why}
    first = next(job.pages(), None) if progress.state == "success" else None
    if first is not None and len(job.failed_pages()) == job.page_count():
        return FAILED, {"code": to_pascal(first["code"]), "message": first["error"]}
    return STATES[progress.state], None


def _failure(failure: OcrsvcError) -> Response:
    code = _CODES.get(failure.status) or ("InvalidRequest" if failure.status < 500 else "InternalServerError")
    inner = {"code": to_pascal(failure.code), "message": str(failure)}
    response = as_json({"error": {"code": code, "message": str(failure), "innererror": inner}}, failure.status)
    response.headers["x-ms-error-code"] = code
    return response


def _with_request_id(response: Response) -> Response:
    response.headers["apim-request-id"] = request.id
    return response
