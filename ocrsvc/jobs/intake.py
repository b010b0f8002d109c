"""Takes in documents that are read while nobody waits: what the native API and the adapters call. Read this file first.

`add_job` takes one in, and `find_job` finds it again for whose it is. A task answers by its own methods (task.py:
`about`, `state`, `end`, `count_pages`, `pages`), and `Tasks.clear` deletes it, also while it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

import orjson

from ocrsvc.errors import BadOption, TooManyPages
from ocrsvc.imaging.page_ranges import ALL, Ranges, choose
from ocrsvc.jobs.callback import Callback, check_callback, first_delivery
from ocrsvc.jobs.job_result import check_format
from ocrsvc.jobs.packed_options import pack_options
from ocrsvc.jobs.store import Tasks
from ocrsvc.jobs.task import CALLBACK, Task
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import ReadOptions, no_check
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.settings.settings import Settings

_MOST_REPEAT_LETTERS: Final = 255


@dataclass(frozen=True, slots=True)
class JobOwner:
    """Whose a job is.

    Attributes:
        caller: With whom it shares the store: `request.caller`.
        key: The identity of its API key, `request.key.identity`; None where no keys are wanted. A job that was left
            with a key is there for that key only, and its pages count for it.
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
        pages: Which pages are read: ranges, or a function that returns their numbers, in order, given how many there
            are.
        source: The name of the adapter that took it in, `api` for the native API; an adapter shows its own jobs only.
        asked: What else the adapter wants to remember: plain JSON values, in `about["asked"]`.
        formats: Of DOCUMENT_FORMATS, `json` and `ndjson`: files that are made when the last page was read; others are
            made when they are asked for.
        callback: Where its end is told; None is nowhere.
        repeat: The Idempotency-Key: who sends the same job again with the same key gets the first one; "" is none.
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
    tasks: Tasks, reader: Reader, settings: Settings, job: JobRequest, context: RequestContext, limit_s: float
) -> Task:
    """Take a document in; when this returns, it will be read, whatever dies meanwhile.

    It is opened, so that what cannot be read is refused here, and none of its pages is read yet. `task.about()` has the
    members `source`, `name`, `key`, `count` (pages of the document), `numbers` (those that are read), `options`,
    `formats` and `asked`.

    Args:
        tasks: `AdapterContext.tasks`; where that is None, no documents are taken in.
        reader, settings: Those of the service.
        job: The document.
        context: `request.context`: its masks are added to those of the options, its choice of a model is made now, and
            its pages are held against what the key has left.
        limit_s: Seconds for all this: `request.left_s`.

    Returns:
        The task; for an Idempotency-Key that was sent before, the task that it was sent with.

    Raises:
        UnsupportedImage, BrokenImage, EncryptedDocument: It cannot be opened.
        BadOption: It has none of the pages that are asked for, the Idempotency-Key is none, or as `check_format`.
        TooManyPages: More of them than OCRSVC_JOB_PAGES.
        UnknownModel: No such model.
        QuotaExceeded: More pages than the key has left.
        TooManyJobs, QueueFull, StorageFull: There is no room; wrap the call in `storing()` for the last of them.
        KeyReused: The Idempotency-Key was sent with something else.
        UrlRefused: The callback leads where this service does not go; BadOption: none is told anything, or unsigned.
    """
    if job.callback is not None:
        check_callback(job.callback, settings)
    options = replace(job.options, mask=tuple(dict.fromkeys((*job.options.mask, *context.mask))))
    if context.choice is not None:
        options = context.choice.apply(options)
    for name in job.formats:
        check_format(name, options)
    reader.check_model(options)
    with reader.open_document(job.file, limit_s, context) as document:
        count, kind = document.count, document.kind
        if kind == "image":
            # Its header alone.
            document.open(1, gray=False, check=no_check, take=bool)
    numbers = _numbers(job, count, kind, settings.job_pages)
    # They are counted when they are read; here a key learns at once that it has too few left.
    context.pages.expect(len(numbers))
    about = {
        "source": job.source,
        "name": job.name,
        "key": job.owner.key,
        "count": count,
        "numbers": numbers,
        "options": pack_options(options),
        "formats": job.formats,
        "asked": job.asked,
    }
    repeat, content = _repeat(job), _content(job, about) if job.repeat else ""
    more = {} if job.callback is None else {CALLBACK: first_delivery(job.callback)}
    return tasks.add(job.file, about, job.owner.caller, pages=len(numbers), repeat=repeat, content=content, more=more)


def find_job(tasks: Tasks, sent_id: object, owner: JobOwner, source: str | None = None) -> Task | None:
    """The job of this id, if this caller may see it.

    Args:
        tasks: All of them.
        sent_id: What was sent as the id, of any type.
        owner: Who asks: with a key, only jobs that were left with the same key are there.
        source: The adapter that asks; None finds jobs of every adapter.
    """
    task = tasks.find(sent_id)
    if task is None:
        return None
    with suppress(FileNotFoundError):
        about = task.about()
        is_own = owner.key is None or about.get("key") == owner.key
        return task if is_own and source in {None, about.get("source")} else None
    return None


def jobs_of(tasks: Tasks, owner: JobOwner, most: int) -> list[Task]:
    """The jobs that were left with a key, the newest first; none without a key, where ids are all that tells owners."""
    found = []
    for task in tasks.all() if owner.key is not None else ():
        with suppress(FileNotFoundError):
            taken = task.taken()
            if taken.key == owner.key:
                found.append((-taken.came_s, task.id, task))
    return [task for *_, task in sorted(found, key=lambda row: row[:2])[:most]]


def _numbers(job: JobRequest, count: int, kind: str, most: int) -> list[int]:
    """The pages that are read. Raises BadOption, TooManyPages."""
    numbers = list(job.pages(count) if callable(job.pages) else choose(job.pages, count))
    if not numbers:
        raise BadOption(f"None of the pages asked for is there: the {kind} has {count}.")
    if len(numbers) > most:
        raise TooManyPages(
            f"{len(numbers)} pages are asked for; the limit of a job is {most} (OCRSVC_JOB_PAGES).",
            f"Ask for fewer at a time, as with pages=1-{most}.",
        )
    return numbers


def _repeat(job: JobRequest) -> str:
    """What a job under the same key of the same caller has, too. Raises BadOption."""
    if not job.repeat:
        return ""
    if len(job.repeat) > _MOST_REPEAT_LETTERS or not job.repeat.isprintable():
        raise BadOption(f"The Idempotency-Key is longer than {_MOST_REPEAT_LETTERS} characters, or not printable.")
    owner = job.owner.key or job.owner.caller
    return sha256(orjson.dumps([owner, job.source, job.repeat])).hexdigest()


def _content(job: JobRequest, about: Mapping[str, object]) -> str:
    """What tells this job from others."""
    to = None if job.callback is None else job.callback.url
    return sha256(orjson.dumps([about, to], option=orjson.OPT_SORT_KEYS) + sha256(job.file).digest()).hexdigest()
