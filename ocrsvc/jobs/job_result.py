"""What was read of a job: its pages as records and as JSON, and files made of them, once each, in the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

import orjson

from ocrsvc.document_output.document_formats import DOCUMENT_FORMATS, Output, write_document
from ocrsvc.document_output.file_names import disposition_of, stem_of
from ocrsvc.document_output.requested_files import page_without_words
from ocrsvc.document_output.result import DocumentResult
from ocrsvc.errors import BadOption
from ocrsvc.formats.json_values import page_to_dict
from ocrsvc.formats.page_serialization import unpack_page
from ocrsvc.jobs.job import ENGINE, Job
from ocrsvc.jobs.packed_options import unpack_options
from ocrsvc.jobs.store import JobStore
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Check, Page, ReadOptions

JSON: Final = "json"
NDJSON: Final = "ndjson"
RESULT_FORMATS: Final = (JSON, NDJSON, *DOCUMENT_FORMATS)
"""What the result of a job can be had as."""

NO_ENGINE: Final = EngineInfo("", "", "", "", "", "")
"""Of a job of which no page was read."""

_MEDIA_TYPES: Final = {JSON: "application/json", NDJSON: "application/x-ndjson"}
_WRITTEN_BYTES: Final = 1 << 18

MOST_S: Final = 3600.0
"""For a file that nobody waits for."""


@dataclass(frozen=True, slots=True)
class JobPages:
    """The pages of a job that were read, as often as they are gone through, one at a time in memory."""

    job: Job

    def __iter__(self) -> Iterator[Page]:
        return (unpack_page(row["page"]) for row in self.job.pages() if "page" in row)


def document_result(job: Job) -> DocumentResult:
    """What the writers of `document_output` take; for a job that is done. Raises FileNotFoundError once it is gone."""
    numbers, failed = job.about()["numbers"], job.log.failed()
    count = job.count_pages() - len(failed)
    missing = [numbers[place] for place in failed]
    return DocumentResult(job.data(), JobPages(job), count, engine_of(job), missing)


def engine_of(job: Job) -> EngineInfo:
    """Which engine read it; NO_ENGINE where no page was read yet."""
    try:
        return EngineInfo(**job.get(ENGINE))
    except FileNotFoundError:
        return NO_ENGINE


def page_dict(row: Mapping[str, Any], options: ReadOptions, *, lines: bool, words: bool) -> dict[str, object]:
    """A page of the log as the native API shows it, with or without these, or why it could not be read."""
    if "error" in row:
        return {"page": row["number"], "error": {"code": row["code"], "detail": row["error"]}}
    page = unpack_page(row["page"])
    return page_to_dict(page if words else page_without_words(page), row["number"], options, lines=lines)


def page_dicts(job: Job, after: int = 0, most: int | None = None) -> Iterator[dict[str, object]]:
    """The pages of a job as `page_dict`, one at a time, from the one on that has `after` before it."""
    about = job.about()
    options, asked = unpack_options(about["options"]), about["asked"]
    words = asked.get("words", options.wants_words)
    for row in job.log.read(after, most):
        yield page_dict(row, options, lines=asked.get("lines", True), words=words)


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
    return _MEDIA_TYPES.get(name) or DOCUMENT_FORMATS[name].media_type


def file_name_of(name: str) -> str:
    """Under which the file of a format lies among those that were made."""
    return f"result{_suffix_of(name)}"


def disposition_of_result(job: Job, name: str) -> str:
    """The header Content-Disposition of a format's file, which is named as the document. Raises FileNotFoundError."""
    return disposition_of(f"{stem_of(job.about()['name'])}{_suffix_of(name)}")


def _suffix_of(name: str) -> str:
    return DOCUMENT_FORMATS[name].suffix if name in DOCUMENT_FORMATS else f".{name}"


def find_result(job: Job, name: str) -> Path | None:
    """The file of a format where it was made before. Raises BadOption, FileNotFoundError, as `make_result`."""
    check_format(name, unpack_options(job.about()["options"]))
    return job.result_path(file_name_of(name))


def make_result(jobs: JobStore, job: Job, name: str, check: Check, limit_s: float = MOST_S) -> Path:
    """The file of a format, made now unless it was before; for a job that is done, or about to be.

    Args:
        jobs: Where room is made for it.
        job: The job.
        name: Of RESULT_FORMATS.
        check: Asked now and then; what it raises ends it.
        limit_s: Seconds within which it is worth having.

    Raises:
        BadOption: As `check_format`.
        QueueFull, StorageFull: There is no room for it.
        OcrsvcError: As `write_document`.
        FileNotFoundError: The job was deleted.
    """
    found = find_result(job, name)
    if found is not None:
        return found
    _remove_left(job)
    with job.unfinished_file() as made:
        with _buffered(made) as output:
            _write(job, name, output, limit_s, check)
        return jobs.keep_result_file(job, made, file_name_of(name))


def _remove_left(job: Job) -> None:
    """Remove what processes were making here that ended meanwhile: each may be as large as the document."""
    for left in job.unfinished_files():
        if not Path("/proc", left.name[1:].partition("-")[0]).exists():
            left.unlink(missing_ok=True)


@contextmanager
def _buffered(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb", buffering=_WRITTEN_BYTES) as output:
        yield output


def _write(job: Job, name: str, output: Output, limit_s: float, check: Check) -> None:
    if name not in _MEDIA_TYPES:
        write_document(name, document_result(job), output, limit_s, check)
        return
    pages = (_checked(page, check) for page in page_dicts(job))
    if name == NDJSON:
        for page in pages:
            output.write(page + b"\n")
        return
    head = {"id": job.id, "engine": asdict(engine_of(job)), "pages_total": job.about()["count"]}
    output.write(orjson.dumps(head)[:-1] + b',"pages":[')
    for place, page in enumerate(pages):
        output.write(b"," + page if place else page)
    output.write(b"]}")


def _checked(page: dict[str, object], check: Check) -> bytes:
    check()
    return orjson.dumps(page)
