"""Umi-OCR's document API: takes in documents, reports their progress, and returns what was read of them.

Its tasks outlive requests: they wait in `ocrsvc.jobs`, and any worker answers for any of them. Only PDF is taken of the
formats that it knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson
from flask import Blueprint, Response
from werkzeug.exceptions import NotFound

from ocrsvc.adapters.umi_ocr.document_files import (
    AskedFiles,
    Making,
    asked_files,
    from_front,
    pages_of,
    write_files,
)
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
from ocrsvc.formats.document import Output
from ocrsvc.formats.json_stream import JsonText, write_list
from ocrsvc.http.field_values import as_text
from ocrsvc.http.json_body import parse_json
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, file_response
from ocrsvc.imaging.document import is_pdf
from ocrsvc.job_requests import ResultFiles, job_view, owner_of_request
from ocrsvc.jobs.intake import JobRequest, add_job, find_job
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import make_file
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.masked_pictures import picture_maker
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Check
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
# Of pages on the disk: an answer with so many is made in the request, and takes no turn.
_SHORT_BYTES: Final = 1 << 20
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
        self._files = ResultFiles(jobs, reader)

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
            if not sent.get("is_data"):
                return as_json({**_progress(job), "data": []})
            kind = "text" if sent.get("format") == "text" else "dict"
            if not sent.get("is_unread", True):
                return self._result_of(_ReadPages(job, _progress(job), 0, kind))
            while True:
                pages = _ReadPages(job, _progress(job), job.reported(), kind)
                answer = self._result_of(pages)
                # Of two requests at the same moment one has the pages, and the other what came after them.
                if job.note_reported(pages.after, pages.upto):
                    return answer
                answer.close()

    def _result_of(self, pages: _ReadPages) -> Response:
        """The answer with these pages: a long one, to which no page comes any more, from a file that is made once."""
        if pages.size_bytes <= _SHORT_BYTES:
            return _in_memory(pages, request.make_check())
        if not pages.progress["is_done"]:
            with self._files.turn() as check:
                return _in_memory(pages, check)
        job, name = pages.job, f"result-{pages.kind}-{pages.after}-{pages.upto}.json"

        def make(check: Check) -> Path:
            return make_file(self._jobs, job, name, lambda output: pages.write(output, check))

        return file_response(self._files.path(lambda: job.result_path(name), make), JSON_TYPE)

    def make(self) -> Response:
        """Make files of what was read, and return where they are."""
        sent = request.content.members
        with self._asked_for(sent) as job:
            asked = asked_files(job, sent)
            self._files.path(
                lambda: job.result_path(asked.name) if asked.is_named_fully else None,
                lambda check: self._made(job, asked, check),
                with_pdf=asked.has_pdf,
            )
        url = f"{request.host_url}{PATH[1:]}download/{job.id}/{quote(asked.name)}"
        return as_json({"code": OK, "data": url, "name": asked.name})

    def _made(self, job: Job, asked: AskedFiles, check: Check) -> Path:
        size_bytes = (job.folder / "file").stat().st_size if asked.has_pdf else 0
        # The whole document, once for its text and once for pictures of its pages.
        with request.share.holding(2 * size_bytes):
            is_masked = asked.has_pdf and job.about()["options"].get("mask")
            picture_of = (
                picture_maker(self._reader, job.data(), request.deadline, request.context) if is_masked else None
            )
            making = Making(self._settings.pdf_dpi, request.left_s, check, picture_of)
            return make_file(self._jobs, job, asked.name, lambda output: write_files(job, asked, making, output))

    def download(self, task_id: str, name: str) -> Response:
        """A file that was made."""
        job = self._find(task_id)
        path = job.result_path(name) if job is not None else None
        if path is None:
            raise NotFound
        try:
            response = file_response(path, "application/octet-stream")
        except FileNotFoundError as error:
            raise NotFound from error
        response.headers["Content-Disposition"] = "attachment"
        return response

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


@dataclass(frozen=True, slots=True)
class _ReadPages:
    """Pages that were read, for one answer.

    Attributes:
        job: Whose pages.
        progress: How far it is, as the answer tells it; taken before the pages.
        after: How many pages are left out.
        kind: `text`, or `dict` for lines with their places.
    """

    job: Job
    progress: Mapping[str, Any]
    after: int
    kind: str

    @property
    def upto(self) -> int:
        """How many pages are told once these are."""
        return max(self.after, int(self.progress["processed_count"]))

    @property
    def size_bytes(self) -> int:
        """About what the answer takes."""
        return self.job.log.size_bytes(self.after)

    def write(self, output: Output, check: Check) -> None:
        """Write the answer, a page at a time. Raises FileNotFoundError once the task was cleared."""
        output.write(orjson.dumps(self.progress)[:-1] + b',"data":')
        pages = pages_of(self.job, check, self.kind, self.after, self.upto - self.after)
        if self.kind == "text":
            with JsonText(output) as text:
                for page in pages:
                    if page["code"] == OK:
                        text.write(page["data"].encode())
        else:
            write_list(pages, output)
        output.write(b"}")


class _KeptPieces:
    """The pieces of an answer in memory, in an account of it from which the whole of them can be made, too."""

    def __init__(self, held: Share) -> None:
        self._held = held
        self.pieces: list[bytes] = []

    def write(self, data: bytes | memoryview, /) -> None:
        """Keep a piece. Raises QueueFull, BodyTooLarge."""
        self._held.take(2 * len(data))
        self.pieces.append(bytes(data))


def _in_memory(pages: _ReadPages, check: Check) -> Response:
    """The answer, in the request's account. Raises QueueFull, BodyTooLarge where there is no memory for it."""
    with request.share.part() as held:
        kept = _KeptPieces(held)
        pages.write(kept, check)
        # Whoever finishes the response takes what it has.
        return Response(b"".join(kept.pieces), content_type=JSON_TYPE)


def _progress(job: Job) -> dict[str, Any]:
    """How far a task is. Raises FileNotFoundError when it was cleared."""
    about, (state, why) = job.about(), job.state()
    answer: dict[str, Any] = {
        "code": OK,
        "processed_count": job.log.count(),
        "pages_count": len(about["numbers"]),
        "is_done": state in {"success", "failure"},
        "state": state,
    }
    return {**answer, "message": why} if why else answer


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
