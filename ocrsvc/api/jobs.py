"""The native API's jobs, /v1/jobs: documents that are read in the background."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import orjson
from flask import Blueprint, Response

from ocrsvc.api.page_pictures import respond_with_picture
from ocrsvc.api.request_files import option_fields, request_files
from ocrsvc.errors import BadOption, JobFailed, JobNotDone, KeysNeeded, OcrsvcError, UnknownJob
from ocrsvc.formats.document import options_for
from ocrsvc.formats.output_files import disposition_of, stem_of
from ocrsvc.http.field_values import as_text
from ocrsvc.http.options import FORMAT_ALIASES, OPTIONS, read_options, unknown_option
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.job_requests import ResultFiles, job_view, owner_of_request
from ocrsvc.jobs.intake import JobRequest, add_job, find_job
from ocrsvc.jobs.job import PATH, STATES, Job, Record, job_status
from ocrsvc.jobs.job_result import JSON, NDJSON, check_format, page_dicts, unpack_options
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.plugins import output_formats
from ocrsvc.settings.settings import Settings

KEY_HEADER: Final = "Idempotency-Key"
SIGNING_HEADER: Final = "X-Callback-Secret"
"""The callback secret, if the document is the body: a secret must not be in the URL, which is logged."""
SOURCE: Final = "api"
CALLBACK_FIELDS: Final = ("callback", "callback_secret")
JOB_FIELDS: Final = (*CALLBACK_FIELDS, "format", "name")

DEFAULT_PAGES: Final = 20
MAX_PAGES: Final = 100
MAX_PAGES_BYTES: Final = 8 << 20
"""Size limit of a response with pages; the page that exceeds it is still sent."""
DEFAULT_JOBS: Final = 20
MAX_JOBS: Final = 100

_MEDIA_TYPES: Final = {JSON: "application/json", NDJSON: "application/x-ndjson"} | {
    name: each.media_type for name, each in output_formats().items()
}
_SUFFIXES: Final = {JSON: ".json", NDJSON: ".ndjson"} | {name: each.suffix for name, each in output_formats().items()}
_RETRY_S: Final = 2
REQUEST_ONLY_OPTIONS: Final = ("priority", "timing", "format", "partial")
"""Options of POST /v1/ocr that jobs do not have; the `format` of jobs is in JOB_FIELDS."""
JOB_OPTIONS: Final = (*(name for name in OPTIONS if name not in REQUEST_ONLY_OPTIONS), *JOB_FIELDS)


def add_jobs(api: Blueprint, settings: Settings, reader: Reader, jobs: JobStore | None, url_files: UrlFiles) -> None:
    """Add /v1/jobs to the native API; without a store every route answers 501."""
    views = _JobViews(settings, reader, jobs, url_files)

    def add(method: str, path: str, name: str, view: Callable[..., Response]) -> None:
        api.add_url_rule(f"{PATH}{path}", f"jobs_{name}", job_view(view), methods=[method])

    add("POST", "", "submit", views.submit)
    add("GET", "", "list", views.list_own)
    add("GET", "/<job_id>", "status", views.status)
    add("GET", "/<job_id>/pages", "pages", views.pages)
    add("GET", "/<job_id>/picture", "picture", views.picture)
    add("GET", "/<job_id>/result", "result", views.result)
    add("DELETE", "/<job_id>", "delete", views.delete)


class _JobViews:
    """The views of /v1/jobs."""

    def __init__(self, settings: Settings, reader: Reader, jobs: JobStore | None, url_files: UrlFiles) -> None:
        self._settings, self._reader, self._url_files = settings, reader, url_files
        self._files = ResultFiles(jobs, reader)

    def submit(self) -> Response:
        """Add a job."""
        jobs, fields = self._files.jobs, option_fields(request.content, self._url_files)
        job_fields = {name: value for name, value in fields if name in JOB_FIELDS and value is not None}
        _check_fields(fields)
        options = read_options([field for field in fields if field[0] not in JOB_FIELDS])
        formats, (callback, secret) = _formats_of(job_fields.get("format")), _callback_of(job_fields)
        files = request_files(request.content, self._url_files)
        if len(files) != 1:
            raise BadOption(f"A job takes one file; {len(files)} were sent.", "Send each as a separate job.")
        if isinstance(files[0], OcrsvcError):
            raise files[0]
        job_request = JobRequest(
            files[0],
            options_for(formats, options.read),
            Record(
                *owner_of_request(),
                SOURCE,
                _name_of(job_fields.get("name")),
                asked={"lines": options.lines, "words": options.read.wants_words},
                formats=formats,
                repeat=request.headers.get(KEY_HEADER, ""),
                callback=callback,
            ),
            options.pages,
            secret,
        )
        job = add_job(jobs, self._reader, self._settings, job_request, request.context, request.left_s)
        response = as_json(job_status(job), 202)
        response.headers["Location"] = f"{PATH}/{job.id}"
        return response

    def list_own(self) -> Response:
        """The jobs of the caller's API key, newest first."""
        jobs, owner, statuses = self._files.jobs, owner_of_request(), []
        if owner.key is None:
            what = "Listing jobs needs API keys, which tell the owners apart."
            raise KeysNeeded(what, "Keep the id from the response of POST /v1/jobs.")
        for job in jobs.all("key = ?", owner.key)[::-1][: _number("limit", DEFAULT_JOBS, 1, MAX_JOBS)]:
            with suppress(FileNotFoundError):
                statuses.append(job_status(job))
        return as_json({"jobs": statuses})

    def status(self, job_id: str) -> Response:
        """The state of a job."""
        job = self._find(job_id)
        response = self._respond(job, lambda: as_json(job_status(job)))
        if not job.is_done():
            response.headers["Retry-After"] = str(_RETRY_S)
        return response

    def pages(self, job_id: str) -> Response:
        """The pages read so far, except the first `after` pages."""
        job, after = self._find(job_id), _number("after", 0, 0, 10**9)
        limit, form = _number("limit", DEFAULT_PAGES, 1, MAX_PAGES), request.args.get("format", _accepted())
        if form not in {JSON, NDJSON}:
            raise BadOption(f"format is {form[:40]!r}: accepted are json and ndjson.")
        return self._respond(job, lambda: _pages_response(job, after, limit, form))

    def picture(self, job_id: str) -> Response:
        """One page of the document as a picture, for the web page."""
        job, number = self._find(job_id), request.args.get("page", "")

        def respond() -> Response:
            check_format("pdf", unpack_options(job.record().options))
            with request.share.holding(job.document_bytes()):
                return respond_with_picture(self._reader, job.data(), number)

        return self._respond(job, respond)

    def result(self, job_id: str) -> Response:
        """The result of all pages, as a file in one format."""
        job, name = self._find(job_id), _format_of(request.args.get("format", JSON))
        return self._respond(job, lambda: self._result_response(job, name))

    def _result_response(self, job: Job, name: str) -> Response:
        progress, record = job.progress(), job.record()
        if progress.state in {"waiting", "running"}:
            count, total = job.page_count(), len(record.numbers)
            remedy = f"Try again later; GET {PATH}/{job.id}/pages has these."
            raise JobNotDone(f"{count} of {total} pages are read.", remedy)
        if progress.state == "failure":
            raise JobFailed(f"The job has failed: {progress.why}", f"GET {PATH}/{job.id}/pages has the pages read.")
        check_format(name, unpack_options(record.options))
        response = self._files.send(job, name, _content_type(name))
        response.headers["Content-Disposition"] = disposition_of(f"{stem_of(record.name)}{_SUFFIXES[name]}")
        return response

    def delete(self, job_id: str) -> Response:
        """Delete a job; a running job ends with its current page at the latest."""
        self._files.jobs.clear(self._find(job_id))
        return Response(status=204)

    def _find(self, job_id: str) -> Job:
        job = find_job(self._files.jobs, job_id, owner_of_request(), SOURCE)
        if job is None:
            raise _unknown(job_id)
        return job

    def _respond(self, job: Job, respond: Callable[[], Response]) -> Response:
        """Call `respond`. Raises UnknownJob if the job was deleted meanwhile."""
        try:
            return respond()
        except FileNotFoundError as error:
            raise _unknown(job.id) from error


def _unknown(job_id: str) -> UnknownJob:
    return UnknownJob(
        f"You have no job {job_id[:40]!r}.",
        "The id is wrong, or the job was deleted, evicted or has expired (OCRSVC_JOBS_S).",
    )


def _check_fields(fields: list[tuple[str, object]]) -> None:
    """Raises BadOption for an option that jobs do not have."""
    for name, _ in fields:
        if name not in JOB_OPTIONS:
            raise unknown_option(name, JOB_OPTIONS)


def _formats_of(value: object) -> tuple[str, ...]:
    """The formats in a JSON list or a comma-separated text."""
    names = value if isinstance(value, list) else as_text(value).split(",") if value else []
    return tuple(dict.fromkeys(_format_of(as_text(name)) for name in names if as_text(name).strip()))


def _format_of(text: str) -> str:
    name = text.strip().lower()
    return FORMAT_ALIASES.get(name, name)


def _callback_of(job_fields: dict[str, Any]) -> tuple[str, str]:
    """The callback's URL and secret. Raises BadOption for a secret without a URL."""
    url, secret = (as_text(job_fields.get(name, "")).strip() for name in CALLBACK_FIELDS)
    secret = secret or request.headers.get(SIGNING_HEADER, "").strip()
    if secret and not url:
        raise BadOption("callback_secret was sent without callback.", "Send the callback's URL.")
    return url, secret


def _name_of(name: object) -> str:
    """The job's name in the request, else the name of its file."""
    named = as_text(name) if name else next((part.filename for part in request.content.files if part.filename), "")
    return "".join(character for character in named[-200:] if character.isprintable())


def _number(name: str, default: int, minimum: int, maximum: int) -> int:
    """Parse a whole number in the query. Raises BadOption."""
    text = request.args.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and minimum <= int(text) <= maximum):
        raise BadOption(f"{name} is {text[:40]!r}: accepted is a whole number from {minimum} to {maximum}.")
    return int(text)


def _accepted() -> str:
    types = {_MEDIA_TYPES[JSON]: JSON, _MEDIA_TYPES[NDJSON]: NDJSON}
    return types[request.accept_mimetypes.best_match(types, _MEDIA_TYPES[JSON])]


def _pages_response(job: Job, after: int, limit: int, form: str) -> Response:
    # Read the state before the pages, so that clients fetch again if the job ends in between.
    state, total = STATES[job.progress().state], len(job.record().numbers)
    pages, size = [], 0
    for page in page_dicts(job, after, limit):
        pages.append(orjson.dumps(page))
        size += len(pages[-1])
        request.share.take(len(pages[-1]))
        if size > MAX_PAGES_BYTES:
            break
    upto = after + len(pages)
    if form == NDJSON:
        response = Response(b"".join(page + b"\n" for page in pages), content_type=_MEDIA_TYPES[NDJSON])
    else:
        head = orjson.dumps({"id": job.id, "state": state, "total": total, "next": upto})
        response = Response(head[:-1] + b',"pages":[' + b",".join(pages) + b"]}", content_type=_MEDIA_TYPES[JSON])
    if upto < total and state in {"waiting", "running", "done"}:
        response.headers["Link"] = f'<{PATH}/{job.id}/pages?after={upto}>; rel="next"'
    return response


def _content_type(name: str) -> str:
    media_type = _MEDIA_TYPES[name]
    return f"{media_type}; charset=utf-8" if media_type.startswith("text/") or "xml" in media_type else media_type
