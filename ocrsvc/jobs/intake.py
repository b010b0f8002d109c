"""Job intake: the functions that the native API and the adapters call. Read this file first.

`add_job` accepts a document, and `find_job` returns its job to the owner. `Job` (job.py) has `record`, `progress` and
`pages`, and `JobStore.clear` deletes it, even while it is read.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Final, NamedTuple

import orjson

from ocrsvc.errors import BadOption, TooManyPages
from ocrsvc.imaging.page_ranges import ALL, Ranges, choose, no_such_pages
from ocrsvc.jobs.callbacks import check_callback
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_result import check_format
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import ReadOptions, no_check
from ocrsvc.serving.work_queue import RequestContext, make_check
from ocrsvc.settings.settings import Settings

_MAX_KEY_CHARS: Final = 255


class JobOwner(NamedTuple):
    """A job's owner: the caller whose share of the store it uses, and the identity of the key that may access it."""

    caller: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A file, its options and an incomplete record: `add_job` adds the options to it, and hashes its Idempotency-Key.

    `pages` may be a function of the page count. `secret` signs the callback; if it is "", the API key's secret does.
    """

    file: bytes
    options: ReadOptions
    record: Record
    pages: Ranges | Callable[[int], Sequence[int]] = ALL
    secret: str = ""


def add_job(
    jobs: JobStore, reader: Reader, settings: Settings, job_request: JobRequest, context: RequestContext, limit_s: float
) -> Job:
    """Accept a document within `limit_s`; when this returns, the job survives crashes and will be read.

    The document is opened, so that unreadable ones are refused here. The masks and the model choice in `context`
    apply in addition to the options in `job_request`, and the pages are checked against the key's quota.
    """
    check, record = make_check(context, time.monotonic() + limit_s, time.monotonic), job_request.record
    if record.callback:
        check_callback(record.callback, job_request.secret, settings, record.key)
    options = replace(job_request.options, mask=tuple(dict.fromkeys((*job_request.options.mask, *context.mask))))
    if context.choice is not None:
        options = context.choice.apply(options)
    for name in record.formats:
        check_format(name, options)
    reader.check_model(options)
    with reader.open_document(job_request.file, limit_s, context) as document:
        count, kind = document.count, document.kind
        if kind == "image":
            # Check an image's header, without decoding the image.
            document.open(1, gray=False, check=no_check, take=bool)
    numbers = _numbers(job_request, count, kind, settings.job_pages)
    # Pages are counted when they are read; this only refuses the job if the quota has too few pages left.
    context.pages.expect(len(numbers))
    record = replace(record, count=count, numbers=numbers, options=asdict(options))
    if record.repeat:
        described = orjson.dumps(replace(record, caller=""), option=orjson.OPT_SORT_KEYS)
        content = sha256(described + sha256(job_request.file).digest()).hexdigest()
        record = replace(record, repeat=_repeat(record), content=content)
    with jobs.adding.take(check):
        return jobs.add(job_request.file, record, job_request.secret)


def find_job(jobs: JobStore, sent_id: object, owner: JobOwner, source: str) -> Job | None:
    """The job with an id from a client (any value), if it has this owner and adapter; else None."""
    job = jobs.find(sent_id)
    with suppress(FileNotFoundError):
        record = job.record() if job is not None else None
        return job if record and owner.key in {None, record.key} and source == record.source else None
    return None


def _numbers(job_request: JobRequest, count: int, kind: str, limit: int) -> list[int]:
    """The numbers of the pages to read. Raises BadOption, TooManyPages."""
    numbers = list(job_request.pages(count) if callable(job_request.pages) else choose(job_request.pages, count))
    if not numbers:
        raise no_such_pages(kind, count)
    if len(numbers) > limit:
        text = f"{len(numbers)} pages are requested; the limit of a job is {limit} (OCRSVC_JOB_PAGES)."
        raise TooManyPages(text, f"Request at most {limit} pages per job.")
    return numbers


def _repeat(record: Record) -> str:
    """A hash of Idempotency-Key, owner and adapter, by which a repeated request is found. Raises BadOption."""
    if len(record.repeat) > _MAX_KEY_CHARS or not record.repeat.isprintable():
        raise BadOption(f"The Idempotency-Key is longer than {_MAX_KEY_CHARS} characters, or not printable.")
    return sha256(orjson.dumps([record.key or record.caller, record.source, record.repeat])).hexdigest()
