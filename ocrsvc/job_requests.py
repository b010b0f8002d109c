"""Helpers for requests about jobs, for the native API and the adapters: owner, views, and result files."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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


def owner_of_request() -> JobOwner:
    """The owner of jobs that this thread's request creates or reads."""
    return JobOwner(request.caller, request.key.identity if request.key is not None else None)


def job_view(view: Callable[..., ResponseReturnValue]) -> Callable[..., ResponseReturnValue]:
    """Decorate a view that uses the job store but not the engine; a full disk raises StorageFull."""

    def answer(**names: str) -> ResponseReturnValue:
        with storing():
            return view(**names)

    setattr(answer, WITHOUT_ENGINE, True)
    return answer


class ResultFiles:
    """Finds or makes the result files of jobs, in request threads.

    A missing file is made while its client waits; callers take turns, because making a file keeps a CPU core busy.
    """

    def __init__(self, jobs: JobStore | None, reader: Reader) -> None:
        self._jobs, self._reader = jobs, reader

    @property
    def jobs(self) -> JobStore:
        """The job store. Raises JobsOff without one."""
        if self._jobs is None:
            raise JobsOff(
                "Jobs are off in this service (OCRSVC_JOBS_BYTES is 0).",
                "Ask the operator to set OCRSVC_JOBS_BYTES, such as to 1GB, or send the document in a single request.",
            )
        return self._jobs

    def send(self, job: Job, name: str, content_type: str) -> Response:
        """Respond with a job's result in the format `name` (ANSWER: the adapter's own). Raises as `make_result`."""

        def make(check: Check) -> Path:
            return make_result(self.jobs, job, name, check, request.left_s)

        return file_response(self.path(lambda: job.result_path(name), make, with_pdf=name == "pdf"), content_type)

    def path(self, find: Callable[[], Path | None], make: Callable[[Check], Path], *, with_pdf: bool = False) -> Path:
        """The path of an existing file from `find`, or else from `make`, called when it is the caller's turn.

        Raises DeadlineExceeded, ClientGone, QueueFull, and as `find` and `make`.
        """
        if (path := find()) is not None:
            return path
        with self.turn(with_pdf=with_pdf) as check:
            # Another request may have made the file meanwhile.
            return find() or make(check)

    @contextmanager
    def turn(self, *, with_pdf: bool = False) -> Iterator[Check]:
        """Wait until this caller may make a file or large response; yields a check to call often while making it.

        Raises as `path`.
        """
        check = request.make_check()
        limiter = self._reader.pdf_making if with_pdf else self._reader.file_making
        with ExitStack() as stack:
            with waiting():
                stack.enter_context(limiter.take(check, request.caller))
            yield check
