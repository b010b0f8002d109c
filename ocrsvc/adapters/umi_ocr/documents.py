"""Umi-OCR's document API: takes in documents, reports their progress, and returns what was read of them.

Its tasks outlive requests: they wait in `ocrsvc.jobs`, and any worker answers for any of them. Only PDF is taken of the
formats that it knows.
"""

from __future__ import annotations

import csv
import io
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

import orjson
from flask import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from ocrsvc.adapters.umi_ocr.images import (
    ENGINE_FAILED,
    OK,
    OPTIONS,
    Coded,
    check_options,
    to_answer,
    to_read_options,
)
from ocrsvc.errors import (
    BadOption,
    BodyTooLarge,
    BrokenImage,
    CallerError,
    EncryptedDocument,
    TooManyPages,
    UnsupportedImage,
)
from ocrsvc.formats.page_values import unpack_page
from ocrsvc.formats.text_pdf import text_pdf
from ocrsvc.http.admission import WITHOUT_ENGINE, caller_of
from ocrsvc.http.json_body import parse_json
from ocrsvc.http.request import ParsedRequest, as_text, context_of, deadline_of, left_s, receive
from ocrsvc.http.responses import as_json
from ocrsvc.imaging.document import is_pdf
from ocrsvc.imaging.text_layer import add_text_layer
from ocrsvc.jobs.store import Task, Tasks, storing
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Page
from ocrsvc.serving.limiter import Limiter
from ocrsvc.serving.work_queue import deadline_passed
from ocrsvc.settings.settings import Settings

PATH: Final = "/api/doc/"

NOT_JSON, NO_ID, UNKNOWN_ID, NOT_THERE = 101, 102, 103, 101
NO_FILE, BAD_KIND, BAD_OPTIONS, BAD_VALUE = 101, 103, 107, 108
BAD_DOCUMENT, ENCRYPTED, NO_SUCH_PAGE = 201, 202, 204
NOT_DONE, BAD_TYPES, UNKNOWN_TYPE, NOT_MADE = 201, 202, 203, 204
CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (EncryptedDocument, ENCRYPTED),
    (BrokenImage, BAD_DOCUMENT),
    (UnsupportedImage, BAD_DOCUMENT),
    (TooManyPages, NO_SUCH_PAGE),
    (BadOption, BAD_VALUE),
)

_NAME_LETTERS: Final = 100
# Of what was sent; a file's name may be as long as a body.
_SENT_NAME_LETTERS: Final = 1000
# A file system takes 255 for a name, and files that are made add to this one.
_NAME_BYTES: Final = 230
_MAKE_WAITING: Final = 8
_NOT_IN_NAMES: Final = re.compile(r'[\x00-\x1f\x7f\ud800-\udfff\\/:*?"<>|]')
_MODES: Final = ("mixed", "fullPage", "imageOnly", "textOnly")


def add_documents(blueprint: Blueprint, settings: Settings, reader: Reader, tasks: Tasks) -> None:
    """Add /api/doc/… to the adapter's blueprint."""
    views = _DocumentViews(settings, reader, tasks)

    def add(method: str, path: str, name: str, view: Callable[..., Response]) -> None:
        def answer(**names: str) -> Response:
            with storing():
                return view(**names)

        setattr(answer, WITHOUT_ENGINE, True)
        blueprint.add_url_rule(f"{PATH}{path}", f"documents_{name}", answer, methods=[method])

    add("GET", "get_options", "options", lambda: as_json({**OPTIONS, **DOCUMENT_OPTIONS}))
    add("POST", "upload", "upload", views.upload)
    add("POST", "result", "result", views.result)
    add("POST", "download", "make", views.make)
    add("GET", "download/<task_id>/<name>", "download", views.download)
    add("GET", "clear/<task_id>", "clear", views.clear)


class _DocumentViews:
    """The views, each called with the names in its path."""

    def __init__(self, settings: Settings, reader: Reader, tasks: Tasks) -> None:
        self._settings, self._reader, self._tasks = settings, reader, tasks
        # Each may take a gigabyte, and a core.
        self._make_limiter = Limiter(1, _MAKE_WAITING)

    def upload(self) -> Response:
        """Take in a document."""
        deadline, parsed = self._receive()
        part = next((part for part in parsed.files if part.name == "file" and part.data), None)
        if part is None:
            raise Coded(NO_FILE, "[Error] No file was uploaded.")
        name, options = name_of(part.filename or ""), _options_of(dict(parsed.fields).get("json"))
        if not is_pdf(part.data):
            raise Coded(BAD_KIND, f"[Error] '{name}' is not allowed: only PDF files are read here.")
        with self._reader.open_document(part.data, left_s(deadline), context_of(request.environ)) as document:
            count = document.count
        read = to_read_options(options)
        about = {
            "name": name,
            "numbers": self._check_count(numbers_of(options, count)),
            "options": {"rotate": read.rotate, "max_side": read.max_side},
            "asked": {**options, "count": count},
        }
        caller = caller_of(request.environ, self._settings.caller_header)
        return as_json({"code": OK, "data": self._tasks.add(part.data, about, caller).id})

    def result(self) -> Response:
        """Report how far a task is, and what it has read."""
        sent = dict(self._receive()[1].fields)
        with self._asked_for(sent) as task:
            return as_json(_progress(task, sent))

    def make(self) -> Response:
        """Make files of what was read, and return where they are."""
        deadline, parsed = self._receive()
        sent = dict(parsed.fields)

        def check() -> None:
            if not left_s(deadline):
                raise deadline_passed()

        with self._asked_for(sent) as task, self._make_limiter.take(check):
            name = _make(self._tasks, task, sent, partial(_file_of, dpi=self._settings.pdf_dpi, deadline=deadline))
            url = f"{request.host_url}{PATH[1:]}download/{task.id}/{quote(name)}"
            return as_json({"code": OK, "data": url, "name": name})

    def download(self, task_id: str, name: str) -> Response:
        """A file that was made."""
        task = self._tasks.find(task_id)
        data = task.result_file(name) if task is not None else None
        if data is None:
            raise NotFound
        return Response(data, headers=_FILE_HEADERS, content_type="application/octet-stream")

    def clear(self, task_id: str) -> Response:
        """Delete a task."""
        task = self._tasks.find(task_id)
        if task is None:
            raise Coded(NOT_THERE, f"{task_id[:100]} does not exist.")
        self._tasks.clear(task)
        return as_json({"code": OK, "data": "Success"})

    def _receive(self) -> tuple[float, ParsedRequest]:
        deadline = deadline_of(request.environ, self._settings.deadline_s)
        return deadline, receive(request.environ, self._settings.max_body_bytes, deadline)

    @contextmanager
    def _asked_for(self, sent: Mapping[str, Any]) -> Iterator[Task]:
        """The task that is named. Raises Coded when there is none, or none any more."""
        sent_id = sent.get("id")
        if not sent_id:
            raise Coded(NO_ID, "未填写id。")
        unknown = Coded(UNKNOWN_ID, f"任务 {sent_id[:100] if isinstance(sent_id, str) else ''} 不存在。")
        task = self._tasks.find(sent_id)
        if task is None:
            raise unknown
        try:
            yield task
        except FileNotFoundError as error:
            raise unknown from error

    def _check_count(self, numbers: list[int]) -> list[int]:
        """The pages themselves. Raises TooManyPages."""
        most = self._settings.max_pages
        if len(numbers) > most:
            raise TooManyPages(
                f"{len(numbers)} pages are asked for; the limit is {most} (OCRSVC_MAX_PAGES).",
                "Ask for fewer at a time, with pageRangeStart and pageRangeEnd.",
            )
        return numbers


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


def numbers_of(options: Mapping[str, Any], count: int) -> list[int]:
    """The pages that the options choose. Raises Coded when the document has none of them."""
    listed = options.get("pageList") or []
    first, last = options.get("pageRangeStart", 1), options.get("pageRangeEnd", -1)
    within = range(_from_front(first, count), _from_front(last, count) + 1)
    numbers = sorted({number for number in (listed or within) if 1 <= number <= count})
    if not numbers:
        raise Coded(NO_SUCH_PAGE, f"[Error] None of the pages asked for is there: the document has {count}.")
    return numbers


def _from_front(number: int, count: int) -> int:
    """A number that counts from the end, if it is negative, within the document."""
    return min(max(number if number >= 0 else count + 1 + number, 0), count + 1)


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
    known = {*_CHECKS, "ocr.cls", "ocr.limit_side_len", "tbpu.parser", "tbpu.ignoreArea"}
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


def _progress(task: Task, sent: Mapping[str, Any]) -> dict[str, Any]:
    """How far a task is, and what it has read so far. Raises FileNotFoundError when it was cleared."""
    about, (state, why) = task.about(), task.state()
    answer: dict[str, Any] = {
        "code": OK,
        "processed_count": task.count_pages(),
        "pages_count": len(about["numbers"]),
        "is_done": state in {"success", "failure"},
        "state": state,
        "data": [],
    }
    if why:
        answer["message"] = why
    if sent.get("is_data"):
        rows = task.take_unreported() if sent.get("is_unread", True) else task.pages()
        kind = "text" if sent.get("format") == "text" else "dict"
        pages = [_page_of(row, about, kind) for row in rows]
        answer["data"] = "".join(page["data"] for page in pages if page["code"] == OK) if kind == "text" else pages
    return answer


def _page_of(row: Mapping[str, Any], about: Mapping[str, Any], kind: str = "dict") -> dict[str, Any]:
    """What was read of one page in Umi-OCR's words; of `kind` text, its text as `data`."""
    number = row["number"]
    called = f"{about['name']} - {number}"
    named = {"page": number, "path": called, "fileName": called}
    if "error" in row:
        return {"code": ENGINE_FAILED, "data": row["error"], "score": 0, **named}
    asked = dict(about["asked"])
    first, last = (_from_front(asked.get(f"tbpu.ignoreRange{end}", at), asked["count"]) for end, at in _ENDS)
    if not first <= number <= last:
        asked.pop("tbpu.ignoreArea", None)
    answer = to_answer(unpack_page(row["page"]), {**asked, "data.format": kind}, row["took_s"])
    return {**answer, "timestamp": row["at_s"], **named}


_ENDS: Final = (("Start", 1), ("End", -1))


Maker = Callable[[str, Task, Mapping[str, Any], Sequence[Mapping[str, Any]], bool], bytes]


def _make(tasks: Tasks, task: Task, sent: Mapping[str, Any], make: Maker) -> str:
    """Make the files that are asked for, as one; its name.

    Raises:
        Coded: The task is not done, or something else is asked for than the original makes.
        QueueFull: There is no space for them.
        FileNotFoundError: The task was cleared.
    """
    kinds, ignores_blank = (
        sent.get("file_types", ["pdfLayered"]),
        sent.get("ignore_blank", sent.get("ingore_blank", True)),
    )
    if task.state()[0] != "success":
        raise Coded(NOT_DONE, f"{task.id} 任务尚未结束或处理失败，无法获取文件")
    if not isinstance(kinds, list) or not kinds or not isinstance(ignores_blank, bool):
        raise Coded(BAD_TYPES, "参数类型错误： file_types 必须为数组， ignore_blank 必须为布尔值")
    if unknown := [str(kind)[:40] for kind in kinds if not isinstance(kind, str) or kind not in ENDINGS]:
        raise Coded(UNKNOWN_TYPE, f"初始化输出器失败。{unknown[0]}: {', '.join(ENDINGS)}")
    about, rows = task.about(), task.pages()
    stem = f"[OCR]_{PurePath(about['name']).stem}"
    files = {f"{stem}{ENDINGS[kind]}": make(kind, task, about, rows, ignores_blank) for kind in dict.fromkeys(kinds)}
    name, data = next(iter(files.items())) if len(files) == 1 else (f"{stem}.zip", _zipped(files))
    tasks.put_result_file(task, name, data)
    return name


def _zipped(files: Mapping[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return whole.getvalue()


def _file_of(
    kind: str,
    task: Task,
    about: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    ignores_blank: bool,  # noqa: FBT001  a wire format's own flag, passed on
    *,
    dpi: int,
    deadline: float,
) -> bytes:
    """One file of the result. Raises Coded when it cannot be made."""
    if kind in {"pdfLayered", "pdfOneLayer"}:
        pages: list[Page] = [unpack_page(row["page"]) for row in rows if "page" in row]
        if kind == "pdfOneLayer":
            return text_pdf(pages, dpi)
        try:
            return add_text_layer(task.data(), pages, left_s(deadline))
        except BrokenImage as error:
            raise Coded(NOT_MADE, f"输出失败：{error}") from error
    if kind == "jsonl":
        return b"".join(orjson.dumps(_page_of(row, about)) + b"\n" for row in rows)
    texts = [_page_of(row, about, "text") for row in rows]
    if ignores_blank and kind != "txtPlain":
        texts = [page for page in texts if page["code"] == OK]
    return {"txt": _as_txt, "txtPlain": _as_plain, "csv": _as_csv}[kind](texts, task).encode()


def _text_or_error(page: Mapping[str, Any]) -> str:
    """The text of a page, or why it has none."""
    if page["code"] == ENGINE_FAILED:
        return f"[Error] OCR failed. Code: {page['code']}, Msg: {page['data']}\n"
    return str(page["data"])


def _as_txt(pages: Sequence[Mapping[str, Any]], task: Task) -> str:
    came = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(task.came_at_s()))
    return f"{came}\n\n" + "".join(
        f"≦ {page['fileName']} ≧\n{_text_or_error(page)}{chr(10) if page['code'] == OK else ''}\n" for page in pages
    )


def _as_plain(pages: Sequence[Mapping[str, Any]], _task: Task) -> str:
    return "".join(f"{page['data']}\n" for page in pages if page["code"] == OK)


def _as_csv(pages: Sequence[Mapping[str, Any]], _task: Task) -> str:
    whole = io.StringIO(newline="")
    rows = csv.writer(whole)
    rows.writerow(["Name", "OCR", "Path"])
    rows.writerows([page["fileName"], _text_or_error(page), page["path"]] for page in pages)
    return whole.getvalue()


ENDINGS: Final[Mapping[str, str]] = {
    "pdfLayered": ".layered.pdf",
    "pdfOneLayer": ".text.pdf",
    "txt": ".txt",
    "txtPlain": ".p.txt",
    "jsonl": ".jsonl",
    "csv": ".csv",
}
"""What can be downloaded, and how each file's name ends."""


def _number(title: str, hint: str, default: int) -> dict[str, object]:
    described = {"title": title, "toolTip": hint, "default": default, "isInt": True}
    return {**described, "type": "number", "advanced": False}


DOCUMENT_OPTIONS: Final[Mapping[str, object]] = {
    "tbpu.ignoreRangeStart": _number("忽略区域起始", "忽略区域生效的页数范围起始。从1开始。", 1),
    "tbpu.ignoreRangeEnd": _number("忽略区域结束", "忽略区域生效的页数范围结束。可以用负数表示倒数第X页。", -1),
    "pageRangeStart": _number("OCR页数起始", "OCR的页数范围起始。从1开始。", 1),
    "pageRangeEnd": _number("OCR页数结束", "OCR的页数范围结束。可以用负数表示倒数第X页。", -1),
    "pageList": {
        "title": "OCR页数列表",
        "toolTip": "数组，可指定单个或多个页数。例：[1,2,5]。与页数范围同时填写时优先。",
        "default": [],
        "type": "var",
        "advanced": False,
    },
    "doc.extractionMode": {
        "title": "内容提取模式",
        "optionsList": [["fullPage", "整页强制OCR"]],
        "type": "enum",
        "default": "fullPage",
        "advanced": False,
    },
}
"""What GET /api/doc/get_options adds to the options of an image."""
