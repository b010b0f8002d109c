"""Writes a document's pages as text, CSV, JSON lines and PDFs with text."""

import codecs
import csv
import math
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import IO, Any, Final

import orjson

from ocrsvc.adapters.context import CodedError, checked
from ocrsvc.adapters.umi_ocr.answers import ENGINE_FAILED, OK, DocumentOptions, to_answer
from ocrsvc.errors import BrokenImage
from ocrsvc.formats.document import PictureOf, write_document
from ocrsvc.formats.page_serialization import unpack_page
from ocrsvc.formats.pdf.image_pdf import PdfObjects
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_result import JobPages, document_result
from ocrsvc.results import Check, Line, Page

NOT_DONE, BAD_TYPES, UNKNOWN_TYPE, NOT_MADE = 201, 202, 203, 204

ENDINGS: Final[Mapping[str, str]] = {
    "pdfLayered": ".layered.pdf",
    "pdfOneLayer": ".text.pdf",
    "txt": ".txt",
    "txtPlain": ".p.txt",
    "jsonl": ".jsonl",
    "csv": ".csv",
}
"""The file suffix of each downloadable format."""

_LAYERED, _ONE_LAYER = "pdfLayered", "pdfOneLayer"
# Beginnings of formulas: East Asian spreadsheets also accept full-width characters, and skip white space before them.
_FORMULA_BEGINS: Final = (*"=+-@\t\r\n", *"＝＋－＠")

_POINTS_PER_INCH: Final = 72
# PDF objects 1 to 3 are catalogue, page list and font; each page adds two objects: page and content stream.
_FIRST_PAGE, _OBJECTS_PER_PAGE = 4, 2
# Fraction of a line's height below the baseline.
_DESCENT: Final = 0.2
# Not embedded, so a page takes about a kilobyte: viewers use their own font for simplified Chinese (Adobe-GB1: Chinese,
# kana, Latin, Greek and Cyrillic letters) and do not display other characters.
_FONT: Final = (
    b"<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /UniGB-UTF16-H /DescendantFonts [<< /Type /Font "
    b"/Subtype /CIDFontType0 /BaseFont /STSong-Light /CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 4 "
    b">> /DW 1000 /W [1 95 500] /FontDescriptor << /Type /FontDescriptor /FontName /STSong-Light /Flags 6 /FontBBox "
    b"[-25 -254 1000 880] /ItalicAngle 0 /Ascent 880 /Descent -120 /CapHeight 880 /StemV 93 >> >>] >>"
)


@dataclass(frozen=True, slots=True)
class WriteContext:
    """Settings of the writers; `picture_of` renders a page with masked parts in black, None without masking."""

    dpi: int
    limit_s: float
    check: Check
    picture_of: PictureOf | None


@dataclass(frozen=True, slots=True)
class FileRequest:
    """The requested formats, whether to omit blank pages, and the name of the file or archive."""

    kinds: tuple[str, ...]
    ignores_blank: bool
    stem: str
    name: str

    @property
    def has_pdf(self) -> bool:
        """Whether a PDF is requested."""
        return not {_LAYERED, _ONE_LAYER}.isdisjoint(self.kinds)

    @property
    def is_named_fully(self) -> bool:
        """Whether the name fully determines the file's content, so that any request can reuse an existing file."""
        return len(self.kinds) == 1 and self.kinds[0] not in {"txt", "csv"}


def parse_file_request(job: Job, members: Mapping[str, Any]) -> FileRequest:
    """The requested files. Raises CodedError for an unfinished job and for unknown formats."""
    kinds = members.get("file_types", [_LAYERED])
    # Umi-OCR's misspelling `ingore_blank` is also accepted.
    ignores_blank = members.get("ignore_blank", members.get("ingore_blank", True))
    if job.progress().state != "success":
        raise CodedError(NOT_DONE, f"{job.id} 任务尚未结束或处理失败，无法获取文件")
    if not isinstance(kinds, list) or not kinds or not isinstance(ignores_blank, bool):
        raise CodedError(BAD_TYPES, "参数类型错误： file_types 必须为数组， ignore_blank 必须为布尔值")
    if unknown := [str(kind)[:40] for kind in kinds if not isinstance(kind, str) or kind not in ENDINGS]:
        raise CodedError(UNKNOWN_TYPE, f"初始化输出器失败。{unknown[0]}: {', '.join(ENDINGS)}")
    chosen, stem = tuple(dict.fromkeys(kinds)), f"[OCR]_{PurePath(job.record().name).stem}"
    return FileRequest(chosen, ignores_blank, stem, stem + (ENDINGS[chosen[0]] if len(chosen) == 1 else ".zip"))


def write_files(job: Job, files: FileRequest, context: WriteContext, output: IO[bytes]) -> None:
    """Write the file or an archive of several, one page at a time. Raises CodedError, and as `write_document`."""
    if len(files.kinds) == 1:
        _write_file(files.kinds[0], job, context, output, ignores_blank=files.ignores_blank)
        return
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        for kind in files.kinds:
            with packed.open(f"{files.stem}{ENDINGS[kind]}", "w", force_zip64=True) as member:
                _write_file(kind, job, context, member, ignores_blank=files.ignores_blank)


def _write_file(kind: str, job: Job, context: WriteContext, output: IO[bytes], *, ignores_blank: bool) -> None:
    if kind == _LAYERED:
        # Masked pages become pictures: black boxes over the original pages would leave the masked text beneath.
        result = replace(document_result(job), picture_of=context.picture_of, dpi=context.dpi)
        try:
            write_document("pdf", result, output, context.limit_s, context.check)
        except BrokenImage as error:
            raise CodedError(NOT_MADE, f"输出失败：{error}") from error
    elif kind == _ONE_LAYER:
        count = job.page_count() - len(job.failed_pages())
        write_text_pdf(checked(JobPages(job), context.check), count, context.dpi, output)
    elif kind == "jsonl":
        for page in pages_of(job, context.check):
            output.write(orjson.dumps(page) + b"\n")
    else:
        texts = (page for page in pages_of(job, context.check, "text") if page["code"] == OK or not ignores_blank)
        _write_texts(kind, job.record().came_at_s, texts, output)


def pages_of(
    job: Job, check: Check, kind: str = "dict", after: int = 0, most: int | None = None
) -> Iterator[dict[str, Any]]:
    """A job's pages in Umi-OCR's format, without the first `after`; `kind` is Umi-OCR's page form, dict or text."""
    record = job.record()
    options = DocumentOptions.model_validate(record.asked).model_copy(update={"form": kind})
    return (_page_of(row, record, options) for row in checked(job.pages(after, most), check))


def _page_of(row: Mapping[str, Any], record: Record, options: DocumentOptions) -> dict[str, Any]:
    number = row["number"]
    title = f"{record.name} - {number}"
    names = {"page": number, "path": title, "fileName": title}
    if "error" in row:
        return {"code": ENGINE_FAILED, "data": row["error"], "score": 0, **names}
    first, last = (from_front(edge, record.count) for edge in (options.ignored_first, options.ignored_last))
    if not first <= number <= last:
        options = options.model_copy(update={"ignored": ()})
    return {**to_answer(unpack_page(row["page"]), options, row["took_s"]), "timestamp": row["at_s"], **names}


def from_front(number: int, count: int) -> int:
    """Convert a page number, which counts from the end if it is negative, to one that counts from the front."""
    return min(max(number if number >= 0 else count + 1 + number, 0), count + 1)


def _write_texts(kind: str, came_at_s: float, pages: Iterable[Mapping[str, Any]], output: IO[bytes]) -> None:
    """Write the pages' texts in Umi-OCR's format txt, txtPlain or csv."""
    if kind == "txtPlain":
        output.writelines(f"{page['data']}\n".encode() for page in pages if page["code"] == OK)
    elif kind == "txt":
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(came_at_s))
        output.write(f"{created}\n\n".encode())
        for page in pages:
            end = "\n" if page["code"] == OK else ""
            output.write(f"≦ {page['fileName']} ≧\n{_text_or_error(page)}{end}\n".encode())
    else:
        rows = csv.writer(codecs.getwriter("utf-8")(output), quoting=csv.QUOTE_ALL)
        rows.writerow(["Name", "OCR", "Path"])
        for page in pages:
            cells = page["fileName"], _text_or_error(page), page["path"]
            # A quote before a formula prevents CSV injection (OWASP).
            rows.writerow([f"'{cell}" if cell.startswith(_FORMULA_BEGINS) else cell for cell in cells])


def _text_or_error(page: Mapping[str, Any]) -> str:
    if page["code"] == ENGINE_FAILED:
        return f"[Error] OCR failed. Code: {page['code']}, Msg: {page['data']}\n"
    return str(page["data"])


def write_text_pdf(pages: Iterable[Page], count: int, dpi: int, output: IO[bytes]) -> None:
    """Write a PDF with only the text of `count` pages, page by page; the lines' boxes are in pixels at `dpi`."""
    pdf = PdfObjects(output)
    kids = b" ".join(b"%d 0 R" % (_FIRST_PAGE + _OBJECTS_PER_PAGE * at) for at in range(count))
    pdf.add(1, [b"<< /Type /Catalog /Pages 2 0 R >>"])
    pdf.add(2, [b"<< /Type /Pages /Count %d /Kids [%b] >>" % (count, kids)])
    pdf.add(3, [_FONT])
    for at, page in enumerate(pages):
        number, scale = _FIRST_PAGE + _OBJECTS_PER_PAGE * at, _POINTS_PER_INCH / dpi
        frame = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %.2f %.2f] " % (page.width * scale, page.height * scale)
        pdf.add(number, [frame, b"/Resources << /Font << /F 3 0 R >> >> /Contents %d 0 R >>" % (number + 1)])
        drawn = zlib.compress(b"\n".join(_drawn(line, page.height, scale) for line in page.lines if line.text))
        pdf.add_stream(number + 1, b"/Filter /FlateDecode", [drawn])
    pdf.end()


def _drawn(line: Line, height: int, scale: float) -> bytes:
    """PDF operators that draw a line as wide as the lower side of its box and as high as the left side."""
    top, _, end, start = [(x * scale, (height - y) * scale) for x, y in line.box]
    size = max(1.0, math.dist(top, start))
    wide = sum(0.5 if character.isascii() else 1.0 for character in line.text) * size
    stretch = max(1.0, 100 * math.dist(start, end) / wide)
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = start[0] - sin * size * _DESCENT, start[1] + cos * size * _DESCENT
    shown = line.text.encode("utf-16-be", "replace").hex().upper().encode()
    return b"BT /F %.2f Tf %.2f Tz %.5f %.5f %.5f %.5f %.2f %.2f Tm <%b> Tj ET" % (
        *(size, stretch, cos, sin, -sin, cos, x, y),
        shown,
    )
