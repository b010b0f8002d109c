"""Job results: pages as records and JSON, and output files, each made once and kept in the store.

Files are written page by page, with one page in memory. The requested formats and the adapter's answer are made after
the last page was read; other formats at their first request.
"""

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
"""Used in place of a format: the answer of the adapter that accepted the job."""

# Time limit for making a result file that no client waits for.
_MAX_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class JobPages:
    """The pages of a job that could be read; every iteration loads them from disk, one at a time."""

    job: Job

    def __iter__(self) -> Iterator[Page]:
        return (unpack_page(row["page"]) for row in self.job.pages() if "page" in row)


def document_result(job: Job) -> DocumentResult:
    """A finished job's result for the writers of `formats`."""
    numbers, failed = job.record().numbers, job.failed_pages()
    count, missing = job.page_count() - len(failed), [numbers[place] for place in failed]
    return DocumentResult(job.data(), JobPages(job), count, engine_of(job), missing)


def engine_of(job: Job) -> EngineInfo:
    """The engine that read the job, with empty names if no page was read yet."""
    is_known = (job.folder / ENGINE).exists()
    return EngineInfo(**job.get(ENGINE)) if is_known else EngineInfo("", "", "", "", "", "")


def page_dicts(job: Job, after: int = 0, most: int | None = None) -> Iterator[dict[str, object]]:
    """A job's pages after the first `after`, at most `most`: each in the native API's JSON, or its error."""
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
    """Raises BadOption for an unknown format, or one that is impossible with these options."""
    if name not in RESULT_FORMATS:
        formats = ", ".join(RESULT_FORMATS)
        raise BadOption(f"There is no result format {name[:40]!r}.", f"The formats are: {formats}.")
    if name == "pdf" and options.mask:
        raise BadOption(
            "Jobs with masks have no searchable PDF, as the document's pages would show the masked text.",
            "Use another format, or POST /v1/ocr?format=pdf&mask=…, which makes the PDF from images of the pages, with "
            "the masked text in black.",
        )


def formats_made(record: Record) -> tuple[str, ...]:
    """The files that are made right after reading: the requested formats, and ANSWER, the adapter's response."""
    return (*record.formats, *([ANSWER] if _answer_writer(record) else []))


def make_result(jobs: JobStore, job: Job, name: str, check: Check, limit_s: float = _MAX_S) -> Path:
    """The file of a format or of ANSWER, made now unless it exists. Calls `check` while writing; raises as `check`."""
    return job.result_path(name) or jobs.make_file(job, name, partial(_write, job, name, limit_s, check))


def unpack_options(packed: Mapping[str, Any]) -> ReadOptions:
    """The options in a job's record. Raises CallerError for options that only another version of ocrsvc knows."""
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
