"""Takes in documents that are read later: what the native API and the adapters call. Read this file first.

`add_job` takes one in, and `find_job` finds it again for its owner. A job answers by its own methods (job.py: `record`,
`progress`, `pages`), and `JobStore.clear` deletes it, also while it is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Final, NamedTuple

import orjson

from ocrsvc.errors import BadOption, TooManyPages
from ocrsvc.imaging.page_ranges import ALL, Ranges, choose
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
    """Whose a job is: the caller that shares the store, and the identity of the API key, which alone may have it."""

    caller: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A whole file, and what is asked of it, in `record` with the Idempotency-Key itself and without the options.

    `pages` may be a function of how many there are; `secret` signs the message to the callback, "" is the API key's.
    """

    file: bytes
    options: ReadOptions
    record: Record
    pages: Ranges | Callable[[int], Sequence[int]] = ALL
    secret: str = ""


def add_job(
    jobs: JobStore, reader: Reader, settings: Settings, job_request: JobRequest, context: RequestContext, limit_s: float
) -> Job:
    """Take a document in within `limit_s`; when this returns, it will be read, whatever dies meanwhile.

    It is opened, so that what cannot be read is refused here. The masks of the request's context are added to those of
    the options, its choice of a model is made now, and the pages are held against what its key has left.
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
            # Its header alone.
            document.open(1, gray=False, check=no_check, take=bool)
    numbers = _numbers(job_request, count, kind, settings.job_pages)
    # They are counted when they are read; here a key learns at once that it has too few left.
    context.pages.expect(len(numbers))
    record = replace(record, count=count, numbers=numbers, options=asdict(options))
    if record.repeat:
        asked = orjson.dumps(replace(record, caller=""), option=orjson.OPT_SORT_KEYS)
        content = sha256(asked + sha256(job_request.file).digest()).hexdigest()
        record = replace(record, repeat=_repeat(record), content=content)
    with jobs.adding.take(check):
        return jobs.add(job_request.file, record, job_request.secret)


def find_job(jobs: JobStore, sent_id: object, owner: JobOwner, source: str) -> Job | None:
    """The job of this id, of any type, if this caller and this adapter may see it."""
    job = jobs.find(sent_id)
    with suppress(FileNotFoundError):
        record = job.record() if job is not None else None
        return job if record and owner.key in {None, record.key} and source == record.source else None
    return None


def _numbers(job_request: JobRequest, count: int, kind: str, most: int) -> list[int]:
    """The pages that are read. Raises BadOption, TooManyPages."""
    numbers = list(job_request.pages(count) if callable(job_request.pages) else choose(job_request.pages, count))
    if not numbers:
        raise BadOption(f"None of the pages asked for is there: the {kind} has {count}.")
    if len(numbers) > most:
        text = f"{len(numbers)} pages are asked for; the limit of a job is {most} (OCRSVC_JOB_PAGES)."
        raise TooManyPages(text, f"Ask for {most} at most at a time.")
    return numbers


def _repeat(record: Record) -> str:
    """What a job with the same Idempotency-Key of the same caller has, too. Raises BadOption."""
    if len(record.repeat) > _MAX_KEY_CHARS or not record.repeat.isprintable():
        raise BadOption(f"The Idempotency-Key is longer than {_MAX_KEY_CHARS} characters, or not printable.")
    return sha256(orjson.dumps([record.key or record.caller, record.source, record.repeat])).hexdigest()
