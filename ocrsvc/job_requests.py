"""What requests about jobs have in common, whichever API they come by: whose a job is, views, and files of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from flask.typing import ResponseReturnValue

from ocrsvc.errors import JobsOff
from ocrsvc.http.admission import WITHOUT_ENGINE
from ocrsvc.http.request import request
from ocrsvc.jobs.intake import JobOwner
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import find_result, make_result
from ocrsvc.jobs.store import JobStore, storing
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.limiter import Limiter

_FILES_WAITING: Final = 8
_PDF: Final = "pdf"


def owner_of_request() -> JobOwner:
    """Whose the jobs of this thread's request are."""
    return JobOwner(request.caller, request.key.identity if request.key is not None else None)


def store_of(jobs: JobStore | None) -> JobStore:
    """The job store. Raises JobsOff where there is none."""
    if jobs is None:
        raise JobsOff(
            "This service takes in no documents to be read later (OCRSVC_TASKS_BYTES is 0).",
            "The operator sets OCRSVC_TASKS_BYTES to the room that they may take, such as 1GB; or send the document "
            "to be read at once.",
        )
    return jobs


def job_view(view: Callable[..., ResponseReturnValue]) -> Callable[..., ResponseReturnValue]:
    """A view that works on the store: it takes no place in front of the engine, and a full disk is a StorageFull."""

    def answer(**names: str) -> ResponseReturnValue:
        with storing():
            return view(**names)

    setattr(answer, WITHOUT_ENGINE, True)
    return answer


class ResultFiles:
    """Makes files of results while their callers wait, one at a time: each takes a core, and a document's memory.

    For any thread that serves a request. PDFs wait for those of other requests, see `Reader.pdf_making`; what is made
    already waits for nobody.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader, self._limiter = reader, Limiter(1, _FILES_WAITING)

    def read(self, jobs: JobStore, job: Job, name: str) -> bytes:
        """The file of a format, see `make_result`, for a response that begins with the next step.

        Raises:
            DeadlineExceeded, ClientGone: Nobody waits for it any more.
            QueueFull: There is no memory for it, or too many wait.
            OcrsvcError, FileNotFoundError: As `make_result`.
        """
        made = find_result(job, name) or self._made(jobs, job, name)
        # Whoever finishes the response takes the same again, for as long as it lasts.
        with request.share.holding(made.stat().st_size):
            return made.read_bytes()

    def _made(self, jobs: JobStore, job: Job, name: str) -> Path:
        check = request.make_check()
        limiter = self._reader.pdf_making if name == _PDF else self._limiter
        with limiter.take(check):
            return make_result(jobs, job, name, check, request.left_s)
