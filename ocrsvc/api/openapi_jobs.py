"""The OpenAPI description of jobs: their paths and shapes."""

from __future__ import annotations

from typing import Final

from ocrsvc import errors
from ocrsvc.api.jobs import (
    DEFAULT_JOBS,
    DEFAULT_PAGES,
    JOB_FIELDS,
    KEY_HEADER,
    MOST_JOBS,
    MOST_PAGES,
    NOT_OF_JOBS,
    SIGNING_HEADER,
)
from ocrsvc.api.openapi_parts import Errors, bodies, get, headers, option_schema, problem_responses
from ocrsvc.api.openapi_schemas import COUNT, ID, TEXT, Node, list_of, record, ref
from ocrsvc.document_output.document_formats import DOCUMENT_FORMATS
from ocrsvc.http.options import OPTIONS
from ocrsvc.jobs.job_result import JSON, NDJSON, RESULT_FORMATS, media_type_of
from ocrsvc.jobs.job_status import PATH, STATES

SUBMIT_ERRORS: Final[Errors] = (
    errors.CallerError,
    errors.NothingSent,
    errors.BadBase64,
    errors.BadOption,
    errors.UrlRefused,
    errors.UnknownModel,
    errors.BodyTimeout,
    errors.BodyTooLarge,
    errors.UnsupportedImage,
    errors.BrokenImage,
    errors.EncryptedDocument,
    errors.ImageTooLarge,
    errors.TooManyPages,
    errors.RequestStopsWorker,
    errors.KeyReused,
    errors.TooManyAtOnce,
    errors.TooManyJobs,
    errors.QueueFull,
    errors.NotReady,
    errors.ResourcesExhausted,
    errors.JobsOff,
    errors.DeadlineExceeded,
    errors.OcrsvcError,
)
"""What POST /v1/jobs may answer instead of a job."""

_FIND_ERRORS: Final[Errors] = (errors.UnknownJob, errors.JobsOff)
_RESULT_ERRORS: Final[Errors] = (
    errors.BadOption,
    *_FIND_ERRORS,
    errors.JobNotDone,
    errors.JobFailed,
    errors.QueueFull,
    errors.DeadlineExceeded,
)
JOB_ERRORS: Final[Errors] = (*SUBMIT_ERRORS, *_FIND_ERRORS, *_RESULT_ERRORS, errors.KeysNeeded)
"""What any path of jobs may answer instead."""

_JOB_ID: Final[Node] = {"name": "job_id", "in": "path", "required": True, "schema": ID}
_FROM_0: Final[Node] = {"type": "integer", "minimum": 0}
_URL: Final[Node] = {"type": "string", "format": "uri"}
_MOMENT: Final[Node] = {"type": "string", "format": "date-time"}


def job_paths(key_errors: Errors, *, fetches_urls: bool) -> Node:
    """Each path of jobs."""
    listed = record({"jobs": list_of(ref("Job"))})
    found = [*_FIND_ERRORS, *key_errors]
    return {
        PATH: {
            "post": _submit(key_errors, fetches_urls=fetches_urls),
            "get": get("jobs", "Your jobs, the newest first.", listed, _listing_errors(key_errors))
            | {"parameters": [_query("limit", _whole(DEFAULT_JOBS, 1, MOST_JOBS), "How many are listed.")]},
        },
        f"{PATH}/{{job_id}}": {
            "get": get("job", "How a job is.", ref("Job"), found) | {"parameters": [_JOB_ID]},
            "delete": {
                "operationId": "deleteJob",
                "summary": "Delete a job; one that is read ends within a page.",
                "parameters": [_JOB_ID],
                "responses": {"204": {"description": "It is gone.", "headers": headers()}}
                | problem_responses([*found, errors.OcrsvcError]),
            },
        },
        f"{PATH}/{{job_id}}/pages": {"get": _pages([errors.BadOption, *found])},
        f"{PATH}/{{job_id}}/result": {"get": _result([*_RESULT_ERRORS, *key_errors])},
    }


def job_schemas() -> Node:
    """Their schemas by name."""
    failure = record({"code": TEXT, "detail": TEXT})
    optional = ("error", "callback")
    pages = {"total": COUNT, "done": _FROM_0, "failed": _FROM_0, "in_document": COUNT}
    links = dict.fromkeys(("self", "pages", "result"), TEXT)
    moment_or_null = {"oneOf": [_MOMENT, {"type": "null"}]}
    callback = {"url": _URL, "state": {"enum": ["waiting", "delivered", "given up"]}, "tries": _FROM_0}
    job = {
        "id": ID,
        "state": {"enum": list(STATES.values())},
        "name": TEXT | {"description": "What its sender called the file."},
        "pages": record(pages),
        "failed_pages": list_of(COUNT) | {"description": "Numbers of the first 100 pages that could not be read."},
        "created_at": _MOMENT,
        "started_at": moment_or_null,
        "finished_at": moment_or_null,
        "formats": list_of({"enum": list(RESULT_FORMATS)}),
        "links": record(links),
        "error": failure,
        "callback": record({**callback, "status": {"type": ["integer", "null"]}}),
    }
    part = {"id": ID, "state": {"enum": list(STATES.values())}, "total": COUNT, "next": _FROM_0}
    result = {"id": ID, "engine": ref("Engine"), "pages_total": COUNT}
    of_pages = list_of({"oneOf": [ref("Page"), ref("FailedJobPage")]})
    return {
        "Job": record(job, optional),
        "JobPages": record({**part, "pages": of_pages}),
        "JobResult": record({**result, "pages": of_pages}),
        "FailedJobPage": record({"page": COUNT, "error": failure}),
    }


def _submit(key_errors: Errors, *, fetches_urls: bool) -> Node:
    options = {name: option_schema(option) for name, option in OPTIONS.items() if name not in NOT_OF_JOBS}
    name = f"(?:{'|'.join(RESULT_FORMATS)})"
    own: Node = {
        "callback": _URL | {"description": "Told when the job is done, has failed or has expired."},
        "callback_secret": TEXT | {"description": "Signs what it is told, by standard-webhooks.com."},
        "format": {
            "oneOf": [
                {"type": "string", "pattern": f"^(?:{name}(?:,{name})*)?$"},
                list_of({"enum": list(RESULT_FORMATS)}),
            ],
            "description": "Files that are made as soon as the last page is read, in text with commas between them.",
        },
        "name": TEXT | {"description": "What you call the file."},
    }
    assert tuple(own) == JOB_FIELDS, "each is described"
    location = {"Location": {"description": "The path of the job.", "schema": TEXT}}
    return {
        "operationId": "submitJob",
        "summary": "Leave a document to be read while nobody waits.",
        "parameters": [
            *[{"name": field, "in": "query", "schema": schema} for field, schema in (options | own).items()],
            {
                "name": KEY_HEADER,
                "in": "header",
                "description": "Who sends the same job with the same text again gets the first one.",
                "schema": {"type": "string", "pattern": "^[ -~]{0,255}$"},
            },
            {
                "name": SIGNING_HEADER,
                "in": "header",
                "description": "callback_secret for who sends the file as the body: addresses are logged.",
                "schema": TEXT,
            },
        ],
        "requestBody": {
            "required": True,
            "description": "One file; the options may also be fields of the form or members of the JSON object.",
            "content": bodies(options | own, fetches_urls=fetches_urls),
        },
        "responses": {
            "202": {
                "description": "It will be read, whatever dies meanwhile.",
                "headers": headers() | location,
                "content": {"application/json": {"schema": ref("Job")}},
            }
        }
        | problem_responses([*SUBMIT_ERRORS, *key_errors]),
    }


def _pages(failures: Errors) -> Node:
    answer = {
        "description": "The pages that are read, in order.",
        "headers": headers() | {"Link": {"description": "rel=next: the pages after these.", "schema": TEXT}},
        "content": {
            "application/json": {"schema": ref("JobPages")},
            media_type_of(NDJSON): {"schema": {"type": "string", "description": "A page a line."}},
        },
    }
    return {
        "operationId": "jobPages",
        "summary": "Pages of a job, also while it is read.",
        "parameters": [
            _JOB_ID,
            _query("after", _whole(0, 0, 10**9), "How many pages are left out: `next` of the answer before."),
            _query("limit", _whole(DEFAULT_PAGES, 1, MOST_PAGES), "How many come at most; large ones end earlier."),
            _query("format", {"enum": [JSON, NDJSON]}, "Left out, the header Accept decides, else JSON."),
        ],
        "responses": {"200": answer} | problem_responses([*failures, errors.OcrsvcError]),
    }


def _result(failures: Errors) -> Node:
    files = {
        form.media_type: {"schema": {"type": "string", "description": f"With format={name}: {form.help}."}}
        for name, form in DOCUMENT_FORMATS.items()
    }
    lines = {media_type_of(NDJSON): {"schema": {"type": "string", "description": "A page a line."}}}
    return {
        "operationId": "jobResult",
        "summary": "A file made of all pages of a job that is done.",
        "parameters": [_JOB_ID, _query("format", {"enum": list(RESULT_FORMATS), "default": JSON}, "Which file.")],
        "responses": {
            "200": {
                "description": "The file.",
                "headers": headers(),
                "content": {"application/json": {"schema": ref("JobResult")}, **lines, **files},
            }
        }
        | problem_responses([*failures, errors.OcrsvcError]),
    }


def _listing_errors(key_errors: Errors) -> Errors:
    return [errors.BadOption, errors.KeysNeeded, errors.JobsOff, *key_errors]


def _query(name: str, schema: Node, description: str) -> Node:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _whole(default: int, least: int, most: int) -> Node:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}
