"""Umi-OCR's document API: takes in documents, reports their progress, and returns what was read of them.

Its tasks outlive requests: they wait in `ocrsvc.jobs`, and any worker answers for any of them. Only PDF is taken of the
formats that it knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from flask import Blueprint, Response
from werkzeug.exceptions import NotFound

from ocrsvc.adapters.umi_ocr.document_files import Making, from_front, has_pdf, make_files, page_of
from ocrsvc.adapters.umi_ocr.image_requests import (
    OK,
    OPTIONS,
    Coded,
    check_options,
    choice,
    described,
    options_for,
    to_read_options,
)
from ocrsvc.errors import (
    BadOption,
    BodyTooLarge,
    BrokenImage,
    CallerError,
    EncryptedDocument,
    TooManyPages,
    UnknownModel,
    UnsupportedImage,
)
from ocrsvc.http.field_values import as_text
from ocrsvc.http.json_body import parse_json
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.imaging.document import is_pdf
from ocrsvc.job_requests import job_view, owner_of_request
from ocrsvc.jobs.intake import JobRequest, add_job, find_job
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.store import JobStore
from ocrsvc.pipeline.masked_pictures import picture_maker
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Page
from ocrsvc.serving.limiter import Limiter
from ocrsvc.serving.memory_budget import Share
from ocrsvc.settings.settings import Settings

PATH: Final = "/api/doc/"
SOURCE: Final = "umi_ocr"

NOT_JSON, NO_ID, UNKNOWN_ID, NOT_THERE = 101, 102, 103, 101
NO_FILE, BAD_KIND, BAD_OPTIONS, BAD_VALUE = 101, 103, 107, 108
BAD_DOCUMENT, ENCRYPTED, NO_SUCH_PAGE = 201, 202, 204
CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (EncryptedDocument, ENCRYPTED),
    (BrokenImage, BAD_DOCUMENT),
    (UnsupportedImage, BAD_DOCUMENT),
    (TooManyPages, NO_SUCH_PAGE),
    (BadOption, BAD_VALUE),
    (UnknownModel, BAD_VALUE),
)

_NAME_LETTERS: Final = 100
# Of what was sent; a file's name may be as long as a body.
_SENT_NAME_LETTERS: Final = 1000
# A file system takes 255 for a name, and files that are made add to this one.
_NAME_BYTES: Final = 230
_MAKE_WAITING: Final = 8
_NOT_IN_NAMES: Final = re.compile(r'[\x00-\x1f\x7f\ud800-\udfff\\/:*?"<>|]')
_MODES: Final = ("mixed", "fullPage", "imageOnly", "textOnly")


def add_documents(blueprint: Blueprint, settings: Settings, reader: Reader, jobs: JobStore) -> None:
    """Add /api/doc/… to the adapter's blueprint."""
    views = _DocumentViews(settings, reader, jobs)

    def add(method: str, path: str, name: str, view: Callable[..., Response]) -> None:
        blueprint.add_url_rule(f"{PATH}{path}", f"documents_{name}", job_view(view), methods=[method])

    add("GET", "get_options", "options", views.options)
    add("POST", "upload", "upload", views.upload)
    add("POST", "result", "result", views.result)
    add("POST", "download", "make", views.make)
    add("GET", "download/<task_id>/<name>", "download", views.download)
    add("GET", "clear/<task_id>", "clear", views.clear)


class _DocumentViews:
    """The views, each called with the names in its path."""

    def __init__(self, settings: Settings, reader: Reader, jobs: JobStore) -> None:
        self._settings, self._reader, self._jobs = settings, reader, jobs
        # Of files other than PDFs: each may take a gigabyte, and a core.
        self._make_limiter = Limiter(1, _MAKE_WAITING)

    def options(self) -> Response:
        """The options of a document."""
        of_images = options_for(self._reader.models()) if self._reader.has_models else OPTIONS
        return as_json({**of_images, **DOCUMENT_OPTIONS})

    def upload(self) -> Response:
        """Take in a document."""
        content = request.content
        part = next((part for part in content.files if part.name == "file" and part.data), None)
        if part is None:
            raise Coded(NO_FILE, "[Error] No file was uploaded.")
        name, options = name_of(part.filename or ""), _options_of(content.members.get("json"))
        if not is_pdf(part.data):
            raise Coded(BAD_KIND, f"[Error] '{name}' is not allowed: only PDF files are read here.")
        job_request = JobRequest(
            part.data,
            to_read_options(options, has_models=self._reader.has_models),
            owner_of_request(),
            name,
            lambda count: numbers_of(options, count, self._settings.job_pages),
            SOURCE,
            options,
        )
        job = add_job(self._jobs, self._reader, self._settings, job_request, request.context, request.left_s)
        return as_json({"code": OK, "data": job.id})

    def result(self) -> Response:
        """Report how far a task is, and what it has read."""
        sent = request.content.members
        with self._asked_for(sent) as job:
            return as_json(_progress(job, sent))

    def make(self) -> Response:
        """Make files of what was read, and return where they are."""
        sent = request.content.members
        # One of the two, so that a text does not wait behind PDFs, and nobody holds one while waiting for the other.
        limiter = self._reader.pdf_making if has_pdf(sent) else self._make_limiter
        with self._asked_for(sent) as job, limiter.take(request.make_check()):
            with request.share.part() as held:
                making = Making(self._settings.pdf_dpi, request.deadline, self._picture_maker(job, held))
                name, data = make_files(job, sent, making)
            self._jobs.put_result_file(job, name, data)
            url = f"{request.host_url}{PATH[1:]}download/{job.id}/{quote(name)}"
            return as_json({"code": OK, "data": url, "name": name})

    def _picture_maker(self, job: Job, held: Share) -> Callable[[Page], bytes]:
        """What draws a page of the task's document; the pictures stay in the account."""

        def picture_of(page: Page) -> bytes:
            picture = picture_maker(self._reader, job.data(), request.deadline, request.context)(page)
            # Once more in the file that is made of them.
            held.take(2 * len(picture))
            return picture

        return picture_of

    def download(self, task_id: str, name: str) -> Response:
        """A file that was made."""
        job = self._find(task_id)
        data = job.result_file(name) if job is not None else None
        if data is None:
            raise NotFound
        return Response(data, headers=_FILE_HEADERS, content_type="application/octet-stream")

    def clear(self, task_id: str) -> Response:
        """Delete a task."""
        job = self._find(task_id)
        if job is None:
            raise Coded(NOT_THERE, f"{task_id[:100]} does not exist.")
        self._jobs.clear(job)
        return as_json({"code": OK, "data": "Success"})

    def _find(self, sent_id: object) -> Job | None:
        """The task of this id; with keys, none that was left with another key."""
        return find_job(self._jobs, sent_id, owner_of_request(), SOURCE)

    @contextmanager
    def _asked_for(self, sent: Mapping[str, Any]) -> Iterator[Job]:
        """The task that is named. Raises Coded when there is none, or none any more."""
        sent_id = sent.get("id")
        if not sent_id:
            raise Coded(NO_ID, "未填写id。")
        unknown = Coded(UNKNOWN_ID, f"任务 {sent_id[:100] if isinstance(sent_id, str) else ''} 不存在。")
        job = self._find(sent_id)
        if job is None:
            raise unknown
        try:
            yield job
        except FileNotFoundError as error:
            raise unknown from error


_FILE_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}


def code_of(error: Exception) -> int | None:
    """The original's code for this error of a document; None where it is that of an image."""
    if isinstance(error, Coded):
        return error.original_code
    if type(error) is CallerError:
        return NOT_JSON
    return next((code for kind, code in CODES if isinstance(error, kind)), None)


def name_of(sent: str) -> str:
    """What the caller calls the file, as a name that is safe in a header, an address and any file system."""
    kept = _NOT_IN_NAMES.sub("_", sent.strip()[-_SENT_NAME_LETTERS:]).lstrip(".")[-_NAME_LETTERS:]
    return kept.encode()[-_NAME_BYTES:].decode(errors="ignore") or "document.pdf"


def numbers_of(options: Mapping[str, Any], count: int, most: int) -> list[int]:
    """The pages that the options choose. Raises Coded when the document has none of them, TooManyPages above `most`."""
    listed = options.get("pageList") or []
    first, last = options.get("pageRangeStart", 1), options.get("pageRangeEnd", -1)
    within = range(from_front(first, count), from_front(last, count) + 1)
    numbers = sorted({number for number in (listed or within) if 1 <= number <= count})
    if not numbers:
        raise Coded(NO_SUCH_PAGE, f"[Error] None of the pages asked for is there: the document has {count}.")
    if len(numbers) > most:
        raise TooManyPages(
            f"{len(numbers)} pages are asked for; the limit is {most} (OCRSVC_JOB_PAGES).",
            "Ask for fewer at a time, with pageRangeStart and pageRangeEnd.",
        )
    return numbers


def _options_of(sent: object) -> dict[str, Any]:
    """The options, checked. Raises Coded for what is no JSON, BadOption for a wrong value."""
    try:
        options = parse_json(as_text(sent).encode("utf-8", "replace")) if sent else {}
    except BodyTooLarge:
        raise
    except CallerError as error:
        raise Coded(BAD_OPTIONS, f"[Error] Invalid JSON format: {error.detail}") from error
    check_options(options)
    for name, is_right in _CHECKS.items():
        if name in options and not is_right(options[name]):
            raise BadOption(f"{name} 当前值不合法： {str(options[name])[:100]}")
    if options.get("doc.extractionMode") == "textOnly":
        raise BadOption("doc.extractionMode textOnly is not served: pages are read as they look.", "Send fullPage.")
    known = {*_CHECKS, "ocr.language", "ocr.cls", "ocr.limit_side_len", "tbpu.parser", "tbpu.ignoreArea"}
    return {name: value for name, value in options.items() if name in known}


def _is_whole(value: object) -> bool:
    return type(value) is int


_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "tbpu.ignoreRangeStart": _is_whole,
    "tbpu.ignoreRangeEnd": _is_whole,
    "pageRangeStart": _is_whole,
    "pageRangeEnd": _is_whole,
    "pageList": lambda value: isinstance(value, list) and all(map(_is_whole, value)),
    "doc.extractionMode": lambda value: value in _MODES,
}


def _progress(job: Job, sent: Mapping[str, Any]) -> dict[str, Any]:
    """How far a task is, and what it has read so far. Raises FileNotFoundError when it was cleared."""
    about, (state, why) = job.about(), job.state()
    answer: dict[str, Any] = {
        "code": OK,
        "processed_count": job.count_pages(),
        "pages_count": len(about["numbers"]),
        "is_done": state in {"success", "failure"},
        "state": state,
        "data": [],
    }
    if why:
        answer["message"] = why
    if sent.get("is_data"):
        rows = job.take_unreported() if sent.get("is_unread", True) else list(job.pages())
        kind = "text" if sent.get("format") == "text" else "dict"
        pages = [page_of(row, about, kind) for row in rows]
        answer["data"] = "".join(page["data"] for page in pages if page["code"] == OK) if kind == "text" else pages
    return answer


def _number(title: str, hint: str, default: int) -> dict[str, object]:
    return described("number", title, default, toolTip=hint, isInt=True)


DOCUMENT_OPTIONS: Final[Mapping[str, object]] = {
    "tbpu.ignoreRangeStart": _number("忽略区域起始", "忽略区域生效的页数范围起始。从1开始。", 1),
    "tbpu.ignoreRangeEnd": _number("忽略区域结束", "忽略区域生效的页数范围结束。可以用负数表示倒数第X页。", -1),
    "pageRangeStart": _number("OCR页数起始", "OCR的页数范围起始。从1开始。", 1),
    "pageRangeEnd": _number("OCR页数结束", "OCR的页数范围结束。可以用负数表示倒数第X页。", -1),
    "pageList": described(
        "var", "OCR页数列表", [], toolTip="数组，可指定单个或多个页数。例：[1,2,5]。与页数范围同时填写时优先。"
    ),
    "doc.extractionMode": choice("内容提取模式", [("fullPage", "整页强制OCR")]),
}
"""What GET /api/doc/get_options adds to the options of an image."""
