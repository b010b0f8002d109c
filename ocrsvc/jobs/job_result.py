"""What was read of a job: its pages as records and as JSON, and files made of them, once each, in the store.

A file is made where the job lies, page by page, so that memory holds one page of however many there are. The formats
and the answer that a job was left for are made when its last page was read, with no client waiting; others when they
are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

import orjson

from ocrsvc.errors import BadOption
from ocrsvc.formats.document import DocumentResult, Output, page_without_words, write_document
from ocrsvc.formats.file_names import disposition_of, stem_of
from ocrsvc.formats.json_values import page_to_dict
from ocrsvc.formats.page_serialization import unpack_page
from ocrsvc.jobs.job import ENGINE, Job
from ocrsvc.jobs.job_options import unpack_options
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Check, Page, ReadOptions
from ocrsvc.registry import adapters, output_formats, resolve

JSON: Final = "json"
NDJSON: Final = "ndjson"
RESULT_FORMATS: Final = (JSON, NDJSON, *output_formats())
"""What the result of a job can be had as."""

NO_ENGINE: Final = EngineInfo("", "", "", "", "", "")
"""Of a job of which no page was read."""

_MEDIA_TYPES: Final = {JSON: "application/json", NDJSON: "application/x-ndjson"}
_WRITTEN_BYTES: Final = 1 << 18
ANSWER: Final = "answer"
"""The name of the file that `make_answer` makes."""

MOST_S: Final = 3600.0
"""For a file that nobody waits for."""


@dataclass(frozen=True, slots=True)
class JobPages:
    """The pages of a job that were read, as often as they are gone through, one at a time in memory."""

    job: Job

    def __iter__(self) -> Iterator[Page]:
        return (unpack_page(row["page"]) for row in self.job.pages() if "page" in row)


def document_result(job: Job) -> DocumentResult:
    """What the writers of `formats` take; for a job that is done. Raises FileNotFoundError once it is gone."""
    numbers, failed = job.about()["numbers"], job.log.failed()
    count = job.log.count() - len(failed)
    missing = [numbers[place] for place in failed]
    return DocumentResult(job.data(), JobPages(job), count, engine_of(job), missing)


def engine_of(job: Job) -> EngineInfo:
    """Which engine read it; NO_ENGINE where no page was read yet."""
    try:
        return EngineInfo(**job.get(ENGINE))
    except FileNotFoundError:
        return NO_ENGINE


def page_dicts(job: Job, after: int = 0, most: int | None = None) -> Iterator[dict[str, object]]:
    """The pages of a job as the native API shows them, or why they could not be read, without the first `after`."""
    about = job.about()
    options, asked = unpack_options(about["options"]), about["asked"]
    words, lines = asked.get("words", options.wants_words), asked.get("lines", True)
    for row in job.log.read(after, most):
        if "error" in row:
            yield {"page": row["number"], "error": {"code": row["code"], "detail": row["error"]}}
            continue
        page = unpack_page(row["page"])
        yield page_to_dict(page if words else page_without_words(page), row["number"], options, lines=lines)


def check_format(name: str, options: ReadOptions) -> None:
    """Raises BadOption for a format that there is not, or not of such a job."""
    if name not in RESULT_FORMATS:
        raise BadOption(
            f"There is no format {name[:40]!r} of a result.", f"The formats are: {', '.join(RESULT_FORMATS)}."
        )
    if name == "pdf" and options.mask:
        raise BadOption(
            "No searchable PDF is made of a job with masks: what is masked would be seen on the document's pages.",
            "Ask for another format, or for the PDF at once: POST /v1/ocr?format=pdf&mask=… makes it of pictures of "
            "the pages, with what is masked in black.",
        )


def media_type_of(name: str) -> str:
    """The Content-Type of a format."""
    return _MEDIA_TYPES.get(name) or output_formats()[name].media_type


def file_name_of(name: str) -> str:
    """Under which the file of a format lies among those that were made."""
    return f"result{_suffix_of(name)}"


def disposition_of_result(job: Job, name: str) -> str:
    """The header Content-Disposition of a format's file, which is named as the document. Raises FileNotFoundError."""
    return disposition_of(f"{stem_of(job.about()['name'])}{_suffix_of(name)}")


def _suffix_of(name: str) -> str:
    return output_formats()[name].suffix if name in output_formats() else f".{name}"


def find_result(job: Job, name: str) -> Path | None:
    """The file of a format where it was made before. Raises BadOption, FileNotFoundError, as `make_result`."""
    check_format(name, unpack_options(job.about()["options"]))
    return job.result_path(file_name_of(name))


def make_result(jobs: JobStore, job: Job, name: str, check: Check, limit_s: float = MOST_S) -> Path:
    """The file of a format, made now unless it was before; for a job that is done, or about to be.

    `check` is asked now and then, and ends it with what it raises; after `limit_s` it is not worth having. Raises as
    `check_format`, `write_document` and `make_file`.
    """
    return find_result(job, name) or make_file(
        jobs, job, file_name_of(name), lambda output: _write(job, name, output, limit_s, check)
    )


def has_answer(job: Job) -> bool:
    """Whether the adapter that took it in answers with a file. Raises FileNotFoundError."""
    return bool(_answer_writer(job))


def find_answer(job: Job) -> Path | None:
    """The file that `make_answer` made, where it was made before."""
    return job.result_path(ANSWER)


def make_answer(jobs: JobStore, job: Job, check: Check) -> Path:
    """The file with which the job's adapter answers, made now unless it was before. Raises as its `job_answer`, too."""
    return find_answer(job) or make_file(
        jobs, job, ANSWER, lambda output: resolve(_answer_writer(job))(job, output, check)
    )


def _answer_writer(job: Job) -> str:
    entry = adapters().get(job.about().get("source", ""))
    return entry.job_answer if entry is not None else ""


def make_file(jobs: JobStore, job: Job, name: str, write: Callable[[IO[bytes]], object]) -> Path:
    """Make a file of a job's result, in place of one that has its name, as soon as it is whole.

    Raises what `write` raises, QueueFull and OSError where there is no room, and FileNotFoundError for a deleted job.
    """
    # What processes left here that ended meanwhile may be as large as the document.
    for left in job.unfinished_files():
        if not Path("/proc", left.name[1:].partition("-")[0]).exists():
            left.unlink(missing_ok=True)
    with job.unfinished_file() as made:
        with made.open("wb", buffering=_WRITTEN_BYTES) as output:
            write(output)
        return jobs.keep_result_file(job, made, name)


def _write(job: Job, name: str, output: Output, limit_s: float, check: Check) -> None:
    if name not in _MEDIA_TYPES:
        write_document(name, document_result(job), output, limit_s, check)
        return
    head = {"id": job.id, "engine": asdict(engine_of(job)), "pages_total": job.about()["count"]}
    if name == JSON:
        output.write(orjson.dumps(head)[:-1] + b',"pages":[')
    for place, page in enumerate(page_dicts(job)):
        check()
        output.write(orjson.dumps(page) + b"\n" if name == NDJSON else b"," * bool(place) + orjson.dumps(page))
    if name == JSON:
        output.write(b"]}")
