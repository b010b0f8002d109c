"""Umi-OCR's document API: takes in PDFs, reports their progress, and returns their text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson
from flask import Blueprint, Response
from werkzeug.exceptions import NotFound

from ocrsvc import errors
from ocrsvc.adapters.context import AdapterContext, Coded, HeldOutput, StoredDocuments, add_job_routes, code_in
from ocrsvc.adapters.umi_ocr import answers, document_files
from ocrsvc.adapters.umi_ocr.answers import DocumentOptions
from ocrsvc.adapters.umi_ocr.document_files import AskedFiles, Making
from ocrsvc.errors import CallerError
from ocrsvc.formats.document import Output
from ocrsvc.formats.json_stream import JsonText, write_list
from ocrsvc.http.field_values import as_text
from ocrsvc.http.json_body import parse_json
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, file_response
from ocrsvc.imaging.document import is_pdf
from ocrsvc.jobs.job import Job
from ocrsvc.results import Check

PATH: Final = "/api/doc/"
SOURCE: Final = "umi_ocr"

NOT_JSON, NO_ID, UNKNOWN_ID, NOT_THERE = 101, 102, 103, 101
NO_FILE, BAD_KIND, BAD_OPTIONS, BAD_VALUE = 101, 103, 107, 108
BAD_DOCUMENT, ENCRYPTED, NO_SUCH_PAGE = 201, 202, 204
CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (errors.EncryptedDocument, ENCRYPTED),
    (errors.BrokenImage, BAD_DOCUMENT),
    (errors.UnsupportedImage, BAD_DOCUMENT),
    (errors.TooManyPages, NO_SUCH_PAGE),
    (errors.BadOption, BAD_VALUE),
    (errors.UnknownModel, BAD_VALUE),
)

_LONGEST_NAME: Final = 100
# A sent name may be as long as a body: only its end is looked at.
_LONGEST_SENT_NAME: Final = 1000
# A file system takes 255, and the names of made files are longer than this one.
_MOST_NAME_BYTES: Final = 230
# An answer with fewer bytes of pages is made at once, and takes no turn.
_SHORT_BYTES: Final = 1 << 20
_NOT_IN_NAMES: Final = re.compile(r'[\x00-\x1f\x7f\ud800-\udfff\\/:*?"<>|]')


def add_documents(blueprint: Blueprint, context: AdapterContext) -> None:
    """Add /api/doc/… to the adapter's blueprint."""
    views = _DocumentViews(context)
    add_job_routes(
        blueprint,
        ("GET", f"{PATH}get_options", views.options),
        ("POST", f"{PATH}upload", views.upload),
        ("POST", f"{PATH}result", views.result),
        ("POST", f"{PATH}download", views.make),
        ("GET", f"{PATH}download/<task_id>/<name>", views.download),
        ("GET", f"{PATH}clear/<task_id>", views.clear),
    )


class _DocumentViews:
    """The views, each called with the names in its path."""

    def __init__(self, context: AdapterContext) -> None:
        self._context, self._tasks = context, StoredDocuments(context, SOURCE)

    def options(self) -> Response:
        reader = self._context.reader
        of_images = answers.options_for(reader.models()) if reader.has_models else answers.OPTIONS
        return as_json({**of_images, **answers.DOCUMENT_OPTIONS})

    def upload(self) -> Response:
        content = request.content
        part = next((part for part in content.files if part.name == "file" and part.data), None)
        if part is None:
            raise Coded(NO_FILE, "[Error] No file was uploaded.")
        name, options = name_of(part.filename or ""), _options_of(content.members.get("json"))
        if not is_pdf(part.data):
            raise Coded(BAD_KIND, f"[Error] '{name}' is not allowed: only PDF files are read here.")
        read_options = options.read_options(has_models=self._context.reader.has_models)
        pages = partial(numbers_of, options, most=self._context.settings.job_pages)
        kept = options.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return as_json({"code": answers.OK, "data": self._tasks.add(part.data, read_options, pages, kept, name).id})

    def result(self) -> Response:
        sent = request.content.members
        with self._asked_for(sent) as job:
            if not sent.get("is_data"):
                return as_json({**_progress(job), "data": []})
            kind, is_unread = "text" if sent.get("format") == "text" else "dict", sent.get("is_unread", True)
            while True:
                progress, after = _progress(job), job.reported() if is_unread else 0
                upto = max(after, int(progress["processed_count"]))
                answer = self._result_of(job, progress, kind, after, upto)
                # Of two requests at the same moment, one gets the pages, and the other the later ones.
                if not is_unread or job.note_reported(after, upto):
                    return answer
                answer.close()

    def _result_of(self, job: Job, progress: Mapping[str, Any], kind: str, after: int, upto: int) -> Response:
        """The answer with these pages; a long and complete one is a file that is made once."""
        write = partial(_write_result, job, progress, kind, after, upto)
        if job.pages_bytes(after) <= _SHORT_BYTES:
            return _in_memory(write, request.make_check())
        if not progress["is_done"]:
            with self._tasks.files.turn() as check:
                return _in_memory(write, check)
        name = f"result-{kind}-{after}-{upto}.json"

        def make(check: Check) -> Path:
            return self._tasks.jobs.make_file(job, name, lambda output: write(output, check))

        return file_response(self._tasks.files.path(lambda: job.result_path(name), make), JSON_TYPE)

    def make(self) -> Response:
        sent = request.content.members
        with self._asked_for(sent) as job:
            asked = document_files.asked_files(job, sent)
            self._tasks.files.path(
                lambda: job.result_path(asked.name) if asked.is_named_fully else None,
                lambda check: self._made(job, asked, check),
                with_pdf=asked.has_pdf,
            )
        url = f"{request.host_url}{PATH[1:]}download/{job.id}/{quote(asked.name)}"
        return as_json({"code": answers.OK, "data": url, "name": asked.name})

    def _made(self, job: Job, asked: AskedFiles, check: Check) -> Path:
        context = self._context
        size_bytes = (job.folder / "file").stat().st_size if asked.has_pdf else 0
        # The document, once for its text and once for pictures of its pages.
        with request.share.holding(2 * size_bytes):
            picture_of = None
            if asked.has_pdf and job.record().options.get("mask"):
                picture_of = context.reader.picture_maker(job.data(), request.deadline, request.context)
            making = Making(context.settings.pdf_dpi, request.left_s, check, picture_of)
            return self._tasks.jobs.make_file(
                job, asked.name, lambda output: document_files.write_files(job, asked, making, output)
            )

    def download(self, task_id: str, name: str) -> Response:
        with self._tasks.found(task_id, NotFound()) as job:
            path = job.result_path(name)
            if path is None:
                raise NotFound
            response = file_response(path, "application/octet-stream")
            response.headers["Content-Disposition"] = "attachment"
            return response

    def clear(self, task_id: str) -> Response:
        with self._tasks.found(task_id, Coded(NOT_THERE, f"{task_id[:100]} does not exist.")) as job:
            self._tasks.jobs.clear(job)
        return as_json({"code": answers.OK, "data": "Success"})

    def _asked_for(self, sent: Mapping[str, Any]) -> AbstractContextManager[Job]:
        """The task that is named. Raises Coded when there is none, or none any more."""
        sent_id = sent.get("id")
        if not sent_id:
            raise Coded(NO_ID, "未填写id。")
        unknown = Coded(UNKNOWN_ID, f"任务 {sent_id[:100] if isinstance(sent_id, str) else ''} 不存在。")
        return self._tasks.found(sent_id, unknown)


def code_of(error: Exception) -> Any:
    """The original's code for an error of a document; None for one of an image."""
    return code_in(CODES, error, NOT_JSON)


def name_of(sent: str) -> str:
    """The file's name, made safe for a header, an address and any file system."""
    kept = _NOT_IN_NAMES.sub("_", sent.strip()[-_LONGEST_SENT_NAME:]).lstrip(".")[-_LONGEST_NAME:]
    return kept.encode()[-_MOST_NAME_BYTES:].decode(errors="ignore") or "document.pdf"


def numbers_of(options: DocumentOptions, count: int, most: int) -> list[int]:
    """The numbers of the chosen pages. Raises Coded for none, TooManyPages above `most`."""
    within = range(document_files.from_front(options.first, count), document_files.from_front(options.last, count) + 1)
    numbers = sorted({number for number in (options.listed or within) if 1 <= number <= count})
    if not numbers:
        raise Coded(NO_SUCH_PAGE, f"[Error] None of the pages asked for is there: the document has {count}.")
    if len(numbers) > most:
        raise errors.TooManyPages(
            f"{len(numbers)} pages are asked for; the limit is {most} (OCRSVC_JOB_PAGES).",
            "Ask for fewer at a time, with pageRangeStart and pageRangeEnd.",
        )
    return numbers


def _options_of(sent: object) -> DocumentOptions:
    """The checked options. Raises Coded for invalid JSON, BadOption for a wrong value."""
    try:
        options = parse_json(as_text(sent).encode("utf-8", "replace")) if sent else {}
    except errors.BodyTooLarge:
        raise
    except CallerError as error:
        raise Coded(BAD_OPTIONS, f"[Error] Invalid JSON format: {error.detail}") from error
    return DocumentOptions.from_sent(options)


def _write_result(
    job: Job, progress: Mapping[str, Any], kind: str, after: int, upto: int, output: Output, check: Check
) -> None:
    """Write the answer with these pages, one at a time. Raises FileNotFoundError for a cleared task."""
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
    """An answer made in memory, in the request's account. Raises QueueFull, BodyTooLarge."""
    with request.share.part() as held:
        output = HeldOutput(held)
        write(output, check)
        return Response(output.taken(), content_type=JSON_TYPE)


def _progress(job: Job) -> dict[str, Any]:
    """The state of a task. Raises FileNotFoundError for a cleared one."""
    progress, count = job.progress(), len(job.record().numbers)
    answer: dict[str, Any] = {
        "code": answers.OK,
        "processed_count": job.page_count(),
        "pages_count": count,
        "is_done": progress.state in {"success", "failure"},
        "state": progress.state,
    }
    return {**answer, "message": progress.why} if progress.why else answer
