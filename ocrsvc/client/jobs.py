"""Jobs of one service, for a program that waits: documents that are left there, and asked for later."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ocrsvc.client.request import query_of
from ocrsvc.client.response import Data, Page, error_of, page_of
from ocrsvc.errors import DeadlineExceeded, JobFailed, OcrsvcError, ServerError

JOBS_PATH: Final = "/v1/jobs"

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_PAGES_AT_ONCE: Final = 100


class Send(Protocol):
    """Sends a request, again where that helps, and returns the body of an answer that is none of an error."""

    def __call__(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        timeout_s: float,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Raises OcrsvcError."""


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job is.

    Attributes:
        state: waiting, running, done or failed.
        pages_done, pages_failed, pages_total: How many pages were read, how many of these could not be, and how many
            are to be.
        data: The JSON as it came.
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
    """A document that was left with a service; for any thread.

    Args:
        job_id: As the service named it.
        send: Asks the service.
        timeout_s: How long one question may take.
        pause: Waits so many seconds.

    Attributes:
        id: As given, for `Client.job` of a program that comes later.
    """

    def __init__(
        self, job_id: str, send: Send, timeout_s: float, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self.id, self._send, self._timeout_s, self._pause = job_id, send, timeout_s, pause

    def state(self) -> JobState:
        """How it is now. Raises UnknownJob where it is not, or no more; OcrsvcError as `Client.read`."""
        return _state_of(self._get(""))

    def wait(self, timeout_s: float) -> JobState:
        """Wait until it is done.

        Raises:
            JobFailed: It has failed.
            DeadlineExceeded: It takes longer; it goes on all the same.
            OcrsvcError: As `state`.
        """
        state: JobState | None = None
        for state in self._states(timeout_s):
            if state.state == "failed":
                problem = state.data.get("error") or {}
                raise JobFailed(str(problem.get("detail", "The job has failed.")))
            if state.is_over:
                return state
        known = f"{state.pages_done} of {state.pages_total} pages are read" if state is not None else "nothing is known"
        raise DeadlineExceeded(f"The job is not done after {timeout_s:g} s: {known}.", "It goes on; wait again.")

    def pages(self, timeout_s: float, after: int = 0) -> Iterator[Page | OcrsvcError]:
        """Each page as it is read, in order, until the last; in place of one that could not be read, its error.

        Args:
            timeout_s: For all of them.
            after: How many are left out.

        Raises:
            DeadlineExceeded, OcrsvcError: As `wait`; a job that has failed ends with the pages that it has.
        """
        for state in self._states(timeout_s):
            while after < state.pages_done:
                answer = self._get("/pages", {"after": str(after), "limit": str(_PAGES_AT_ONCE)})
                for page in answer["pages"]:
                    after += 1
                    yield error_of(500, page["error"], None) if "error" in page else page_of(page)
            if state.is_over:
                return
        raise DeadlineExceeded(f"The job is not done after {timeout_s:g} s.", "It goes on; ask for the pages again.")

    def result(self, format: str = "json", *, timeout_s: float | None = None) -> bytes:  # noqa: A002  as the API has it
        """A file of all pages, such as pdf, md, text or json.

        Raises:
            JobNotDone, JobFailed: There is none yet, or never.
            OcrsvcError: As `state`.
        """
        path = f"{JOBS_PATH}/{self.id}/result"
        return self._send("GET", path, {"format": format}, timeout_s or self._timeout_s)

    def cancel(self) -> None:
        """Delete it; its reading ends within a page. Raises as `state`."""
        self._send("DELETE", f"{JOBS_PATH}/{self.id}", {}, self._timeout_s)

    def _states(self, timeout_s: float) -> Iterator[JobState]:
        """How it is, again and again until the time is over, the last time at its end."""
        end_s, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
        while True:
            yield self.state()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            self._pause(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        return _object(self._send("GET", f"{JOBS_PATH}/{self.id}{path}", params or {}, self._timeout_s))


@dataclass(frozen=True, slots=True)
class JobFields:
    """What is said of a document that is left, beside the options of reading; see `Client.submit_job`."""

    formats: tuple[str, ...] = ()
    name: str = ""
    callback: str = ""
    callback_secret: str = field(default="", repr=False)
    idempotency_key: str = ""


def submit(send: Send, body: bytes, options: Mapping[str, object], own: JobFields, timeout_s: float) -> Job:
    """Leave a document with a service; see `Client.submit_job`."""
    fields = {"format": ",".join(own.formats), "name": own.name, "callback": own.callback}
    params = query_of({**options, **{key: value for key, value in fields.items() if value}})
    # Not in the address, which logs of others keep.
    sent = {"Idempotency-Key": own.idempotency_key, "X-Callback-Secret": own.callback_secret}
    headers = {name: value for name, value in sent.items() if value}
    answer = _object(send("POST", JOBS_PATH, params, timeout_s, body, headers))
    return Job(str(answer["id"]), send, timeout_s)


def jobs_of(send: Send, timeout_s: float, most: int) -> list[JobState]:
    """The newest jobs of the key."""
    return [_state_of(job) for job in _object(send("GET", JOBS_PATH, {"limit": str(most)}, timeout_s))["jobs"]]


def _state_of(data: Mapping[str, Any]) -> JobState:
    pages = data["pages"]
    return JobState(str(data["state"]), int(pages["done"]), int(pages["failed"]), int(pages["total"]), data)


def _object(body: bytes) -> dict[str, Any]:
    """Raises ServerError for what is none of this service's answers."""
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ServerError("The answer is not one of this service.", "Check the address.")
    return data
