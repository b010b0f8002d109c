"""Files made of what was read of a document: text, CSV, JSON lines, and PDFs with text."""

from __future__ import annotations

import csv
import io
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final

import orjson

from ocrsvc.adapters.umi_ocr.image_requests import ENGINE_FAILED, OK, Coded, to_answer
from ocrsvc.errors import BrokenImage
from ocrsvc.formats.page_serialization import unpack_page
from ocrsvc.formats.text_pdf import text_pdf
from ocrsvc.imaging.decode import PixelLimits
from ocrsvc.jobs.job import Job
from ocrsvc.records import Page
from ocrsvc.searchable_pdf.image_pdf import ImagePdf
from ocrsvc.searchable_pdf.page_image import page_image
from ocrsvc.searchable_pdf.text_layer import add_text_layer
from ocrsvc.searchable_pdf.text_lines import text_of

# Pages were held to limits when they were drawn.
_OWN_PICTURES: Final = PixelLimits(1 << 40)
NOT_DONE, BAD_TYPES, UNKNOWN_TYPE, NOT_MADE = 201, 202, 203, 204


ENDINGS: Final[Mapping[str, str]] = {
    "pdfLayered": ".layered.pdf",
    "pdfOneLayer": ".text.pdf",
    "txt": ".txt",
    "txtPlain": ".p.txt",
    "jsonl": ".jsonl",
    "csv": ".csv",
}
"""What can be downloaded, and how each file's name ends."""

_LAYERED, _ONE_LAYER = _PDFS = ("pdfLayered", "pdfOneLayer")


@dataclass(frozen=True, slots=True)
class Making:
    """What files are made with.

    Attributes:
        dpi: Pixels to an inch at which pages were drawn.
        deadline: Monotonic seconds at which they must be there.
        picture_of: A page of the document as a JPEG, with what is masked in black.
    """

    dpi: int
    deadline: float
    picture_of: Callable[[Page], bytes]


def has_pdf(sent: Mapping[str, Any]) -> bool:
    """Whether a PDF is among the files that are asked for, whatever else is sent."""
    kinds = _kinds_of(sent)
    return isinstance(kinds, list) and any(kind in _PDFS for kind in kinds)


def _kinds_of(sent: Mapping[str, Any]) -> object:
    return sent.get("file_types", [_LAYERED])


def make_files(job: Job, sent: Mapping[str, Any], making: Making) -> tuple[str, bytes]:
    """The files that are asked for, as one, and its name.

    Raises:
        Coded: The task is not done, or something else is asked for than the original makes.
        FileNotFoundError: The task was cleared.
    """
    kinds = _kinds_of(sent)
    ignores_blank = sent.get("ignore_blank", sent.get("ingore_blank", True))
    if job.state()[0] != "success":
        raise Coded(NOT_DONE, f"{job.id} 任务尚未结束或处理失败，无法获取文件")
    if not isinstance(kinds, list) or not kinds or not isinstance(ignores_blank, bool):
        raise Coded(BAD_TYPES, "参数类型错误： file_types 必须为数组， ignore_blank 必须为布尔值")
    if unknown := [str(kind)[:40] for kind in kinds if not isinstance(kind, str) or kind not in ENDINGS]:
        raise Coded(UNKNOWN_TYPE, f"初始化输出器失败。{unknown[0]}: {', '.join(ENDINGS)}")
    stem = f"[OCR]_{PurePath(job.about()['name']).stem}"
    files = {
        f"{stem}{ENDINGS[kind]}": _file_of(kind, job, making, ignores_blank=ignores_blank)
        for kind in dict.fromkeys(kinds)
    }
    return next(iter(files.items())) if len(files) == 1 else (f"{stem}.zip", _zipped(files))


def _file_of(kind: str, job: Job, making: Making, *, ignores_blank: bool) -> bytes:
    about, rows = job.about(), list(job.pages())
    if kind in _PDFS:
        pages = [unpack_page(row["page"]) for row in rows if "page" in row]
        return text_pdf(pages, making.dpi) if kind == _ONE_LAYER else _layered_pdf(job, pages, making)
    if kind == "jsonl":
        return b"".join(orjson.dumps(page_of(row, about)) + b"\n" for row in rows)
    texts = [page_of(row, about, "text") for row in rows]
    texts = [page for page in texts if page["code"] == OK or not ignores_blank]
    if kind == "txtPlain":
        return "".join(f"{page['data']}\n" for page in texts if page["code"] == OK).encode()
    return _as_csv(texts) if kind == "csv" else _as_txt(texts, job.came_at_s())


def page_of(row: Mapping[str, Any], about: Mapping[str, Any], kind: str = "dict") -> dict[str, Any]:
    """What was read of one page in Umi-OCR's words; of `kind` text, its text as `data`."""
    number = row["number"]
    called = f"{about['name']} - {number}"
    named = {"page": number, "path": called, "fileName": called}
    if "error" in row:
        return {"code": ENGINE_FAILED, "data": row["error"], "score": 0, **named}
    asked = dict(about["asked"])
    first = from_front(asked.get("tbpu.ignoreRangeStart", 1), about["count"])
    if not first <= number <= from_front(asked.get("tbpu.ignoreRangeEnd", -1), about["count"]):
        asked.pop("tbpu.ignoreArea", None)
    answer = to_answer(unpack_page(row["page"]), {**asked, "data.format": kind}, row["took_s"])
    return {**answer, "timestamp": row["at_s"], **named}


def from_front(number: int, count: int) -> int:
    """A page's number that counts from the end, if it is negative, within the document."""
    return min(max(number if number >= 0 else count + 1 + number, 0), count + 1)


def _zipped(files: Mapping[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return whole.getvalue()


def _layered_pdf(job: Job, pages: Sequence[Page], making: Making) -> bytes:
    """The document with its text over it; where anything was to be masked, pictures of its pages in place of them.

    Black over a page of the document itself would leave beneath it what is masked.
    """
    if job.about()["options"].get("mask"):
        return _pictures_pdf(pages, making)
    try:
        return add_text_layer(job.data(), pages, max(0.0, making.deadline - time.monotonic()))
    except BrokenImage as error:
        raise Coded(NOT_MADE, f"输出失败：{error}") from error


def _pictures_pdf(pages: Sequence[Page], making: Making) -> bytes:
    whole = io.BytesIO()
    made = ImagePdf(whole)
    for page in pages:
        picture = page_image(making.picture_of(page), _OWN_PICTURES)
        made.add_page(replace(picture, dpi=(making.dpi, making.dpi)), text_of(page))
    made.finish()
    return whole.getvalue()


def _as_txt(pages: Sequence[Mapping[str, Any]], came_at_s: float) -> bytes:
    came = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(came_at_s))
    texts = [
        f"≦ {page['fileName']} ≧\n{_text_or_error(page)}{chr(10) if page['code'] == OK else ''}\n" for page in pages
    ]
    return "".join([f"{came}\n\n", *texts]).encode()


def _as_csv(pages: Sequence[Mapping[str, Any]]) -> bytes:
    whole = io.StringIO(newline="")
    rows = csv.writer(whole)
    rows.writerow(["Name", "OCR", "Path"])
    rows.writerows([page["fileName"], _text_or_error(page), page["path"]] for page in pages)
    return whole.getvalue().encode()


def _text_or_error(page: Mapping[str, Any]) -> str:
    """The text of a page, or why it has none."""
    if page["code"] == ENGINE_FAILED:
        return f"[Error] OCR failed. Code: {page['code']}, Msg: {page['data']}\n"
    return str(page["data"])
