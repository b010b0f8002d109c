"""Makes files of a document's pages: text, CSV, JSON lines, and PDFs with text."""

from __future__ import annotations

import codecs
import csv
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import IO, Any, Final, TypeVar

import orjson

from ocrsvc.adapters.context import Coded
from ocrsvc.adapters.umi_ocr.answers import ENGINE_FAILED, OK, DocumentOptions, to_answer
from ocrsvc.adapters.umi_ocr.text_pdf import write_text_pdf
from ocrsvc.errors import BrokenImage
from ocrsvc.formats.document import PictureOf, write_document
from ocrsvc.formats.page_serialization import unpack_page
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_result import JobPages, document_result
from ocrsvc.results import Check

NOT_DONE, BAD_TYPES, UNKNOWN_TYPE, NOT_MADE = 201, 202, 203, 204

ENDINGS: Final[Mapping[str, str]] = {
    "pdfLayered": ".layered.pdf",
    "pdfOneLayer": ".text.pdf",
    "txt": ".txt",
    "txtPlain": ".p.txt",
    "jsonl": ".jsonl",
    "csv": ".csv",
}
"""The files that can be downloaded, and their suffixes."""

_LAYERED, _ONE_LAYER = _PDFS = ("pdfLayered", "pdfOneLayer")
_WITH_BLANK: Final = ("txt", "csv")
_FORMULA_BEGINS: Final = (*"=+-@\t\r\n", *"＝＋－＠")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Making:
    """How files are made: `picture_of` draws a page with what is masked in black; None where nothing is."""

    dpi: int
    limit_s: float
    check: Check
    picture_of: PictureOf | None


@dataclass(frozen=True, slots=True)
class AskedFiles:
    """The requested files, of ENDINGS, which may leave out blank pages, and the name of the file or the archive."""

    kinds: tuple[str, ...]
    ignores_blank: bool
    stem: str
    name: str

    @property
    def has_pdf(self) -> bool:
        """Whether there is a PDF."""
        return any(kind in _PDFS for kind in self.kinds)

    @property
    def is_named_fully(self) -> bool:
        """Whether an existing file with this name must be the same."""
        return len(self.kinds) == 1 and self.kinds[0] not in _WITH_BLANK


def asked_files(job: Job, sent: Mapping[str, Any]) -> AskedFiles:
    """The requested files. Raises Coded for a task that is not done, and for unknown files."""
    kinds = sent.get("file_types", [_LAYERED])
    ignores_blank = sent.get("ignore_blank", sent.get("ingore_blank", True))
    if job.progress().state != "success":
        raise Coded(NOT_DONE, f"{job.id} 任务尚未结束或处理失败，无法获取文件")
    if not isinstance(kinds, list) or not kinds or not isinstance(ignores_blank, bool):
        raise Coded(BAD_TYPES, "参数类型错误： file_types 必须为数组， ignore_blank 必须为布尔值")
    if unknown := [str(kind)[:40] for kind in kinds if not isinstance(kind, str) or kind not in ENDINGS]:
        raise Coded(UNKNOWN_TYPE, f"初始化输出器失败。{unknown[0]}: {', '.join(ENDINGS)}")
    chosen, stem = tuple(dict.fromkeys(kinds)), f"[OCR]_{PurePath(job.record().name).stem}"
    return AskedFiles(chosen, ignores_blank, stem, stem + (ENDINGS[chosen[0]] if len(chosen) == 1 else ".zip"))


def write_files(job: Job, asked: AskedFiles, making: Making, output: IO[bytes]) -> None:
    """Write the file, or an archive of several; memory holds one page. Raises Coded, and as `write_document`."""
    if len(asked.kinds) == 1:
        _write_file(asked.kinds[0], job, making, output, ignores_blank=asked.ignores_blank)
        return
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        for kind in asked.kinds:
            with packed.open(f"{asked.stem}{ENDINGS[kind]}", "w", force_zip64=True) as member:
                _write_file(kind, job, making, member, ignores_blank=asked.ignores_blank)


def _write_file(kind: str, job: Job, making: Making, output: IO[bytes], *, ignores_blank: bool) -> None:
    if kind == _LAYERED:
        _write_layered(job, making, output)
    elif kind == _ONE_LAYER:
        count = job.page_count() - len(job.failed_pages())
        write_text_pdf(_checked(JobPages(job), making.check), count, making.dpi, output)
    elif kind == "jsonl":
        for page in pages_of(job, making.check):
            output.write(orjson.dumps(page) + b"\n")
    else:
        texts = (page for page in pages_of(job, making.check, "text") if page["code"] == OK or not ignores_blank)
        _TEXT_WRITERS[kind](job, texts, output)


def pages_of(
    job: Job, check: Check, kind: str = "dict", after: int = 0, most: int | None = None
) -> Iterator[dict[str, Any]]:
    """The pages of a task as Umi-OCR has them, without the first `after`; `kind` is dict or text."""
    record = job.record()
    asked = DocumentOptions.model_validate(record.asked).model_copy(update={"form": kind})
    return (_page_of(row, record, asked) for row in _checked(job.pages(after, most), check))


def _checked(pages: Iterable[T], check: Check) -> Iterator[T]:
    for page in pages:
        check()
        yield page


def _page_of(row: Mapping[str, Any], record: Record, asked: DocumentOptions) -> dict[str, Any]:
    number = row["number"]
    called = f"{record.name} - {number}"
    named = {"page": number, "path": called, "fileName": called}
    if "error" in row:
        return {"code": ENGINE_FAILED, "data": row["error"], "score": 0, **named}
    first, last = (from_front(edge, record.count) for edge in (asked.ignored_first, asked.ignored_last))
    options = asked if first <= number <= last else asked.model_copy(update={"ignored": ()})
    return {**to_answer(unpack_page(row["page"]), options, row["took_s"]), "timestamp": row["at_s"], **named}


def from_front(number: int, count: int) -> int:
    """A page's number within the document; a negative one counts from the end."""
    return min(max(number if number >= 0 else count + 1 + number, 0), count + 1)


def _write_layered(job: Job, making: Making, output: IO[bytes]) -> None:
    """The document with its text over it; with masking, pictures of its pages.

    Black over a page of the document itself would leave the masked text beneath it.
    """
    result = replace(document_result(job), picture_of=making.picture_of, dpi=making.dpi)
    try:
        write_document("pdf", result, output, making.limit_s, making.check)
    except BrokenImage as error:
        raise Coded(NOT_MADE, f"输出失败：{error}") from error


def _write_txt(job: Job, pages: Iterable[Mapping[str, Any]], output: IO[bytes]) -> None:
    came = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.record().came_at_s))
    output.write(f"{came}\n\n".encode())
    for page in pages:
        end = "\n" if page["code"] == OK else ""
        output.write(f"≦ {page['fileName']} ≧\n{_text_or_error(page)}{end}\n".encode())


def _write_plain_txt(_job: Job, pages: Iterable[Mapping[str, Any]], output: IO[bytes]) -> None:
    for page in pages:
        if page["code"] == OK:
            output.write(f"{page['data']}\n".encode())


def _write_csv(_job: Job, pages: Iterable[Mapping[str, Any]], output: IO[bytes]) -> None:
    rows = csv.writer(codecs.getwriter("utf-8")(output), quoting=csv.QUOTE_ALL)
    rows.writerow(["Name", "OCR", "Path"])
    for page in pages:
        rows.writerow(map(_as_cell, (page["fileName"], _text_or_error(page), page["path"])))


def _as_cell(text: str) -> str:
    """A cell's text, which no spreadsheet computes as a formula (OWASP, CSV injection).

    An apostrophe stands before the characters that begin a formula, those of full width, which East Asian versions
    take as well, and white space that is skipped.
    """
    return f"'{text}" if text.startswith(_FORMULA_BEGINS) else text


_TEXT_WRITERS: Final[Mapping[str, Callable[[Job, Iterable[Mapping[str, Any]], IO[bytes]], None]]] = {
    "txt": _write_txt,
    "txtPlain": _write_plain_txt,
    "csv": _write_csv,
}


def _text_or_error(page: Mapping[str, Any]) -> str:
    if page["code"] == ENGINE_FAILED:
        return f"[Error] OCR failed. Code: {page['code']}, Msg: {page['data']}\n"
    return str(page["data"])
