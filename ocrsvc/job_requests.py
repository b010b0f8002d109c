"""Requests about jobs, by whichever API: their owner, their views, and the files of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from flask import Response
from flask.typing import ResponseReturnValue

from ocrsvc.errors import JobsOff
from ocrsvc.http.admission import WITHOUT_ENGINE
from ocrsvc.http.request import request
from ocrsvc.http.responses import file_response
from ocrsvc.jobs.intake import JobOwner
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_database import storing
from ocrsvc.jobs.job_result import make_result
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Check
from ocrsvc.serving.request_guard import waiting

_PDF: Final = "pdf"


def owner_of_request() -> JobOwner:
    """The owner of jobs in this thread's request."""
    return JobOwner(request.caller, request.key.identity if request.key is not None else None)


def store_of(jobs: JobStore | None) -> JobStore:
    """The job store. Raises JobsOff."""
    if jobs is None:
        raise JobsOff(
            "This service takes in no documents to be read later (OCRSVC_TASKS_BYTES is 0).",
            "The operator sets OCRSVC_TASKS_BYTES to the room that they may take, such as 1GB; or send the document "
            "to be read at once.",
        )
    return jobs


def job_view(view: Callable[..., ResponseReturnValue]) -> Callable[..., ResponseReturnValue]:
    """A view on the job store: it takes no place in front of the engine; a full disk raises StorageFull."""

    def answer(**names: str) -> ResponseReturnValue:
        with storing():
            return view(**names)

    setattr(answer, WITHOUT_ENGINE, True)
    return answer


class ResultFiles:
    """Files of jobs' results, for any thread that serves a request.

    A missing file is made while its caller waits; callers take turns, because each takes a core.
    """

    def __init__(self, jobs: JobStore, reader: Reader) -> None:
        self._jobs, self._reader = jobs, reader

    def send(self, job: Job, name: str, content_type: str) -> Response:
        """Send the file of a format, or ANSWER. Raises as `path` and `make_result`."""

        def make(check: Check) -> Path:
            return make_result(self._jobs, job, name, check, request.left_s)

        return file_response(self.path(lambda: job.result_path(name), make, with_pdf=name == _PDF), content_type)

    def path(self, find: Callable[[], Path | None], make: Callable[[Check], Path], *, with_pdf: bool = False) -> Path:
        """The path of a file that `find` finds, or else `make` makes.

        Raises DeadlineExceeded, ClientGone, QueueFull, and as `find` and `make`.
        """
        if (found := find()) is not None:
            return found
        with self.turn(with_pdf=with_pdf) as check:
            # Another request may have made it meanwhile.
            return find() or make(check)

    @contextmanager
    def turn(self, *, with_pdf: bool = False) -> Iterator[Check]:
        """Wait for the caller's turn to make a file or a large answer; gives the check for it. Raises as `path`."""
        check = request.make_check()
        limiter = self._reader.pdf_making if with_pdf else self._reader.file_making
        with ExitStack() as stack:
            with waiting():
                stack.enter_context(limiter.take(check, request.caller))
            yield check
