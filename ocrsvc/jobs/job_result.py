"""What was read of a job: its pages as records and as JSON, and files made of them, once each, in the store.

A file is made page by page, so that memory holds one page of however many there are. The formats and the answer that a
job was left for are made when its last page was read, with no client waiting; others when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from ocrsvc.errors import BadOption, CallerError
from ocrsvc.formats.document import DocumentResult, Output, page_without_words, write_document
from ocrsvc.formats.json_values import page_to_dict
from ocrsvc.formats.page_serialization import unpack_page
from ocrsvc.jobs.job import ENGINE, Job, Record
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.plugins import adapters, output_formats, resolve
from ocrsvc.results import Check, EngineInfo, Page, ReadOptions

JSON: Final = "json"
NDJSON: Final = "ndjson"
RESULT_FORMATS: Final = (JSON, NDJSON, *output_formats())
ANSWER: Final = "answer"
"""In place of a format: what the adapter that took the job in answers with."""

# For a file that nobody waits for.
_MAX_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class JobPages:
    """The pages of a job that were read, as often as they are gone through, one at a time in memory."""

    job: Job

    def __iter__(self) -> Iterator[Page]:
        return (unpack_page(row["page"]) for row in self.job.pages() if "page" in row)


def document_result(job: Job) -> DocumentResult:
    """What the writers of `formats` take; for a job that is done."""
    numbers, failed = job.record().numbers, job.failed_pages()
    count, missing = job.page_count() - len(failed), [numbers[place] for place in failed]
    return DocumentResult(job.data(), JobPages(job), count, engine_of(job), missing)


def engine_of(job: Job) -> EngineInfo:
    """Which engine read it; one without names where no page was read yet."""
    is_known = (job.folder / ENGINE).exists()
    return EngineInfo(**job.get(ENGINE)) if is_known else EngineInfo("", "", "", "", "", "")


def page_dicts(job: Job, after: int = 0, most: int | None = None) -> Iterator[dict[str, object]]:
    """The pages of a job as the native API shows them, or why they could not be read, without the first `after`."""
    record = job.record()
    options = unpack_options(record.options)
    words, lines = record.asked.get("words", options.wants_words), record.asked.get("lines", True)
    for row in job.pages(after, most):
        if "error" in row:
            yield {"page": row["number"], "error": {"code": row["code"], "detail": row["error"]}}
            continue
        page = unpack_page(row["page"])
        yield page_to_dict(page if words else page_without_words(page), row["number"], options, lines=lines)


def check_format(name: str, options: ReadOptions) -> None:
    """Raises BadOption for a format that there is not, or not of such a job."""
    if name not in RESULT_FORMATS:
        formats = ", ".join(RESULT_FORMATS)
        raise BadOption(f"There is no format {name[:40]!r} of a result.", f"The formats are: {formats}.")
    if name == "pdf" and options.mask:
        raise BadOption(
            "No searchable PDF is made of a job with masks: what is masked would be seen on the document's pages.",
            "Ask for another format, or for the PDF at once: POST /v1/ocr?format=pdf&mask=… makes it of pictures of "
            "the pages, with what is masked in black.",
        )


def formats_made(record: Record) -> tuple[str, ...]:
    """What is made before anybody asks: the formats that a job was left for, and ANSWER."""
    return (*record.formats, *([ANSWER] if _answer_writer(record) else []))


def make_result(jobs: JobStore, job: Job, name: str, check: Check, limit_s: float = _MAX_S) -> Path:
    """The file of a format, or ANSWER, made now unless it was before; raises what `check` does, asked now and then."""
    return job.result_path(name) or jobs.make_file(job, name, partial(_write, job, name, limit_s, check))


def unpack_options(packed: Mapping[str, Any]) -> ReadOptions:
    """The options of a record. Raises CallerError for those of another version that this one does not know."""
    if unknown := sorted(packed.keys() - {each.name for each in fields(ReadOptions)}):
        raise CallerError(f"This version of the service does not know the options {', '.join(unknown)}.")
    values: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in packed.items()}
    return ReadOptions(**values)


def _answer_writer(record: Record) -> str:
    entry = adapters().get(record.source)
    return entry.job_answer if entry is not None else ""


def _write(job: Job, name: str, limit_s: float, check: Check, output: Output) -> None:
    if name == ANSWER:
        resolve(_answer_writer(job.record()))(job, output, check)
    elif name in output_formats():
        write_document(name, document_result(job), output, limit_s, check)
    else:
        for piece in _json_pieces(job, is_lines=name == NDJSON):
            check()
            output.write(piece)


def _json_pieces(job: Job, *, is_lines: bool) -> Iterator[bytes]:
    pages = map(orjson.dumps, page_dicts(job))
    if is_lines:
        yield from (page + b"\n" for page in pages)
        return
    head = {"id": job.id, "engine": engine_of(job), "pages_total": job.record().count}
    yield orjson.dumps(head)[:-1] + b',"pages":[' + next(pages, b"")
    yield from (b"," + page for page in pages)
    yield b"]}"
