"""Jobs of one service, for a program that waits: documents that are left there, and asked for later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.client.request import Request
from ocrsvc.client.response import Data, Page, Response, outcome_of
from ocrsvc.errors import DeadlineExceeded, JobFailed, OcrsvcError

JOBS_PATH: Final = "/v1/jobs"

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_PAGES_AT_ONCE: Final = "100"

Ask = Callable[[Request, Callable[[Response], Any], float], Any]
"""Sends a request within so many seconds, again where that helps; what is made of the response. Raises OcrsvcError."""


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job is: `state` is waiting, running, done or failed, `data` the JSON as it came.

    Of its pages so many were read, of these so many could not be, and so many are to be.
    """

    state: str
    pages_done: int
    pages_failed: int
    pages_total: int
    data: Data

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be read."""
        return self.state in {"done", "failed"}


class Job:
    """A document that was left with a service; for any thread. `id` is for `Client.job` of a program that comes later.

    `timeout_s` is how long one question may take.
    """

    def __init__(self, job_id: str, ask: Ask, timeout_s: float) -> None:
        self.id, self._ask, self._timeout_s = job_id, ask, timeout_s
        self._path = f"{JOBS_PATH}/{job_id}"

    def state(self) -> JobState:
        """How it is now. Raises UnknownJob where it is not, or no more; OcrsvcError as `Client.read`."""
        return state_of(self._ask(Request("GET", self._path), Response.data, self._timeout_s))

    def wait(self, timeout_s: float) -> JobState:
        """Wait until it is done. Raises JobFailed; DeadlineExceeded where it takes longer; OcrsvcError as `state`."""
        for state in self._states(timeout_s):
            if state.state == "failed":
                problem = state.data.get("error") or {}
                raise JobFailed(str(problem.get("detail", "The job has failed.")))
            if state.is_over:
                return state
            known = f"{state.pages_done} of {state.pages_total} pages are read"
        raise DeadlineExceeded(f"The job is not done after {timeout_s:g} s: {known}.", "It goes on; wait again.")

    def pages(self, timeout_s: float, after: int = 0) -> Iterator[Page | OcrsvcError]:
        """Each page after the first so many, in order, as it is read; in place of one that could not be, its error.

        The time holds for all of them. Raises DeadlineExceeded and OcrsvcError as `wait`; a job that has failed ends
        with the pages that it has.
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
        raise DeadlineExceeded(f"The job is not done after {timeout_s:g} s.", "It goes on; ask for the pages again.")

    def result(self, format: str = "json", *, timeout_s: float | None = None) -> bytes:  # noqa: A002  as the API has it
        """A file of all pages, such as pdf, md, text or json. Raises JobNotDone, JobFailed; OcrsvcError as `state`."""
        request = Request("GET", f"{self._path}/result", {"format": format})
        content: bytes = self._ask(request, Response.content, timeout_s or self._timeout_s)
        return content

    def cancel(self) -> None:
        """Delete it; its reading ends within a page. Raises as `state`."""
        self._ask(Request("DELETE", self._path), Response.content, self._timeout_s)

    def _states(self, timeout_s: float) -> Iterator[JobState]:
        """How it is, again and again until the time is over, the last time at its end."""
        end_s, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
        while True:
            yield self.state()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def state_of(data: Data) -> JobState:
    """How a job is, as the service says it."""
    pages = data["pages"]
    return JobState(str(data["state"]), int(pages["done"]), int(pages["failed"]), int(pages["total"]), data)
