"""Background jobs of one service, for synchronous programs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.client.request import Request
from ocrsvc.client.response import Data, Page, Response, outcome_of
from ocrsvc.errors import DeadlineExceeded, JobFailed, OcrsvcError

JOBS_PATH: Final = "/v1/jobs"

_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 5.0
_PAGES_AT_ONCE: Final = "100"

Ask = Callable[[Request, Callable[[Response], Any], float], Any]
"""Sends a request within a time limit, with retries, and returns the parsed response. Raises OcrsvcError."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's state: waiting, running, done or failed; `data` is the original JSON.

    `pages_done` includes `pages_failed`.
    """

    state: str
    pages_done: int
    pages_failed: int
    pages_total: int
    data: Data

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.state in {"done", "failed"}


class Job:
    """A background job, for any thread; another program gets it with `Client.job(id)`.

    `timeout_s` is the time limit of each request.
    """

    def __init__(self, job_id: str, ask: Ask, timeout_s: float) -> None:
        self.id, self._ask, self._timeout_s = job_id, ask, timeout_s
        self._path = f"{JOBS_PATH}/{job_id}"

    def state(self) -> JobState:
        """The current state. Raises UnknownJob for a deleted or expired job, and as `Client.read`."""
        return state_of(self._ask(Request("GET", self._path), Response.data, self._timeout_s))

    def wait(self, timeout_s: float) -> JobState:
        """Wait until the job is done. Raises JobFailed, DeadlineExceeded, and as `state`."""
        for state in self._states(timeout_s):
            if state.state == "failed":
                problem = state.data.get("error") or {}
                raise JobFailed(str(problem.get("detail", "The job has failed.")))
            if state.is_over:
                return state
            known = f"{state.pages_done} of {state.pages_total} pages are read"
        raise DeadlineExceeded(f"The job is not done after {timeout_s:g} s: {known}.", "It continues: wait again.")

    def pages(self, timeout_s: float, after: int = 0) -> Iterator[Page | OcrsvcError]:
        """Yield the pages after the first `after`, in order as they are read; for a failed page, its error.

        `timeout_s` is for all pages. If the job fails, the pages end without an error. Raises
        DeadlineExceeded, and as `state`.
        """
        for state in self._states(timeout_s):
            while after < state.pages_done:
                query = {"after": str(after), "limit": _PAGES_AT_ONCE}
                answer = self._ask(Request("GET", f"{self._path}/pages", query), Response.data, self._timeout_s)
                for page in answer["pages"]:
                    after += 1
                    yield outcome_of(page)
            if state.is_over:
                return
        raise DeadlineExceeded(f"The job is not done after {timeout_s:g} s.", "It continues: call pages again.")

    def result(self, format: str = "json", *, timeout_s: float | None = None) -> bytes:  # noqa: A002  as the API has it
        """The result in a format such as pdf, md, text or json. Raises JobNotDone, JobFailed, and as `state`."""
        request = Request("GET", f"{self._path}/result", {"format": format})
        content: bytes = self._ask(request, Response.content, timeout_s or self._timeout_s)
        return content

    def cancel(self) -> None:
        """Delete the job; a running one stops within a page. Raises as `state`."""
        self._ask(Request("DELETE", self._path), Response.content, self._timeout_s)

    def _states(self, timeout_s: float) -> Iterator[JobState]:
        """Poll the state until `timeout_s` has passed, with a last poll at the end."""
        end_s, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
        while True:
            yield self.state()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def state_of(data: Data) -> JobState:
    """Parse a job's state."""
    pages = data["pages"]
    return JobState(str(data["state"]), int(pages["done"]), int(pages["failed"]), int(pages["total"]), data)
