"""Takes in documents that are read later: what the native API and the adapters call. Read this file first.

`add_job` takes one in, and `find_job` finds it again for its owner. A job answers by its own methods (job.py: `about`,
`state`, `end`, `pages`, `log`), and `JobStore.clear` deletes it, also while it is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

import orjson

from ocrsvc.errors import BadOption, TooManyPages
from ocrsvc.imaging.page_ranges import ALL, Ranges, choose
from ocrsvc.jobs.callbacks import Callback, check_callback
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_options import pack_options
from ocrsvc.jobs.job_result import check_format
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import ReadOptions, no_check
from ocrsvc.serving.work_queue import RequestContext, make_check
from ocrsvc.settings.settings import Settings

_MOST_REPEAT_LETTERS: Final = 255


@dataclass(frozen=True, slots=True)
class JobOwner:
    """Whose a job is: `caller` is `request.caller`, with whom it shares the store.

    `key` is the identity of the API key; None where no keys are wanted. A job that was left with a key is there for
    that key only, and its pages count for it.
    """

    caller: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One document, and what is asked of it.

    Attributes:
        file: A PDF, a TIFF or another image, whole.
        options: How its pages are read; every field of them is kept.
        owner: Whose job it is.
        name: What its sender calls the file, for people; made safe by who uses it.
        pages: Which pages are read: ranges, or a function from how many there are to their numbers, in order.
        source: The adapter that took it in, `api` for the native API; an adapter shows its own jobs only.
        asked: What else the adapter wants to remember: plain JSON values, in `about["asked"]`.
        formats: Of RESULT_FORMATS: files that are made when the last page was read; others are made on demand.
        callback: Where its end is sent; None is nowhere.
        repeat: The Idempotency-Key: the same job with the same key is the first one; "" is none.
    """

    file: bytes
    options: ReadOptions
    owner: JobOwner
    name: str = ""
    pages: Ranges | Callable[[int], Sequence[int]] = ALL
    source: str = "api"
    asked: Mapping[str, object] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    callback: Callback | None = None
    repeat: str = ""


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
    check = make_check(context, time.monotonic() + limit_s, time.monotonic)
    if job_request.callback is not None:
        check_callback(job_request.callback, settings, job_request.owner.key)
    options = replace(job_request.options, mask=tuple(dict.fromkeys((*job_request.options.mask, *context.mask))))
    if context.choice is not None:
        options = context.choice.apply(options)
    for name in job_request.formats:
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
    about = {
        "source": job_request.source,
        "name": job_request.name,
        "key": job_request.owner.key,
        "count": count,
        "numbers": numbers,
        "options": pack_options(options),
        "formats": job_request.formats,
        "asked": job_request.asked,
    }
    repeat, content = _repeat(job_request), _content(job_request, about) if job_request.repeat else ""
    file, caller, callback = job_request.file, job_request.owner.caller, job_request.callback
    with jobs.adding.take(check):
        return jobs.add(file, about, caller, pages=len(numbers), repeat=repeat, content=content, callback=callback)


def find_job(jobs: JobStore, sent_id: object, owner: JobOwner, source: str | None = None) -> Job | None:
    """The job of this id, of any type, if this caller and this adapter may see it; None asks for every adapter."""
    job = jobs.find(sent_id)
    if job is None:
        return None
    with suppress(FileNotFoundError):
        about = job.about()
        is_own = owner.key is None or about.get("key") == owner.key
        return job if is_own and source in {None, about.get("source")} else None
    return None


def jobs_of(jobs: JobStore, owner: JobOwner, most: int) -> list[Job]:
    """The jobs that were left with a key, the newest first; none without a key, where ids are all that tells owners."""
    return [] if owner.key is None else jobs.all("key = ?", owner.key)[::-1][:most]


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


def _repeat(job_request: JobRequest) -> str:
    """What a job with the same Idempotency-Key of the same caller has, too; "" without one. Raises BadOption."""
    if not job_request.repeat:
        return ""
    if len(job_request.repeat) > _MOST_REPEAT_LETTERS or not job_request.repeat.isprintable():
        raise BadOption(f"The Idempotency-Key is longer than {_MOST_REPEAT_LETTERS} characters, or not printable.")
    owner = job_request.owner.key or job_request.owner.caller
    return sha256(orjson.dumps([owner, job_request.source, job_request.repeat])).hexdigest()


def _content(job_request: JobRequest, about: Mapping[str, object]) -> str:
    """What tells this job from others."""
    to = None if job_request.callback is None else job_request.callback.url
    return sha256(
        orjson.dumps([about, to], option=orjson.OPT_SORT_KEYS) + sha256(job_request.file).digest()
    ).hexdigest()
