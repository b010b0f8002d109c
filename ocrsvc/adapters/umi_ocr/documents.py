"""Umi-OCR's document API: PDFs as jobs, their progress, text and files."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson
from flask import Response
from werkzeug.exceptions import NotFound

from ocrsvc import errors
from ocrsvc.adapters.context import AdapterContext, CodedError, CountedBuffer, Route, StoredDocuments
from ocrsvc.adapters.umi_ocr import answers, document_files
from ocrsvc.adapters.umi_ocr.answers import DocumentOptions
from ocrsvc.adapters.umi_ocr.document_files import FileRequest, WriteContext
from ocrsvc.errors import CallerError
from ocrsvc.formats.document import Output
from ocrsvc.formats.json_stream import JsonText, write_list
from ocrsvc.http.field_values import as_text
from ocrsvc.http.parsed_body import parse_json
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, file_response
from ocrsvc.imaging.document import is_pdf
from ocrsvc.jobs.job import Job
from ocrsvc.results import Check

PATH: Final = "/api/doc/"

NOT_JSON, NO_ID, UNKNOWN_ID, NOT_THERE = 101, 102, 103, 101
NO_FILE, BAD_KIND, BAD_OPTIONS, BAD_VALUE = 101, 103, 107, 108
BAD_DOCUMENT, ENCRYPTED, NO_SUCH_PAGE = 201, 202, 204
CODES: Final[tuple[tuple[type[errors.OcrsvcError], int], ...]] = (
    (errors.EncryptedDocument, ENCRYPTED),
    (errors.BrokenImage, BAD_DOCUMENT),
    (errors.UnsupportedImage, BAD_DOCUMENT),
    (errors.TooManyPages, NO_SUCH_PAGE),
    (errors.BadOption, BAD_VALUE),
    (errors.UnknownModel, BAD_VALUE),
)

_MAX_NAME_CHARACTERS: Final = 100
# A client's file name may fill the whole body, so only its end is used.
_MAX_CLIENT_NAME_CHARACTERS: Final = 1000
# Longest name of a document: file systems allow 255 bytes, and result files add a prefix and a suffix.
_MAX_NAME_BYTES: Final = 230
# Larger responses (in bytes of pages) are made only a few at a time, while others wait.
_MAX_SHORT_BYTES: Final = 1 << 20
_NOT_IN_NAMES: Final = re.compile(r'[\x00-\x1f\x7f\ud800-\udfff\\/:*?"<>|]')


def document_routes(context: AdapterContext) -> list[Route]:
    """The routes of /api/doc/…."""
    views = _DocumentViews(context)
    return [
        *(("GET", f"{PATH}get_options", views.options), ("POST", f"{PATH}upload", views.upload)),
        *(("POST", f"{PATH}result", views.result), ("GET", f"{PATH}clear/<task_id>", views.clear)),
        *(("POST", f"{PATH}download", views.make), ("GET", f"{PATH}download/<task_id>/<name>", views.download)),
    ]


class _DocumentViews:
    """The views of /api/doc/…."""

    def __init__(self, context: AdapterContext) -> None:
        self._context, self._jobs = context, StoredDocuments(context, "umi_ocr")

    def options(self) -> Response:
        reader = self._context.reader
        image_options = answers.options_for(reader.models()) if reader.has_models else answers.OPTIONS
        return as_json({**image_options, **answers.DOCUMENT_OPTIONS})

    def upload(self) -> Response:
        content = request.content
        part = next((part for part in content.files if part.name == "file" and part.data), None)
        if part is None:
            raise CodedError(NO_FILE, "[Error] No file was uploaded.")
        name, options = name_of(part.filename or ""), _options_of(content.members.get("json"))
        if not is_pdf(part.data):
            raise CodedError(BAD_KIND, f"[Error] '{name}' is not allowed: only PDF files are accepted.")
        read_options = options.read_options(has_models=self._context.reader.has_models)
        pages = partial(numbers_of, options, max_pages=self._context.settings.job_pages)
        kept = options.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return as_json({"code": answers.OK, "data": self._jobs.add(part.data, read_options, pages, kept, name).id})

    def result(self) -> Response:
        members = request.content.members
        with self._find(members) as job:
            if not members.get("is_data"):
                return as_json({**_progress(job), "data": []})
            kind, is_unread = "text" if members.get("format") == "text" else "dict", members.get("is_unread", True)
            while True:
                progress, after = _progress(job), job.reported() if is_unread else 0
                upto = max(after, int(progress["processed_count"]))
                answer = self._result_of(job, progress, kind, after, upto)
                # Another request may have just returned the same unread pages: then retry with the pages after them.
                if not is_unread or job.note_reported(after, upto):
                    return answer
                answer.close()

    def _result_of(self, job: Job, progress: Mapping[str, Any], kind: str, after: int, upto: int) -> Response:
        """The response with the pages after `after` up to `upto`; a long one of an ended job is cached as a file."""
        write = partial(_write_result, job, progress, kind, after, upto)
        if job.pages_bytes(after) <= _MAX_SHORT_BYTES:
            return _in_memory(write, request.make_check())
        if not progress["is_done"]:
            with self._jobs.turn() as check:
                return _in_memory(write, check)
        name = f"result-{kind}-{after}-{upto}.json"

        def make(check: Check) -> Path:
            return self._jobs.jobs.make_file(job, name, lambda output: write(output, check))

        return file_response(self._jobs.path(lambda: job.result_path(name), make), JSON_TYPE)

    def make(self) -> Response:
        members = request.content.members
        with self._find(members) as job:
            files = document_files.parse_file_request(job, members)
            self._jobs.path(
                lambda: job.result_path(files.name) if files.is_named_fully else None,
                lambda check: self._write(job, files, check),
                with_pdf=files.has_pdf,
            )
        url = f"{request.host_url}{PATH[1:]}download/{job.id}/{quote(files.name)}"
        return as_json({"code": answers.OK, "data": url, "name": files.name})

    def _write(self, job: Job, files: FileRequest, check: Check) -> Path:
        context = self._context
        size_bytes = (job.folder / "file").stat().st_size if files.has_pdf else 0
        # Count the document's bytes twice, because it is loaded for its text and again for pictures of its pages.
        with request.share.holding(2 * size_bytes):
            picture_of = None
            if files.has_pdf and job.record().options.get("mask"):
                picture_of = context.reader.picture_maker(job.data(), request.deadline, request.context)
            write_context = WriteContext(context.settings.pdf_dpi, request.left_s, check, picture_of)
            return self._jobs.jobs.make_file(
                job, files.name, lambda output: document_files.write_files(job, files, write_context, output)
            )

    def download(self, task_id: str, name: str) -> Response:
        with self._jobs.find(task_id, NotFound()) as job:
            path = job.result_path(name)
            if path is None:
                raise NotFound
            response = file_response(path, "application/octet-stream")
            response.headers["Content-Disposition"] = "attachment"
            return response

    def clear(self, task_id: str) -> Response:
        with self._jobs.find(task_id, CodedError(NOT_THERE, f"{task_id[:100]} does not exist.")) as job:
            self._jobs.jobs.clear(job)
        return as_json({"code": answers.OK, "data": "Success"})

    def _find(self, members: Mapping[str, Any]) -> AbstractContextManager[Job]:
        """The job with the request's id. Raises CodedError."""
        job_id = members.get("id")
        if not job_id:
            raise CodedError(NO_ID, "未填写id。")
        unknown = CodedError(UNKNOWN_ID, f"任务 {job_id[:100] if isinstance(job_id, str) else ''} 不存在。")
        return self._jobs.find(job_id, unknown)


def name_of(filename: str) -> str:
    """Make a client's file name safe for headers, URLs and file systems."""
    kept = _NOT_IN_NAMES.sub("_", filename.strip()[-_MAX_CLIENT_NAME_CHARACTERS:]).lstrip(".")[-_MAX_NAME_CHARACTERS:]
    return kept.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore") or "document.pdf"


def numbers_of(options: DocumentOptions, count: int, max_pages: int) -> list[int]:
    """The numbers of the chosen pages. Raises CodedError for none, TooManyPages above `max_pages`."""
    within = range(document_files.from_front(options.first, count), document_files.from_front(options.last, count) + 1)
    numbers = sorted({number for number in (options.listed or within) if 1 <= number <= count})
    if not numbers:
        raise CodedError(NO_SUCH_PAGE, f"[Error] None of the requested pages exists: the document has {count} pages.")
    if len(numbers) > max_pages:
        raise errors.TooManyPages(
            f"The request is for {len(numbers)} pages; the limit is {max_pages} (OCRSVC_JOB_PAGES).",
            "Request fewer at a time, with pageRangeStart and pageRangeEnd.",
        )
    return numbers


def _options_of(text: object) -> DocumentOptions:
    """Validate the options. Raises CodedError for invalid JSON, BadOption for a wrong value."""
    try:
        options = parse_json(as_text(text).encode("utf-8", "replace")) if text else {}
    except errors.BodyTooLarge:
        raise
    except CallerError as error:
        raise CodedError(BAD_OPTIONS, f"[Error] Invalid JSON format: {error.detail}") from error
    return DocumentOptions.from_values(options)


def _write_result(
    job: Job, progress: Mapping[str, Any], kind: str, after: int, upto: int, output: Output, check: Check
) -> None:
    """Write the response with the pages after `after` up to `upto`. Raises FileNotFoundError for a deleted job."""
    output.write(orjson.dumps(progress)[:-1] + b',"data":')
    pages = document_files.pages_of(job, check, kind, after, upto - after)
    if kind == "text":
        with JsonText(output) as text:
            for page in pages:
                if page["code"] == answers.OK:
                    text.write(page["data"].encode())
    else:
        write_list(pages, output)
    output.write(b"}")


def _in_memory(write: Callable[[Output, Check], None], check: Check) -> Response:
    """Write a response to memory, counted in the request's memory share. Raises QueueFull, BodyTooLarge."""
    with request.share.part() as held:
        output = CountedBuffer(held)
        write(output, check)
        return Response(output.take_value(), content_type=JSON_TYPE)


def _progress(job: Job) -> dict[str, Any]:
    """The state of a job. Raises FileNotFoundError for a deleted one."""
    progress, count = job.progress(), len(job.record().numbers)
    answer: dict[str, Any] = {
        "code": answers.OK,
        "processed_count": job.page_count(),
        "pages_count": count,
        "is_done": progress.state in {"success", "failure"},
        "state": progress.state,
    }
    return {**answer, "message": progress.why} if progress.why else answer
