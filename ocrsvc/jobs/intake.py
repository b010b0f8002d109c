"""Takes in documents that are read later: what the native API and the adapters call. Read this file first.

`add_job` takes one in, and `find_job` finds it again for its owner. A job answers by its own methods (job.py: `record`,
`state`, `end`, `log`), and `JobStore.clear` deletes it, also while it is read.
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
from ocrsvc.jobs.callbacks import Callback, check_callback
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_result import check_format
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import ReadOptions, no_check
from ocrsvc.serving.work_queue import RequestContext, make_check
from ocrsvc.settings.settings import Settings

_MOST_REPEAT_LETTERS: Final = 255


class JobOwner(NamedTuple):
    """Whose a job is: `caller` is `request.caller`, with whom it shares the store.

    `key` is the identity of the API key; None where no keys are wanted. A job that was left with a key is there for
    that key only, and its pages count for it.
    """

    caller: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One document: a PDF, a TIFF or another image, whole; and what is asked of it.

    The record has the Idempotency-Key itself, and lacks what is found in the document and the options. `pages` are
    ranges, or a function from how many there are to their numbers, in order.
    """

    file: bytes
    options: ReadOptions
    record: Record
    pages: Ranges | Callable[[int], Sequence[int]] = ALL
    callback: Callback | None = None


def add_job(
    jobs: JobStore, reader: Reader, settings: Settings, job_request: JobRequest, context: RequestContext, limit_s: float
) -> Job:
    """Take a document in within `limit_s`; when this returns, it will be read, whatever dies meanwhile.

    It is opened, so that what cannot be read is refused here, and none of its pages is read yet. The masks of the
    request's context are added to those of the options, its choice of a model is made now, and the pages are held
    against what its key has left.

    Raises:
        UnsupportedImage, BrokenImage, EncryptedDocument: It cannot be opened.
        BadOption, UrlRefused: As `check_format` and `check_callback`, or the pages or the Idempotency-Key are none.
        TooManyPages, UnknownModel, QuotaExceeded: More than OCRSVC_JOB_PAGES, or than the key has left.
        KeyReused, TooManyJobs, QueueFull, OSError: As `JobStore.add`; wrap the call in `storing()` for the last.
    """
    check, record = make_check(context, time.monotonic() + limit_s, time.monotonic), job_request.record
    if job_request.callback is not None:
        check_callback(job_request.callback, settings, record.key)
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
        record = replace(record, repeat=_repeat(record), content=_content(job_request, record))
    with jobs.adding.take(check):
        return jobs.add(job_request.file, record, job_request.callback)


def find_job(jobs: JobStore, sent_id: object, owner: JobOwner, source: str | None = None) -> Job | None:
    """The job of this id, of any type, if this caller and this adapter may see it; None asks for every adapter."""
    job = jobs.find(sent_id)
    with suppress(FileNotFoundError):
        record = job.record() if job is not None else None
        if record is not None and owner.key in {None, record.key} and source in {None, record.source}:
            return job
    return None


def _numbers(job_request: JobRequest, count: int, kind: str, most: int) -> list[int]:
    """The pages that are read. Raises BadOption, TooManyPages."""
    numbers = list(job_request.pages(count) if callable(job_request.pages) else choose(job_request.pages, count))
    if not numbers:
        raise BadOption(f"None of the pages asked for is there: the {kind} has {count}.")
    if len(numbers) > most:
        raise TooManyPages(
            f"{len(numbers)} pages are asked for; the limit of a job is {most} (OCRSVC_JOB_PAGES).",
            f"Ask for {most} at most at a time.",
        )
    return numbers


def _repeat(record: Record) -> str:
    """What a job with the same Idempotency-Key of the same caller has, too. Raises BadOption."""
    if len(record.repeat) > _MOST_REPEAT_LETTERS or not record.repeat.isprintable():
        raise BadOption(f"The Idempotency-Key is longer than {_MOST_REPEAT_LETTERS} characters, or not printable.")
    return sha256(orjson.dumps([record.key or record.caller, record.source, record.repeat])).hexdigest()


def _content(job_request: JobRequest, record: Record) -> str:
    """What tells this job from others."""
    to = None if job_request.callback is None else job_request.callback.url
    asked = orjson.dumps([asdict(replace(record, caller="")), to], option=orjson.OPT_SORT_KEYS)
    return sha256(asked + sha256(job_request.file).digest()).hexdigest()
